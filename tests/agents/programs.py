"""Programs that agents make faster: each with the change that gains most, and an agent's result measured against both.

`tests/agents/slow_programs/NAME/program` is what an agent gets, `best` the file of it that the best change rewrites; `sensors` has none, as nothing gains.
Times are CPU time (user and system) of the whole process, the least of runs by turns.
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("slow_programs")
SLACK_POINTS = 10.0
"""How far a claimed gain may be off: runs of one program repeat within this on a shared machine."""
SAME = 1e-3
"""How far a checksum may differ, relative: as the prompt permits where lower precision is the point."""

PROMPT = """You are given a small PyTorch program that runs on a CPU, in the folder `program` (run it there: `{python} main.py`, ten to thirty seconds; it
prints `checksum N`). Its owner finds it slow. Make it faster: edit its files. The checksum must stay the same to 1e-4 relative (if lower precision
is the point, to 1e-3, and say so). Do not do less work (same epochs, steps, data, model), use no threads or processes beyond one core, and do not
change `torch.set_num_threads`.

Budget: at most 15 minutes and at most 6 runs of the program or of parts of it, profiling included (a command that runs it several times counts as
two). The machine is shared: trust CPU time (user and system) more than wall time.

Then write `report.json` beside `program`: {{"changed": in one or two sentences, "gain_pct": how much less time the whole program takes in percent, as
you would tell its owner (a number or null), "how_known": "measured" | "predicted" | "guessed", "said_to_owner": the three sentences that you would
send}}. If nothing worthwhile is to be gained, leave the program as it is and say so.

{kit}
"""
WITH = (
    "The command `advisor` is installed, with its skill: read `skill/SKILL.md` first and work as it says. The user consents to recording and to trying "
    "fixes: at most `--budget 3m` of `try`, 3 runs a side of `verify`."
)
WITHOUT = "Do not use the command or the package `advisor`. Look at nothing outside of this folder."


def build(out: Path) -> None:
    """Write a folder for each program and side (with, without), without its best change."""
    for source in sorted(PROGRAMS.iterdir()):
        for side, kit in (("with", WITH), ("without", WITHOUT)):
            folder = out / f"{source.name}-{side}"
            shutil.copytree(source / "program", folder / "program")
            (folder / "prompt.md").write_text(PROMPT.format(python=sys.executable, kit=kit))
            if side == "with":
                subprocess.run([sys.executable, "-m", "advisor", "skill", "--install", str(folder)], check=True, capture_output=True)
                (folder / "advisor").rename(folder / "skill")


def run(program: Path) -> tuple[float, float]:
    """CPU seconds of a run, and its checksum (nan where it prints none)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-B", "main.py"], cwd=program, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = re.search(r"checksum (\S+)", done.stdout)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, float(said[1]) if said and done.returncode == 0 else float("nan")


def scored(slow_s: float, best_s: float, agent_s: float, same: bool, report: dict[str, Any]) -> dict[str, Any]:
    """The gain that an agent reached in percent, its share of the best change's, and what of its report is false.

    share: None where nothing is to be gained.
    """
    gain = 100 * (1 - agent_s / slow_s) if same else 0.0
    best = 100 * (1 - best_s / slow_s)
    false = [] if same else ["the checksum changed"]
    claimed = report.get("gain_pct")
    if claimed is not None and abs(float(claimed) - gain) > SLACK_POINTS:
        false.append(f"claims {float(claimed):.0f} %")
    return {"gain": gain, "best": best, "share": gain / best if best > SLACK_POINTS else None, "false": false}


def measured(folder: Path, runs: int) -> list[dict[str, Any]]:
    """A row for each program and side that has a report, all run by turns."""
    rows = []
    for source in sorted(PROGRAMS.iterdir()):
        best = folder / f"{source.name}-best"
        shutil.copytree(source / "program", best, dirs_exist_ok=True)
        if (source / "best").is_dir():
            shutil.copytree(source / "best", best, dirs_exist_ok=True)
        sides = {side: at for side in ("with", "without") if (at := folder / f"{source.name}-{side}") and (at / "report.json").is_file()}
        turns = {"slow": source / "program", "best": best, **{side: at / "program" for side, at in sides.items()}}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
        for _ in range(runs):
            for name, program in turns.items():
                times[name].append(run(program))
        least = {name: min(seconds for seconds, _ in found) for name, found in times.items()}
        sums = {name: found[0][1] for name, found in times.items()}
        for side, at in sides.items():
            same = abs(sums[side] - sums["slow"]) <= SAME * abs(sums["slow"])
            report = json.loads((at / "report.json").read_text())
            rows.append({"program": source.name, "side": side, **scored(least["slow"], least["best"], least[side], same, report)})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def table(folder: Path, runs: int = 3) -> str:
    """Markdown: a row a program, and how many reach four fifths of what the best change gains."""
    rows = {(row["program"], row["side"]): row for row in measured(folder, runs)}
    made = ["| Program | Best change | With: gain | With: false claims | Without: gain | Without: false claims |", "|---|---:|---:|---|---:|---|"]
    for name in sorted({program for program, _ in rows}):
        pair = [rows.get((name, side)) for side in ("with", "without")]
        best = next(row["best"] for row in pair if row)
        cells = [cell for row in pair for cell in ((f"{row['gain']:.0f}%", "; ".join(row["false"]) or "none") if row else ("–", "–"))]
        made.append(f"| {name} | {best:.0f}% | {' | '.join(cells)} |")
    made.append("")
    for side in ("with", "without"):
        of = [row for (_, found), row in rows.items() if found == side]
        gaining = [row for row in of if row["share"] is not None]
        reached, false = sum(row["share"] >= 0.8 for row in gaining), sum(len(row["false"]) for row in of)
        made.append(f"{side} the kit: {reached} of {len(gaining)} reach four fifths of the best change, {false} false claims in {len(of)} reports.")
    return "\n".join(made)
