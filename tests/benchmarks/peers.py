"""Holds an analysis against other tools on the same file: CPU time and peak memory of everything that each starts.

    python -m tests.benchmarks.peers --peer gpu-idle=VENV/bin/python [--peer …] [TRACE.json …] [--mb 27 415] [--rounds 8] [--markdown docs/performance.md]

A peer is installed by `pip install` of what `PEERS` pins, each in an environment of its own, and named with its interpreter; `json-load` needs none.
Rounds are interleaved and the least of each counts: what else the machine does only adds. Traces are given, or generated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from advisor.recordings.extension import SWITCH
from tests.benchmarks import generate, run
from tests.benchmarks.measure import SUBJECTS, as_installed, watched

OURS = "advisor, analyze -f json"


@dataclass(frozen=True)
class Peer:
    """What pip installs, and what its interpreter runs: a command's words, with {path} for the trace."""

    pinned: str
    command: tuple[str, ...]


# PyPI's tracelens is another project: AMD's is installed from its repository.
PEERS = {
    "json-load": Peer("", (str(SUBJECTS), "json_load", "{path}")),
    "gpu-idle": Peer("gpu-idle==0.1.0", ("-m", "analyzer", "{path}")),
    "HolisticTraceAnalysis": Peer("HolisticTraceAnalysis==0.5.0 with pandas<3", (str(SUBJECTS), "hta", "{path}")),
    # A copy of HolisticTraceAnalysis with more analyses: asked for the same.
    "traceinsight": Peer("traceinsight==0.6.1 with pandas<3", (str(SUBJECTS), "hta", "{path}")),
    "torch-tb-profiler": Peer("torch-tb-profiler==0.4.3", (str(SUBJECTS), "tensorboard", "{path}")),
    "perfdigest-mcp": Peer(
        "perfdigest-mcp==1.3.0",
        (
            "-c",
            "import sys; from perfdigest.server import app, tools; app._register_backends(); tools.summarize_report(sys.argv[1], 'chrome-trace')",
            "{path}",
        ),
    ),
    "TraceLens": Peer(
        "git+https://github.com/AMD-AGI/TraceLens",
        ("-c", "import sys; from TraceLens import TreePerfAnalyzer as T; T.from_file(sys.argv[1]).get_df_gpu_timeline()", "{path}"),
    ),
}


@dataclass(frozen=True)
class Used:
    """CPU seconds, user and system, and bytes of resident memory at the peak, of a process and all that it started."""

    cpu_s: float = float("inf")
    peak_bytes: float = float("inf")
    why: str = ""

    def least(self, other: Used) -> Used:
        return Used(min(self.cpu_s, other.cpu_s), min(self.peak_bytes, other.peak_bytes), self.why or other.why)


def used(command: list[str]) -> Used:
    """What one run of a command uses."""
    environment = as_installed(SWITCH)  # the decoder in C is used where it is built
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        peak, spent = watched(process)
        if process.returncode:
            errors.seek(0)
            return Used(why=(errors.read().decode(errors="replace").strip().splitlines() or [f"exit {process.returncode}"])[-1])
    return Used(spent.ru_utime + spent.ru_stime, peak)


def side_by_side(path: Path, pythons: dict[str, str], rounds: int) -> dict[str, Used]:
    """The least of the rounds, by peer, ours first."""
    commands = {OURS: [sys.executable, "-m", "advisor", "analyze", "-f", "json", "-o", "-", str(path)]}
    commands |= {name: [python, *(word.format(path=path) for word in PEERS[name].command)] for name, python in pythons.items()}
    found = dict.fromkeys(commands, Used())
    for _ in range(rounds):
        for name, command in commands.items():
            if not found[name].why:
                found[name] = found[name].least(used(command))
    return found


def table(path: Path, title: str, found: dict[str, Used]) -> list[str]:
    """Each peer in multiples of ours."""
    size, ours = path.stat().st_size, found[OURS]
    lines = [f"**{title}**, {size / 1e6:,.1f} MB", "", "| | CPU s | of ours | peak MB | of ours | of the file |", "|---|--:|--:|--:|--:|--:|"]
    for name, one in found.items():
        if one.why:
            lines.append(f"| {name} | failed: {one.why[:80]} | | | | |")
        else:
            memory = f"{one.peak_bytes / 1e6:,.0f} | {one.peak_bytes / ours.peak_bytes:.2f} | {one.peak_bytes / size:.2f}"
            lines.append(f"| {name} | {one.cpu_s:.2f} | {one.cpu_s / ours.cpu_s:.2f} | {memory} |")
    return [*lines, ""]


def measured(traces: Iterable[Path], sizes_mb: Iterable[float], pythons: dict[str, str], rounds: int) -> list[str]:
    """Tables of the traces and of generated ones, printed as they are made."""
    pinned = ", ".join(PEERS[name].pinned for name in pythons if PEERS[name].pinned)
    lines = run.shown([*run.machine({}), f"The least of {rounds} rounds. Peers: {pinned or 'none'}.", ""])
    with tempfile.TemporaryDirectory() as folder:
        for path in traces:
            lines += run.shown(table(path, path.name, side_by_side(path, pythons, rounds)))
        for mb in sizes_mb:
            made = Path(folder) / "trace.json"
            generate.kineto(made, int(mb * 1e6))
            lines += run.shown(table(made, "generated", side_by_side(made, pythons, rounds)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON; may be repeated")
    parser.add_argument("--mb", type=float, nargs="*", default=[27, 415])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--markdown", type=Path, help="whose table to replace")
    args = parser.parse_args()
    pythons = {"json-load": sys.executable} | dict(one.split("=", 1) for one in args.peer)
    lines = measured([path.resolve() for path in args.traces], args.mb, pythons, args.rounds)
    if args.markdown:
        run.put(args.markdown, "peers", lines)


if __name__ == "__main__":
    main()
