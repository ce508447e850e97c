"""Measure what recording costs the host, per recorded event and by what is recorded (advisor/knowledge/recording_cost.toml).

    python samples/profiler_cost.py                  (needs a GPU: the table, as TOML)
    python samples/profiler_cost.py --nsys PATH      (the same under Nsight Systems)
    python samples/profiler_cost.py --loops          (times of the bare loops; what nsys runs)

Four loops hold one kind of event each, so that no fit has to tell them apart: ops of the framework on the host, calls of
the CUDA runtime, launches, and Python functions. Each runs without a profiler first and then under it, in a process of its
own for each way of recording, since CUPTI slows calls for as long as the process lives.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

COUNT, REPEATS = 4000, 7
WAYS: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "stack": {"with_stack": True},
    "shapes+stack": {"record_shapes": True, "with_stack": True},
    "all": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}


def _nothing(x: int) -> int:
    return x


def loops() -> dict[str, Callable[[], None]]:
    """Each runs COUNT times one thing."""
    import torch

    host, device = torch.zeros(4), torch.zeros(4, device="cuda")
    event = torch.cuda.Event()

    def ops() -> None:
        for _ in range(COUNT):
            torch.neg(host)

    def calls() -> None:
        for _ in range(COUNT):
            event.record()

    def launches() -> None:
        for i in range(COUNT):
            device.neg_()
            if i % 200 == 0:  # a full launch queue would block the host
                torch.cuda.synchronize()

    def functions() -> None:
        for i in range(COUNT):
            _nothing(i)

    return {"ops": ops, "calls": calls, "launches": launches, "functions": functions}


def timed(loop: Callable[[], None]) -> float:
    """µs for each turn, the median of several runs."""
    import torch

    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loop()
        times.append((time.perf_counter() - start) / COUNT * 1e6)
    return statistics.median(times)


def counted(trace: dict[str, Any]) -> dict[str, float]:
    """Recorded events for each turn, by category."""
    found: dict[str, float] = {}
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            found[event.get("cat", "")] = found.get(event.get("cat", ""), 0.0) + 1 / (COUNT * REPEATS)
    return found


def measure(way: str) -> dict[str, Any]:
    """Times without and with the profiler, and the events that it recorded, by loop."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    made = loops()
    for loop in made.values():
        loop()
    bare = {name: timed(loop) for name, loop in made.items()}
    result: dict[str, Any] = {}
    for name, loop in made.items():
        with TemporaryDirectory() as folder:
            path = Path(folder, "t.json")
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **WAYS[way]) as recorder:
                with_profiler = timed(loop)
            recorder.export_chrome_trace(str(path))
            events = counted(json.loads(path.read_text()))
        result[name] = {"bare_us": bare[name], "recorded_us": with_profiler, "events": events}
    torch.cuda.synchronize()
    return result


def under_nsys(nsys: str) -> dict[str, Any]:
    """The bare loops, and the same in a process that nsys records."""
    this = [sys.executable, str(Path(__file__)), "--loops"]
    bare = json.loads(subprocess.run(this, capture_output=True, check=True).stdout.splitlines()[-1])
    with TemporaryDirectory() as folder:
        command = [nsys, "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", str(Path(folder, "r")), *this]
        lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
        recorded = json.loads(next(line for line in lines if line.startswith("{")))
    return {name: {"bare_us": bare[name], "recorded_us": recorded[name]} for name in bare}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", action="store_true")
    parser.add_argument("--way", choices=list(WAYS))
    parser.add_argument("--nsys")
    args = parser.parse_args()
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    if args.loops:
        made = loops()
        for loop in made.values():
            loop()
        print(json.dumps({name: timed(loop) for name, loop in made.items()}))
    elif args.way:
        print(json.dumps(measure(args.way)))
    elif args.nsys:
        print(json.dumps({"nsys": under_nsys(args.nsys)}, indent=1))
    else:
        for way in WAYS:
            this = [sys.executable, str(Path(__file__)), "--way", way]
            print(json.dumps({way: json.loads(subprocess.run(this, capture_output=True, check=True).stdout.splitlines()[-1])}), flush=True)


if __name__ == "__main__":
    main()
