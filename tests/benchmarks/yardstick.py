"""What an analysis costs by phase, in warm parses of the same file: W.

    python -m tests.benchmarks.yardstick [TRACE.json ...] [--mb 5 50 200] [--rounds 5] [--markdown docs/performance.md]

W is simdjson's bare parse into memory that was touched before: it reads every byte and builds no column, and unlike a first parse,
most of which is page faults, it moves little from run to run. Each round is one process for W and one that has analysed a small
trace before, so that imports and what is made once stand apart; they follow each other, so that noise of the machine meets all.
Figures are CPU time, user and system, of the process and those that it started; the median of the rounds, with their range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from advisor.recordings.extension import SWITCH
from advisor.sources.kineto import native
from tests.benchmarks import generate, run
from tests.benchmarks.measure import as_installed
from tests.paths import ROOT

PHASES = {
    "parse": "simdjson, warm parse (W)",
    "load": "source to recording",
    "native": "the same with the decoder in C",
    "alone": "the same in one thread",
    "rules": "views and rules",
    "report": "report as JSON",
    "html": "report as HTML",
}
START = {"numpy": "`import numpy`", "analyze": "`analyze --format json`, all of it", "native": "the same with the decoder in C"}
"""Rows of the decoder in C are left out where it is not installed."""

SMALL = ROOT / "samples" / "launch-gap" / "slow.json.gz"
SMALL_START = {
    "numpy": ("`import numpy`", ["-c", "import numpy"], 1.0),
    "help": ("`--help`", ["-m", "advisor", "--help"], 1.2),
    "version": ("`--version`", ["-m", "advisor", "--version"], 1.2),
    "json": ("`analyze -f json -o -`", ["-m", "advisor", "analyze", str(SMALL), "-f", "json", "-o", "-"], 4.0),
    "page": ("`analyze -f html -o -`", ["-m", "advisor", "analyze", str(SMALL), "-f", "html", "-o", "-"], 5.0),
}
"""What a command on a small trace costs in imports of numpy: its name, its line, and the goal."""

_CLOCK = """
import json, os, resource, sys, time
def clock():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used), time.perf_counter()
def timed(work):
    before = clock()
    made = work()
    return made, [after - start for after, start in zip(clock(), before)]
"""
_PARSE = """
from simdjson import Parser
text, parser = open(sys.argv[1], "rb").read(), Parser()
def parse():
    parser.parse(text)
parse(), parse()
print(json.dumps({"parse": min(timed(parse)[1] for _ in range(5))}))
"""
_PHASES = """
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.reports import formats
from advisor.sources import read
def phases(path):
    recording, load = timed(lambda: read(path))
    report, rules = timed(lambda: run(recording, catalog().values()))
    _, written = timed(report.to_json)
    _, html = timed(lambda: formats()["html"].render(report))
    return {"load": load, "rules": rules, "report": written, "html": html}
phases(sys.argv[2])
print(json.dumps(phases(sys.argv[1])))
"""
_NATIVE = """
from advisor.sources import read
from advisor.sources.kineto import native
read(sys.argv[2])
name = sys.argv[3]
print(json.dumps({name: timed(lambda: read(sys.argv[1], processes=1 if name == "alone" else None))[1]} if native.DECODER else {}))
"""
_NUMPY = ["-c", "import numpy"]
_ANALYZE = ["-m", "advisor", "analyze", "--format", "json", "--force", "--output", os.devnull]


@dataclass(frozen=True)
class Spread:
    """Rounds of one phase: CPU and wall seconds of each."""

    rounds: tuple[tuple[float, float], ...]

    @property
    def cpu_s(self) -> float:
        return statistics.median(cpu for cpu, _ in self.rounds)

    @property
    def least_cpu_s(self) -> float:
        """What comparisons rest on: what else the machine does only adds, to one phase or another."""
        return min(cpu for cpu, _ in self.rounds)

    @property
    def wall_s(self) -> float:
        return statistics.median(wall for _, wall in self.rounds)

    @property
    def cpu_range_s(self) -> tuple[float, float]:
        return min(cpu for cpu, _ in self.rounds), max(cpu for cpu, _ in self.rounds)


def phases(path: Path, small: Path, rounds: int) -> dict[str, Spread]:
    """Each phase of `PHASES` over the rounds, of a process that has analysed `small` before."""
    seen: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    for _ in range(rounds):
        found = _child(_PARSE, path) | _child(_PHASES, path, small)
        for name in ("native", "alone"):
            found |= _child(_NATIVE, path, small, name, in_c=True)
        for phase, (cpu, wall) in found.items():
            seen[phase].append((cpu, wall))
    return {phase: Spread(tuple(costs)) for phase, costs in seen.items() if costs}


def beside(some: dict[str, Spread], more: dict[str, Spread]) -> dict[str, Spread]:
    """The rounds of both."""
    return {phase: Spread((*(some[phase].rounds if phase in some else ()), *spread.rounds)) for phase, spread in more.items()}


def start(path: Path, rounds: int) -> dict[str, Spread]:
    """An analysis as the command line runs it, from the interpreter's start to its end, beside importing numpy alone."""
    commands = {"numpy": _NUMPY, "analyze": [*_ANALYZE, str(path)]}
    if native.DECODER is not None:
        commands["native"] = commands["analyze"]
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seen[name].append(_child(_COMMAND, sys.executable, *command, in_c=name == "native")["command"])
    return {name: Spread(tuple(costs)) for name, costs in seen.items()}


def small_start(rounds: int) -> list[str]:
    """A table of `SMALL_START`: the least of the rounds, in imports of numpy."""
    least = dict.fromkeys(SMALL_START, float("inf"))
    for _ in range(rounds):
        for name, (_, line, _) in SMALL_START.items():
            least[name] = min(least[name], _child(_COMMAND, sys.executable, *line, in_c=True)["command"][0])
    title = f"**{SMALL.relative_to(ROOT)}**, {SMALL.stat().st_size / 1e3:,.0f} kB, a process each; the least of {rounds} rounds"
    lines = [title, "", "| | CPU s | imports of numpy | goal |", "|---|--:|--:|--:|"]
    return [*lines, *(f"| {said} | {least[name]:.3f} | {least[name] / least['numpy']:.2f} | {goal:g} |" for name, (said, _, goal) in SMALL_START.items()), ""]


_COMMAND = """
import subprocess
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(json.dumps({"command": timed(lambda: subprocess.run(sys.argv[1:], check=True, **quiet))[1]}))
"""


def _child(code: str, *arguments: Path | str, in_c: bool = False) -> dict[str, tuple[float, float]]:
    command = [sys.executable, "-c", _CLOCK + code, *map(str, arguments)]
    environment = as_installed() | {SWITCH: "yes" if in_c else "no"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    costs: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return costs


def table(title: str, size: int, costs: dict[str, Spread], names: dict[str, str], base: str, unit: str) -> list[str]:
    lines = [f"**{title}**, {size / 1e6:,.0f} MB", "", f"| | CPU s | range | wall s | {unit} |", "|---|--:|--:|--:|--:|"]
    for name, cost in costs.items():
        low, high = cost.cpu_range_s
        ratio = cost.cpu_s / costs[base].cpu_s
        lines.append(f"| {names[name]} | {cost.cpu_s:.3f} | {low:.3f} to {high:.3f} | {cost.wall_s:.3f} | {ratio:.2f} |")
    return [*lines, ""]


def measure(path: Path, title: str, small: Path, rounds: int) -> list[str]:
    size = path.stat().st_size
    return [
        *table(title, size, phases(path, small, rounds), PHASES, "parse", "W"),
        *table(f"{title}, in a process of its own", size, start(path, rounds), START, "numpy", "imports of numpy"),
    ]


def all_measured(traces: list[Path], mb: list[float], rounds: int) -> list[str]:
    """Tables of the traces given and of generated ones of so many MB, printed as they are made."""
    lines = [*run.machine({}), f"The median of {rounds} rounds and their range.", ""]
    run.shown(lines)
    lines += run.shown(small_start(rounds))
    with tempfile.TemporaryDirectory() as folder:
        small, made = Path(folder) / "small.json", Path(folder) / "trace.json"
        generate.kineto(small, 2 * 10**6)
        for path in traces:
            lines += run.shown(measure(path, path.name, small, rounds))
        for size in mb:
            generate.kineto(made, int(size * 1e6))
            lines += run.shown(measure(made, "Kineto", small, rounds))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="uncompressed traces of your own")
    parser.add_argument("--mb", type=float, nargs="*", default=[5, 50, 200], help="generated traces of these sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", type=Path, help="whose tables to replace")
    args = parser.parse_args()
    lines = all_measured([path.resolve() for path in args.traces], args.mb, args.rounds)
    if args.markdown:
        run.put(args.markdown, "phases", lines)


if __name__ == "__main__":
    main()
