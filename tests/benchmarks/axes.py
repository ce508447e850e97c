"""How the cost of an analysis grows along each axis of a trace, one at a time.

    python -m tests.benchmarks.axes                 # every axis, a table
    python -m tests.benchmarks.axes streams depth   # some

For each axis a trace is made with that axis ten times as long and everything else as it was, and both are analysed in
processes of their own. The figure is CPU time, without the time that starting and importing take; ten times the work
may cost at most twelve times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

Event = dict[str, Any]
PID, MAIN, STREAM = 100, 100, 7
GROWTH = 10
LIMIT = 12.0
"""Ten times any axis costs at most this many times the CPU."""


@dataclass
class Maker:
    """Writes events of one small program; times in microseconds, the GPU follows the host in each stream."""

    clock: float = 1000.0
    free: dict[tuple[int, int], float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    correlation: Iterator[int] = field(default_factory=lambda: count(1))

    def span(self, cat: str, name: str, start: float, dur: float, tid: int = MAIN, pid: int = PID, **args: object) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, "args": args})

    def op(
        self,
        name: str,
        kernel: str,
        *,
        gpu_us: float = 8.0,
        tid: int = MAIN,
        stream: int = STREAM,
        device: int = 0,
        depth: int = 1,
    ) -> None:
        """An op `depth` levels deep, its launch and its kernel."""
        start, number = self.clock, next(self.correlation)
        for level in range(depth):
            self.span("cpu_op", name, start + 0.01 * level, 6 + 0.02 * (depth - level), tid, **{"External id": number})
        at = start + 0.01 * depth + 0.5
        self.span("cuda_runtime", "cudaLaunchKernel", at, 3, tid, correlation=number, **{"External id": number})
        begin = max(self.free.get((device, stream), 0.0), at + 4)
        self.free[device, stream] = begin + gpu_us
        where = {"device": device, "stream": stream, "correlation": number, "External id": number}
        self.span("kernel", kernel, begin, gpu_us, stream, device, grid=[64, 1, 1], block=[128, 1, 1], **where)
        self.clock = start + 7 + 0.02 * depth

    def wait(self) -> None:
        """The host waits until all streams are empty."""
        end = max(self.free.values(), default=self.clock)
        dur = max(end - self.clock, 0) + 2
        self.span("cuda_runtime", "cudaDeviceSynchronize", self.clock, dur, correlation=next(self.correlation))
        self.clock += dur + 1

    def step(self, number: int, ops: int, name: Callable[[int], str] = lambda i: f"aten::op{i % 7}", **how: int) -> None:
        start = self.clock
        for i in range(ops):
            self.op(name(i), f"kernel_{name(i)}<float>", **how)
        self.wait()
        self.span("user_annotation", f"ProfilerStep#{number}", start, self.clock - start - 0.5)


def _steps(n: int, ops: int = 40) -> Maker:
    made = Maker()
    for number in range(n):
        made.step(number, ops)
    return made


def _names(n: int) -> Maker:
    made = Maker()
    for number in range(4):
        made.step(number, max(n, 50), lambda i: f"aten::name{i % n}")
    return made


def _stems(n: int) -> Maker:
    """Ranges of the program's own, each of another stem, once a step."""
    made = Maker()
    for number in range(4):
        start = made.clock
        for i in range(n):
            before = made.clock
            made.op(f"aten::op{i % 7}", "kernel")
            made.span(
                "user_annotation",
                f"stage {chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676 % 26)}",
                before,
                made.clock - before - 0.1,
            )
        made.wait()
        made.span("user_annotation", f"ProfilerStep#{number}", start, made.clock - start - 0.5)
    return made


def _ranges(n: int) -> Maker:
    """Ranges of a few stems that end in a number, without a profiler's step."""
    made = Maker()
    for i in range(n):
        before = made.clock
        for k in range(5):
            made.op(f"aten::op{k}", "kernel")
        made.span("user_annotation", f"request {i}", before, made.clock - before - 0.1)
    made.wait()
    return made


def _window(n: int) -> Maker:
    """One window of pointwise kernels without a period: each op's number of repetitions differs."""
    made, value = Maker(), 12345
    pointwise = ["aten::add", "aten::mul", "aten::relu", "aten::sub", "aten::exp", "aten::tanh", "aten::mm"]
    kernels = ["vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"] * 6 + ["sm90_xmma_gemm_f32f32"]
    for _ in range(n):
        value = (value * 1103515245 + 12345) % 2**31
        which = value // 65536 % 7
        made.op(pointwise[which], kernels[which])
    made.wait()
    return made


def _streams(n: int) -> Maker:
    made = Maker()
    for number in range(4):
        start = made.clock
        for i in range(max(n, 40)):
            made.op(f"aten::op{i % 7}", "kernel", stream=7 + i % n)
        made.wait()
        made.span("user_annotation", f"ProfilerStep#{number}", start, made.clock - start - 0.5)
    return made


def _threads(n: int) -> Maker:
    made = Maker()
    for number in range(4):
        start = made.clock
        for i in range(max(n, 40)):
            made.op(f"aten::op{i % 7}", "kernel", tid=MAIN + i % n)
        made.wait()
        made.span("user_annotation", f"ProfilerStep#{number}", start, made.clock - start - 0.5)
    return made


def _devices(n: int) -> Maker:
    made = Maker()
    for number in range(4):
        start = made.clock
        for i in range(n * 20):
            made.op(f"aten::op{i % 7}", "kernel", device=i % n)
        made.wait()
        made.span("user_annotation", f"ProfilerStep#{number}", start, made.clock - start - 0.5)
    return made


def _depth(n: int) -> Maker:
    made = Maker()
    for number in range(4):
        made.step(number, 40, depth=n)
    return made


def _waits(n: int) -> Maker:
    made = Maker()
    for number in range(4):
        start = made.clock
        for i in range(n):
            made.op(f"aten::op{i % 7}", "kernel")
            made.wait()
        made.span("user_annotation", f"ProfilerStep#{number}", start, made.clock - start - 0.5)
    return made


AXES: dict[str, tuple[Callable[[int], Maker], int]] = {
    "steps": (_steps, 150),
    "ops a step": (lambda n: _steps(4, n), 1500),
    "ops in one window": (lambda n: _steps(1, n), 6000),
    "aperiodic window": (_window, 6000),
    "names": (_names, 800),
    "stems": (_stems, 1000),
    "ranges": (_ranges, 1200),
    "streams": (_streams, 150),
    "threads": (_threads, 150),
    "devices": (_devices, 25),
    "depth": (_depth, 100),
    "waits": (_waits, 1200),
}
"""What is made ten times as long, and how long it is at first: long enough that its work is seen beside the fixed cost."""


def write(axis: str, n: int, path: Path) -> None:
    make = AXES[axis][0](n)
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 10**11}
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": make.events}))


_CHILD = """
import sys, time, resource
import advisor
advisor.analyze(sys.argv[1])  # imports, and what is made once
before = time.process_time()
advisor.analyze(sys.argv[2])
print(time.process_time() - before)
"""


def cpu_s(path: Path, warm: Path) -> float:
    """CPU seconds of one analysis in a process that has analysed another trace before."""
    done = subprocess.run([sys.executable, "-c", _CHILD, str(warm), str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def growth(axis: str, folder: Path) -> tuple[float, float]:
    """CPU seconds at the axis' first length and at ten times it; what looks like too much is measured again, against noise."""
    length = AXES[axis][1]
    paths = [folder / "short.json", folder / "long.json"]
    write(axis, length, paths[0])
    write(axis, length * GROWTH, paths[1])
    short, long = (cpu_s(path, paths[0]) for path in paths)
    if long > LIMIT * short:
        long = min(long, cpu_s(paths[1], paths[0]))
    return short, long


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", default=list(AXES), help="; ".join(AXES))
    args = parser.parse_args()
    print("| Axis | from | CPU ms | to | CPU ms | ratio |\n|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for axis in args.axes:
            short, long = growth(axis, Path(folder))
            length = AXES[axis][1]
            print(
                f"| {axis} | {length} | {short * 1e3:.0f} | {length * GROWTH} | {long * 1e3:.0f} | {long / short:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
