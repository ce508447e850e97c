"""Record the sample traces on a GPU.

    python samples/record.py --out samples
    python samples/record.py --out samples --only llama_pieces,focal_loss
    python samples/record.py --out /tmp/c --only reach_spikes       (a program of corpus/programs)
    python samples/record.py --list
    python samples/record.py --out /tmp/s --tiny --device cpu     (no GPU: shows that every program runs)

Every step is timed before any is profiled, since CUPTI, once loaded, slows launches for the rest of the process.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# CUPTI crashes or loses CUDA-graph kernels if it is torn down and loaded again between profiles.
os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
os.environ.setdefault("TEARDOWN_CUPTI", "0")

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from traces import gpu_busy_us, scrub, write

from workloads import PROGRAMS, REGISTRY, Setup, Workload, workload
from workloads.base import Make, Step

ROOT = Path(__file__).resolve().parent
SCHEDULE = {"wait": 1, "warmup": 2, "active": 3}
WARMUP_STEPS = 10  # compiling, CUDA-graph recording and cuDNN's choice of algorithm are over by then
ROUNDS = 25
ROUND_S = 0.1  # long enough that the timer and the final synchronize() do not count


@dataclass
class Recording:
    """One workload under way: its steps, and what was measured of them."""

    workload: Workload
    steps: dict[str, Step] = field(default_factory=dict)
    times_ms: dict[str, float] = field(default_factory=dict)
    gpu_ms: dict[str, float] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        return {**self.workload.entry(self.times_ms), "gpu_ms": self.gpu_ms}


def timed(step: Step, count: int, setup: Setup) -> float:
    """Seconds a step, with one synchronize() after `count` of them."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    setup.synchronize()
    return (time.perf_counter() - start) / count


def repeats_of(step: Step, setup: Setup) -> int:
    """How many warm steps take ROUND_S."""
    timed(step, 2 if setup.tiny else WARMUP_STEPS, setup)
    return 2 if setup.tiny else max(2, min(500, round(ROUND_S / timed(step, 3, setup))))


def step_times_ms(steps: dict[str, Step], counts: dict[str, int], setup: Setup) -> dict[str, float]:
    """Medians of the unprofiled step times, with what made a whole round slower taken out. The sides take turns, in another order each round."""
    times: dict[str, list[float]] = {side: [] for side in steps}
    order, chance = list(steps), random.Random(0)
    for _ in range(1 if setup.tiny else ROUNDS):
        for side in order:
            timed(steps[side], 1, setup)
            times[side].append(1e3 * timed(steps[side], counts[side], setup))
        chance.shuffle(order)
    return dict(zip(steps, polished(list(times.values())), strict=True))


def polished(times: list[list[float]]) -> list[float]:
    """Each side's typical time, of times by side and round, by Tukey's median polish of their logarithms.

    On a shared machine the host's speed changes by half within seconds, for all sides that run then: plain medians of one side then differ from
    those of its twin by more than most fixes gain, and the least times are those of whoever had the machine alone for a moment.
    """
    left = [[math.log(time) for time in side] for side in times]
    sides, rounds = [0.0] * len(left), [0.0] * len(left[0])
    for _ in range(20):
        for at, typical in enumerate(statistics.median(side) for side in left):
            sides[at] += typical
            left[at] = [time - typical for time in left[at]]
        slower = [statistics.median(of_round) for of_round in zip(*left, strict=True)]
        rounds = [one + more for one, more in zip(rounds, slower, strict=True)]
        left = [[time - more for time, more in zip(side, slower, strict=True)] for side in left]
    return [math.exp(side + statistics.median(rounds)) for side in sides]


def trace_of(step: Step, workload: Workload, setup: Setup) -> dict[str, Any]:
    """The trace of three consecutive steps, as a user would record it: nothing waits between the steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setup.cuda else [])]
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        with profile(
            activities=activities,
            schedule=schedule(**SCHEDULE, repeat=1),
            on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
            record_shapes=True,
            with_stack=workload.with_stack,
        ) as prof:
            for _ in range(sum(SCHEDULE.values())):
                step()
                prof.step()
        return json.loads(path.read_text())


AGAIN = "slow again"
"""A second copy of the slow side, as what one copy in a process takes differs from the next by several percent, which each fix would seem to gain or lose."""


def measure(recording: Recording, setup: Setup) -> None:
    """Time all sides; a fix that does not run is left out, and said."""
    workload, steps, counts = recording.workload, {}, {}
    further = {**workload.alone, **({AGAIN: workload.make_slow} if workload.alone and workload.make_slow else {})}
    for side, make in {**workload.sides(), **further}.items():

        def warmed(side: str = side, make: Make = make) -> None:
            torch.manual_seed(0)
            step = make(setup)
            counts[side] = repeats_of(step, setup)
            steps[side] = step

        if not survived(f"  {workload.name} {side}", warmed) and side not in further:
            raise RuntimeError(f"{side} does not run")
    recording.times_ms = step_times_ms(steps, counts, setup)
    if AGAIN in recording.times_ms:
        both = recording.times_ms["slow"], recording.times_ms.pop(AGAIN)
        print(f"  {workload.name}: two copies of the slow side took {both[0]:.3f} and {both[1]:.3f} ms a step", flush=True)
        recording.times_ms["slow"] = math.sqrt(both[0] * both[1])
    recording.steps = {side: steps[side] for side in workload.recorded()}


def record(recording: Recording, setup: Setup, out: Path) -> None:
    workload = recording.workload
    for side, step in recording.steps.items():
        timed(step, 3, setup)
        trace = scrub(trace_of(step, workload, setup), ROOT)
        trace["traceName"] = Path(workload.path(side)).name.removesuffix(".gz")
        recording.gpu_ms[side] = gpu_busy_us(trace) / 1e3 / SCHEDULE["active"]
        size = write(trace, out / workload.path(side))
        print(
            f"{workload.name:22s} {side:5s} {recording.times_ms[side]:9.3f} ms a step, GPU busy {recording.gpu_ms[side]:9.3f} ms,"
            f" {len(trace['traceEvents']):6d} events, {size / 1e3:6.0f} kB",
            flush=True,
        )
    recording.steps.clear()
    gc.collect()


def survived(what: str, work: Callable[[], None]) -> bool:
    """Run one workload's part; report what it raises and let the others go on."""
    start = time.perf_counter()
    try:
        work()
    except Exception:
        print(f"{what} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    print(f"  {what}: {time.perf_counter() - start:.1f} s", flush=True)
    return True


def save_manifest(out: Path, recordings: list[Recording], setup: Setup) -> None:
    """Write manifest.json; cases of an earlier run that this one did not record again stay. Cases of another device say which it was."""
    path = out / "manifest.json"
    device = torch.cuda.get_device_name() if setup.cuda else setup.device.type
    here = f"one {device}, torch {torch.__version__}"
    recorded = f"{here}; step times are medians of unprofiled runs"
    earlier = json.loads(path.read_text()) if path.exists() else {"recorded": recorded, "cases": {}}
    cases, recorded = earlier["cases"], earlier["recorded"]
    elsewhere = {} if recorded.startswith(f"{here};") else {"recorded": here}
    cases |= {recording.workload.name: recording.entry() | elsewhere for recording in recordings}
    # Those of record_ranks.py come last.
    ordered = {name: cases[name] for name in (*REGISTRY, *cases) if name in cases}
    path.write_text(json.dumps({"recorded": recorded, "cases": ordered}, indent=1) + "\n")


def run(names: list[str], setup: Setup, out: Path, budget_s: float) -> bool:
    """Measure, then record. Past `budget_s` no further workload is measured; those that were are still recorded."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    out.mkdir(parents=True, exist_ok=True)
    start, ready, done = time.perf_counter(), [], []
    for name in names:
        if time.perf_counter() - start > budget_s:
            print(f"{name}: not measured, out of time", file=sys.stderr, flush=True)
            continue
        try:
            recording = Recording(workload(name))
        except ModuleNotFoundError as error:  # some programs of the corpus need libraries that the others do without
            print(f"{name}: not measured, as {error.name} is missing", file=sys.stderr, flush=True)
            continue
        if survived(f"measuring {name}", lambda r=recording: measure(r, setup)):
            ready.append(recording)
    for recording in ready:
        if survived(f"recording {recording.workload.name}", lambda r=recording: record(r, setup, out)):
            done.append(recording)
            save_manifest(out, done, setup)
    print(f"{len(done)} of {len(names)} workloads recorded in {time.perf_counter() - start:.0f} s", flush=True)
    return len(done) == len(names)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder to write the traces and manifest.json to")
    parser.add_argument("--only", default="", help="names of workloads, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the workloads and exit")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, nothing compiled")
    parser.add_argument("--budget-s", type=float, default=240.0, help="start measuring nothing new after this many seconds")
    args = parser.parse_args()
    unknown = {name for name in args.only.split(",") if name and name not in REGISTRY and not (PROGRAMS / f"{name}.py").exists()}
    if unknown:
        parser.error(f"no workload called {', '.join(sorted(unknown))}; --list prints them")
    if not args.out and not args.list:
        parser.error("--out is needed")
    return args


def main() -> int:
    args = arguments()
    if args.list:
        for one in REGISTRY.values():
            print(f"{one.name:22s} {one.rule or 'healthy':26s} {one.what}")
        return 0
    names = [name for name in args.only.split(",") if name] or list(REGISTRY)
    return 0 if run(names, Setup(torch.device(args.device), args.tiny), args.out, args.budget_s) else 1


if __name__ == "__main__":
    sys.exit(main())
