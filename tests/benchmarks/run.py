"""Holds reading and analysing against other readers of the same file, side by side in one run.

    python -m tests.benchmarks.run [--mb 10 100 1000] [--repeats 3] [--hta PYTHON] [--tensorboard PYTHON] [--markdown docs/performance.md]

Each is a process of its own; the least CPU time of several interleaved runs counts, peers once from 500 MB on. `--hta` and
`--tensorboard` name interpreters that have HolisticTraceAnalysis and torch-tb-profiler installed; without them these are
left out. `--markdown` replaces the tables between the markers of that file.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.sources import load
from tests.benchmarks import generate, memory_snapshot, nsys_export, xplane
from tests.benchmarks.measure import Cost, side_by_side
from tests.paths import ROOT

TITLES = {
    "simdjson": "pysimdjson, bare parse",
    "load": "advisor, load",
    "load_alone": "advisor, load in one process",
    "breakdowns": "advisor, load and three breakdowns",
    "analyze": "advisor, analyze --format json",
    "redact": "advisor, redact",
    "diff": "advisor, diff of two such traces",
    "history": "advisor, history",
    "json_load_each": "json.load of each",
    "unpickle": "pickle, no object of a class",
    "ncu_report": "ncu_report of NVIDIA, every metric",
    "read_snapshot": "advisor, read",
    "json_load": "json.load",
    "hta": "HolisticTraceAnalysis, load and three breakdowns",
    "tensorboard": "torch-tb-profiler, load",
    "sqlite_rows": "sqlite3, every row",
    "protobuf_walk": "Google's protobuf (upb), bare decode",
}
YARDSTICK = {
    "kineto": "simdjson",
    "nsys": "sqlite_rows",
    "jax": "protobuf_walk",
    "memory": "unpickle",
    "ncu": "ncu_report",
    "commands": "json_load",
    "history": "json_load_each",
}
SLOW = frozenset({"json_load", "hta", "tensorboard"})
SLOW_ONCE_FROM = 500e6


def table(title: str, path: Path, costs: dict[str, Cost], yardstick: str) -> list[str]:
    size, base = sum(one.stat().st_size for one in (path.iterdir() if path.is_dir() else [path])), costs[yardstick].seconds
    lines = [f"**{title}**, {size / 1e6:,.0f} MB", "", "| | CPU s | ratio | peak MB | of the file |", "|---|--:|--:|--:|--:|"]
    for name, cost in costs.items():
        if cost.why:
            lines.append(f"| {TITLES[name]} | failed: {cost.why[:80]} | | | |")
        else:
            figures = f"{cost.seconds:.2f} | {cost.seconds / base:.2f} | {cost.peak_bytes / 1e6:,.0f} | {cost.peak_bytes / size:.2f}"
            lines.append(f"| {TITLES[name]} | {figures} |")
    return [*lines, ""]


def measure(args: argparse.Namespace, folder: Path) -> list[str]:
    own = dict.fromkeys(("simdjson", "load", "load_alone", "breakdowns", "analyze"), sys.executable)
    peers = {"json_load": sys.executable, "hta": args.hta, "tensorboard": args.tensorboard}
    everyone = own | {name: python for name, python in peers.items() if python}
    traces = [(f"Kineto, {mb:g} MB asked for", mb, {}, everyone) for mb in args.mb]
    traces += [(f"Kineto, {what}", args.variants, options, own) for what, options in VARIANTS.items() if args.variants]
    lines: list[str] = []
    for title, mb, options, subjects in traces:
        path = folder / "trace.json"
        generate.kineto(path, int(mb * 1e6), **options)
        once = SLOW if path.stat().st_size >= SLOW_ONCE_FROM else frozenset()
        lines += shown(table(title, path, side_by_side(subjects, path, args.repeats, once), YARDSTICK["kineto"]))
        path.unlink()
    if args.kernels:
        path = folder / "export.sqlite"
        nsys_export.generate(path, args.kernels)
        subjects = dict.fromkeys(("sqlite_rows", "load", "analyze"), sys.executable)
        lines += shown(table(f"nsys, {args.kernels:,} kernels", path, side_by_side(subjects, path, args.repeats), YARDSTICK["nsys"]))
    for events in args.xplane:
        path = folder / "vm.xplane.pb"
        made = xplane.generate(path, events)
        subjects = dict.fromkeys(("protobuf_walk", "load"), sys.executable)
        lines += shown(table(f"XPlane, {made:,} events", path, side_by_side(subjects, path, args.repeats), YARDSTICK["jax"]))
        path.unlink()
    if args.snapshot:
        path = folder / "memory.pickle"
        memory_snapshot.write(path, args.snapshot)
        subjects = dict.fromkeys(("unpickle", "read_snapshot", "analyze"), sys.executable)
        lines += shown(table(f"Memory snapshot, {args.snapshot:,} events", path, side_by_side(subjects, path, args.repeats), YARDSTICK["memory"]))
    if args.ncu:
        path = folder / "pairs.ncu-rep"
        path.write_bytes(gzip.decompress((ROOT / "samples" / "kernels" / "pairs.ncu-rep.gz").read_bytes()))
        subjects = dict.fromkeys(("ncu_report", "read_snapshot", "analyze"), sys.executable)
        lines += shown(table("Nsight Compute, a recorded report", path, side_by_side(subjects, path, args.repeats), YARDSTICK["ncu"]))
    if args.commands:
        path = folder / "trace.json"
        generate.kineto(path, int(args.commands * 1e6))
        subjects = dict.fromkeys(("json_load", "analyze", "diff", "redact"), sys.executable)
        lines += shown(table("Commands, on a Kineto trace", path, side_by_side(subjects, path, args.repeats), YARDSTICK["commands"]))
    if args.reports:
        path = folder / "history"
        reports_of(path, args.reports)
        subjects = dict.fromkeys(("json_load_each", "history"), sys.executable)
        lines += shown(table(f"History of {args.reports:,} reports", path, side_by_side(subjects, path, args.repeats), YARDSTICK["history"]))
    return lines


def reports_of(directory: Path, count: int) -> None:
    """A history of that many commits, all with the report of a sample, each with figures of its own."""
    directory.mkdir()
    report = run(load(ROOT / "samples" / "launch-gap" / "slow.json.gz"), catalog().values()).to_json()
    first = datetime(2026, 1, 1)
    for number in range(count):
        stamp = (first + timedelta(hours=number)).strftime("%Y%m%dT%H%M%SZ")
        (directory / f"{stamp}-{number:07x}.json").write_bytes(re.sub(rb"\d\.\d+", rb"\g<0>%03d" % number, report))


VARIANTS: dict[str, dict[str, object]] = {
    "compact": {"layout": "compact"},
    "re-indented": {"layout": "indented"},
    "with Python stacks": {"stacks": True},
    "a million distinct names": {"names": 1_000_000},
}


def shown(lines: list[str]) -> list[str]:
    print("\n".join(lines), flush=True)
    return lines


def machine(peers: dict[str, str | None]) -> list[str]:
    """The processor, how busy it is, and the versions of all that was measured. peers: interpreters by the name of what they have installed."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cpu = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in ("numpy", "pandas", "msgspec", "pysimdjson"))]
    for name, python in peers.items():
        if python:
            code = f"import importlib.metadata as m; print('{name}', m.version('{name}'))"
            versions.append(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    busy = f"load average {os.getloadavg()[0]:.1f} when it began"
    return [f"Machine: {cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, {busy}. {', '.join(versions)}.", ""]


def put(path: Path, block: str, lines: list[str]) -> None:
    """Replace what stands between the markers of a block."""
    begin, end = f"<!-- {block}: begin -->", f"<!-- {block}: end -->"
    before, _, rest = path.read_text().partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n" + "\n".join(lines) + f"\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--variants", type=float, default=100, help="MB of each other layout and kind of trace; 0 for none")
    parser.add_argument("--kernels", type=int, default=1_000_000, help="kernels of the nsys export; 0 for none")
    parser.add_argument("--xplane", type=int, nargs="*", default=[1_500_000, 15_000_000], help="events of profiles of JAX; needs protobuf")
    parser.add_argument("--snapshot", type=int, default=1_000_000, help="events of the memory snapshot; 0 for none")
    parser.add_argument("--ncu", action=argparse.BooleanOptionalAction, default=True, help="a report of Nsight Compute; needs ncu-report")
    parser.add_argument("--commands", type=float, default=27, help="MB of the trace that other commands take; 0 for none")
    parser.add_argument("--reports", type=int, default=1000, help="reports of the history; 0 for none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hta", help="an interpreter with HolisticTraceAnalysis")
    parser.add_argument("--tensorboard", help="an interpreter with torch-tb-profiler")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peers = {"HolisticTraceAnalysis": args.hta, "torch-tb-profiler": args.tensorboard}
        lines = [*shown(machine(peers)), *measure(args, Path(folder))]
    if args.markdown:
        put(args.markdown, "measured", lines)


if __name__ == "__main__":
    main()
