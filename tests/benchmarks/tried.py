"""Runs `advisor try` over programs that know nothing of it, and holds its gains against the same fixes written into the source.

    python -m tests.benchmarks.tried results.jsonl --seconds 500 [PROGRAM …]     # on a GPU; a line a program, added to the file
    python -m tests.benchmarks.tried results.jsonl --table                       # the tables of docs/try.md

The programs are in try_programs/, in the style of the documentation of torchvision, timm, Transformers, Lightning, Accelerate and PyTorch Geometric.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from advisor.errors import AdvisorError
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.lab.trying.result import Tried
from advisor.lab.trying.session import tried
from advisor.lab.trying.start import Asked, Program, Runner
from advisor.lab.trying.statistics import held

PROGRAMS = Path(__file__).with_name("try_programs")
PAGE = Path(__file__).parents[2] / "docs" / "try.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"

BUDGET_S = 80.0
"""Of one program: what a user waits for gladly."""
LEAST_S = 45.0
HAND_RUNS, HAND_S = 3, 75.0
UNDER_TORCHRUN = {"ddp_loop": 2}
"""Programs that torchrun starts, and with how many ranks. spawned_ranks starts its own."""

_WORKERS = "num_workers=8, persistent_workers=True, pin_memory=True)"
BY_HAND: dict[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "resnet_loop": ("pinned-copies", [("else 8)", "else 8, pin_memory=True)"), ("to(device), target.to(device)", "to(device, non_blocking=True), target.to(device, non_blocking=True)")]),
    "no_workers": ("loader-workers", [("shuffle=True)", f"shuffle=True, {_WORKERS}"), ("images.to(device)", "images.to(device, non_blocking=True)"), ("labels.to(device)", "labels.to(device, non_blocking=True)")]),
    "timm_vit": ("autocast", [("    loss = nn.functional.cross_entropy(model(images), labels)", "    with torch.autocast(device, torch.bfloat16):\n        out = model(images)\n    loss = nn.functional.cross_entropy(out.float(), labels)")]),
    "gpt2_loop": ("matmul-precision", [("config =", 'torch.set_float32_matmul_precision("high")\nconfig =')]),
    "denoiser": ("autocast", [("    loss = nn.functional.mse_loss(unet(", "    with torch.autocast(device, torch.bfloat16):\n        out = (unet("), (", noise)\n    loss.b", ")\n    loss = nn.functional.mse_loss(out.float(), noise)\n    loss.b")]),
    "trainer_bert": ("autocast", [("max_steps=5000", "max_steps=5000, bf16=True")]),
    "lstm_words": ("no-empty-cache", [("        torch.cuda.empty_cache()\n", "")]),
    "collecting": ("no-collection", [("for _ in range(20_000)", "gc.freeze(), gc.disable()\nfor _ in range(20_000)"), ("    gc.collect()\n", "")]),
    "serve_encoder": ("compile-reduce-overhead", [("with torch.no_grad():", 'model.compile(mode="reduce-overhead")\nwith torch.no_grad():')]),
    "timm_serve": ("matmul-precision", [("images =", 'torch.set_float32_matmul_precision("high")\nimages =')]),
}  # fmt: skip
"""By program an intervention, and the same as somebody would write it: texts of the source and what stands in their place."""


def command(name: str, path: Path, lock: str) -> list[str]:
    """What starts it. lock: the file that whoever uses the GPU holds, "" if nobody else does."""
    if ranks := UNDER_TORCHRUN.get(name):
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(path)]
    return [sys.executable, *([str(Path(__file__).with_name("turns.py")), lock] if lock else ()), str(path)]


def measured(name: str, budget_s: float, seconds: float, lock: str = "") -> dict[str, Any]:
    """One program: what `try` says of it, base runs against each other, and the fix by hand where all that may take so many seconds."""
    began = time.monotonic()
    path = PROGRAMS / f"{name}.py"
    say = lambda text: print(f"{name} {time.monotonic() - began:5.0f} s: {text}", file=sys.stderr, flush=True)  # noqa: E731
    found = tried(Program(command(name, path, lock)), budget_s=budget_s, say=say, progress=say)
    said = found.to_dict()
    for trial in said["trials"]:
        trial["reach"].pop("sites")
        trial["reach"].pop("kernels")
    said.pop("command")
    return {
        "program": name,
        **said,
        "a_a": against_itself(found),
        "by_hand": by_hand(name, found, lock, say) if time.monotonic() - began + HAND_S < seconds else None,
    }


def against_itself(found: Tried) -> dict[str, int]:
    """The program's own runs held against each other in every way that leaves two a side: how many, and how many of these seem to gain."""
    runs = [list(run) for run in found.base if len(run)]
    verdicts = []
    for size in range(2, len(runs) // 2 + 1):
        for chosen in itertools.combinations(range(len(runs)), size):
            rest = [run for i, run in enumerate(runs) if i not in chosen]
            verdicts.append(held(rest, [runs[i] for i in chosen]).verdict)
    return {"runs": len(runs), "pairs": len(verdicts), "gains": sum(verdict in ("faster", "slower") for verdict in verdicts)}


def by_hand(name: str, found: Tried, lock: str, say: Any) -> dict[str, Any] | None:
    """The gain of the fix in the source, beside that of `try`; None where that did not try it."""
    intervention, changes = BY_HAND.get(name, ("", ()))
    trial = next((one for one in found.trials if one.intervention == intervention and one.gain), None)
    if trial is None or trial.gain is None or trial.verdict == "cannot-tell":
        return None
    text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"{name}.py holds no {old!r}"
        text = text.replace(old, new)
    warmup, last = found.steps
    with TemporaryDirectory() as folder:
        program = Path(folder, f"{name}.py")
        program.write_text(text, encoding="utf-8")
        runner = Runner(Program(command(name, program, lock)), Path(folder))
        runs = []
        for number in range(HAND_RUNS):
            say(f"by hand, run {number + 1}")
            ran = runner.run(Asked(warmup=warmup, timed=last - warmup))
            if ran.failed:
                return {"intervention": intervention, "failed": ran.failed.splitlines()[-1]}
            runs.append(ran.times(ran.warmup, ran.last))
    gain = held([run for run in found.base if len(run)], runs)
    return {"intervention": intervention, "by_hand": [gain.low, gain.expected, gain.high], "tried": [trial.gain.low, trial.gain.expected, trial.gain.high]}


def tables(rows: list[dict[str, Any]]) -> str:
    """The tables of docs/try.md."""
    trials = [(row, trial) for row in rows for trial in row["trials"] if trial["runs"] or trial["verdict"] == "did-not-apply"]
    asked = [trial for _, trial in trials if not trial["what_if"]]
    applied = [trial for trial in asked if trial["verdict"] != "did-not-apply"]
    predicted = [trial for trial in applied if trial["predicted"]]
    told = [trial for trial in predicted if trial["inside"] is not None]
    spent = [row["spent_s"] for row in rows]
    pairs, gains, runs = (sum(row["a_a"][key] for row in rows) for key in ("pairs", "gains", "runs"))
    lines = [
        f"{len(rows)} programs on one {rows[0]['device']}, torch {rows[0]['torch']}, {rows[0]['date']}, {min(spent):.0f} to {max(spent):.0f} s each: `python -m tests.benchmarks.tried`.", "",
        f"- Of {len(asked)} fixes that their reports name and that were run, {len(applied)} applied.",
        f"- Of {len(predicted)} gains {sum(map(_inside, predicted))} lie within what was predicted, give or take 2 % of the step. Of {len(told)} of them there is a verdict, and {sum(map(_inside, told))} of these lie within.",
        *([f"- {runs} runs as they are, held against each other in {pairs} ways, gained nothing in {pairs - gains}."] if pairs else []),
        f"- Losses were equal with {_count(applied, 'equal')} of the fixes that applied, differed with {_count(applied, 'differs')}, and were not checked with {_count(applied, 'not-checked')}.",
        "", "| Program | Step | Fix | Predicted | Measured | Runs | Verdict | Losses | To begin |", "|---|--:|---|--:|--:|--:|---|---|--:|",
        *(_row(row, trial) for row, trial in trials), "",
    ]  # fmt: skip
    if any(row["together"] for row in rows):
        lines += [*_kept(rows), ""]
    if hands := list(_hands(rows)):
        lines += ["The same fix by hand, in the source:", "", "| Program | Fix | `try` | By hand | Within noise |", "|---|---|--:|--:|:-:|", *hands, ""]
    return "\n".join(lines)


def _inside(trial: dict[str, Any]) -> bool:
    low, high = trial["predicted"]["low"] - NO_DIFFERENCE, trial["predicted"]["high"] + NO_DIFFERENCE
    return bool(low <= trial["measured"]["expected"] <= high)


def _count(trials: list[dict[str, Any]], losses: str) -> int:
    return sum(trial["losses"] == losses for trial in trials)


def _row(row: dict[str, Any], trial: dict[str, Any]) -> str:
    predicted = (
        "–"
        if trial["predicted"] is None
        else f"{trial['predicted']['expected']:.0%} ({100 * trial['predicted']['low']:.0f} to {100 * trial['predicted']['high']:.0f})"
    )
    m = trial["measured"]
    gain = "–" if m is None else f"{m['expected']:.1%}" + (f" ± {50 * (m['high'] - m['low']):.1f}" if trial["runs"] > 1 else "")
    verdict = trial["verdict"].replace("-", " ") + (f": {trial['why'].splitlines()[0][:70]}" if trial["verdict"] == "did-not-apply" else "")
    begin = f"{trial['compile_s']:.0f} s" if trial["compile_s"] >= 1 else "–"
    losses = trial["losses"].replace("-", " ") if m else "–"
    step = f"{row['base']['step_us']['expected'] / 1e3:.3g} ms"
    return f"| {row['program']} | {step} | `{trial['intervention']}` | {predicted} | {gain} | {trial['runs']} | {verdict} | {losses} | {begin} |"


def _kept(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "What goes together:"
    yield ""
    yield "| Program | Kept | Step then | Less | The report's, of all fixes |"
    yield "|---|---|--:|--:|--:|"
    for row in rows:
        if row["together"]:
            expected = "–" if row["predicted_together"] is None else f"{row['predicted_together']:.0%}"
            yield f"| {row['program']} | {' + '.join(f'`{kept}`' for kept in row['kept'])} | {row['together']['step_us'] / 1e3:.3g} ms | {row['together']['measured']['expected']:.1%} | {expected} |"


def _hands(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if (hand := row["by_hand"]) and "by_hand" in hand:
            (low, by, high), (from_, gain, to) = hand["by_hand"], hand["tried"]
            tried_pm, by_pm = 50 * (to - from_), 50 * (high - low)
            yield f"| {row['program']} | `{hand['intervention']}` | {gain:.1%} ± {tried_pm:.1f} | {by:.1%} ± {by_pm:.1f} | {'yes' if max(low, from_) <= min(high, to) or abs(by - gain) <= 0.02 else 'no'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--seconds", type=float, default=500.0, help="of all")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each")
    parser.add_argument("--lock", default="", help="a file: programs that name the same one run by turns")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        rows = {row["program"]: row for row in map(json.loads, given.results.read_text(encoding="utf-8").splitlines())}
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{tables(list(rows.values()))}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        return
    ends = time.monotonic() + given.seconds
    for name in given.programs or sorted(path.stem for path in PROGRAMS.glob("*.py")):
        left = ends - time.monotonic()
        if left < LEAST_S:
            break
        try:
            row = measured(name, min(given.budget, left), left, given.lock)
        except AdvisorError as error:
            print(f"{name}: {error.message}\n{error.hint}", file=sys.stderr, flush=True)
            continue
        with given.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}) + "\n")


if __name__ == "__main__":
    main()
