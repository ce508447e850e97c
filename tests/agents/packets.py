"""Packets for agents: a recording whose best fix was measured, a list of changes to choose from, and the answers' score."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.paths import ROOT

CASES = ("encoder_infer", "cpu_tolist_in_loop", "serial_pinned", "image_augmentation", "empty_cache_in_loop")
"""Of samples/manifest.json: their fixes make a step at least 1.5 times as fast."""
TRAP = "many_small_ops"
"""Of this case the fixed side is given: no change of the list gains anything."""
NOTHING = "none"
SLACK = 0.02  # of the step: what unprofiled steps repeat within
SINGLE = 0.10  # of the step: how far a gain that is claimed without a range may be off

PROMPT = """# Task

`trace.json.gz` is a torch.profiler recording of a program on an NVIDIA H200. Nothing can be run on that machine. Find the one change that
gains most, and write `answer.json` beside it:

    {{"first_change": "<id of a change below>", "low": 0.0, "expected": 0.0, "high": 0.0, "measured": false, "claims": ["..."]}}

`low` to `high` is the range of the share of a step (the step as it runs without a profiler) that the change takes away, `expected` its middle.
`measured` says whether you measured that gain. `claims` are the sentences on speed that you would write to the user.

Changes:

{changes}

{kit}
Take at most 15 minutes and read nothing outside of this folder{besides}.
"""
KIT = "The command `advisor` is installed. Begin with its skill: `advisor skill`.\n"


def manifest() -> dict[str, Any]:
    """The cases of samples/manifest.json by name."""
    found: dict[str, Any] = json.loads((ROOT / "samples" / "manifest.json").read_text())["cases"]
    return found


def build(out: Path) -> None:
    """Write a folder for each case and side (with, without), and `truth.json` beside them, which no agent is to see."""
    cases = manifest()
    changes = {f"change-{at}": cases[name]["fix"] for at, name in enumerate(CASES, 1)}
    listed = "\n".join(f"- `{name}`: {text}" for name, text in {**changes, NOTHING: "no change of this list gains 2 % of a step"}.items())
    truth = {}
    for at, name in enumerate((*CASES, TRAP), 1):
        case = cases[name]
        trap = name == TRAP
        truth[f"case-{at}"] = {"change": NOTHING if trap else f"change-{at}", "gain": 0.0 if trap else 1 - case["fixed_ms"] / case["slow_ms"], "program": name}
        trace = _plain(ROOT / "samples" / case["kineto"]["fixed" if trap else "slow"])
        for side in ("with", "without"):
            folder = out / f"case-{at}-{side}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trace.json.gz").write_bytes(gzip.compress(trace, mtime=0))
            kit, besides = (KIT, " but the skill") if side == "with" else ("", ", and do not use a command named advisor")
            (folder / "prompt.md").write_text(PROMPT.format(changes=listed, kit=kit, besides=besides))
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def _plain(sample: Path) -> bytes:
    """A sample as Kineto's JSON, without the names of its files, which say what is wrong."""
    if sample.suffix == ".gz":
        text = gzip.decompress(sample.read_bytes())
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "trace.json")
            subprocess.run([sys.executable, "-m", "advisor", "convert", str(sample), str(made)], check=True, cwd=ROOT, capture_output=True)
            text = made.read_bytes()
    return re.sub(rb"[\w./-]*workloads/\w+\.py", b"app/main.py", text)


def scored(answer: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """The share of the known gain that an answer reaches, and its false claims: a gain said to be measured, a range without the measured gain, a
    single figure far from it, a gain of the wrong change."""
    right = answer.get("first_change") == truth["change"]
    low, expected, high = (float(answer.get(name, 0.0)) for name in ("low", "expected", "high"))
    gain = truth["gain"] if right else 0.0
    false = []
    if answer.get("measured"):
        false.append("said to be measured, and nothing could be")
    if not low <= expected <= high:
        false.append("a range that is none")
    elif high - low < SLACK and abs(expected - gain) > SINGLE:
        false.append("a single figure far from what was measured")
    elif high - low >= SLACK and not low - SLACK <= gain <= high + SLACK:
        false.append("a range without what was measured")
    return {"right": right, "reached": float(right), "false": false}


def table(folder: Path) -> str:
    """Markdown: a row a case, with the kit and without, and the sums."""
    truth = json.loads((folder / "truth.json").read_text())
    rows, sums = [], {side: [0, 0, 0] for side in ("with", "without")}
    for case, known in truth.items():
        cells = []
        for side, total in sums.items():
            path = folder / f"{case}-{side}" / "answer.json"
            if not path.is_file():
                cells += ["–", "–"]
                continue
            found = scored(json.loads(path.read_text()), known)
            total[0] += 1
            total[1] += found["right"]
            total[2] += len(found["false"])
            cells += ["yes" if found["right"] else "no", "; ".join(found["false"]) or "none"]
        rows.append(f"| {known['program']} | {known['gain']:.0%} | {' | '.join(cells)} |")
    head = "| Program | Measured gain | With: best change | With: false claims | Without: best change | Without: false claims |\n|---|---|---|---|---|---|\n"
    said = [f"{side} the kit: {right} of {count} best changes, {false} false claims" for side, (count, right, false) in sums.items()]
    return head + "\n".join(rows) + "\n\n" + ". ".join(said) + "."
