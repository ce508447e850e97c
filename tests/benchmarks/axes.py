"""How the cost of an analysis grows along each axis of a trace, one at a time.

    python -m tests.benchmarks.axes                 # every axis, a table
    python -m tests.benchmarks.axes streams depth   # some

For each axis a trace is made with that axis ten times as long and everything else as it was, and both are analysed in
a process of their own. The figure is CPU time, without the time that starting and importing take; ten times the work
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
from typing import Any, NamedTuple

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
        **args: object,
    ) -> None:
        """An op `depth` levels deep, its launch and its kernel. args: what else the op is recorded with."""
        start, number = self.clock, next(self.correlation)
        for level in range(depth):
            self.span("cpu_op", name, start + 0.01 * level, 6 + 0.02 * (depth - level), tid, **{"External id": number}, **args)
        at = start + 0.01 * depth + 0.5
        self.span("cuda_runtime", "cudaLaunchKernel", at, 3, tid, correlation=number, **{"External id": number})
        begin = max(self.free.get((device, stream), 0.0), at + 4)
        self.free[device, stream] = begin + gpu_us
        where = {"device": device, "stream": stream, "correlation": number, "External id": number}
        self.span("kernel", kernel, begin, gpu_us, stream, device, grid=[64, 1, 1], block=[128, 1, 1], **where)
        self.clock = start + 7 + 0.02 * depth

    def copy(self) -> None:
        """A copy to the device on the stream of the kernels."""
        number, start, where = next(self.correlation), self.clock, (0, STREAM)
        self.span("cuda_runtime", "cudaMemcpyAsync", start, 3, correlation=number)
        begin = max(self.free.get(where, 0.0), start + 4)
        self.free[where] = begin + 2
        self.span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin, 2, STREAM, 0, device=0, stream=STREAM, correlation=number, bytes=4096)
        self.clock += 5

    def wait(self) -> None:
        """The host waits until all streams are empty."""
        end = max(self.free.values(), default=self.clock)
        dur = max(end - self.clock, 0) + 2
        self.span("cuda_runtime", "cudaDeviceSynchronize", self.clock, dur, correlation=next(self.correlation))
        self.clock += dur + 1

    def steps(self, n: int, ops: int, write: Callable[[Maker, int], None] | None = None) -> Maker:
        """`n` steps of so many ops, each written by `write`, and a wait at the end of each."""
        for number in range(n):
            start = self.clock
            for i in range(ops):
                (write or plain)(self, i)
            self.wait()
            self.annotate(f"ProfilerStep#{number}", start, 0.5)
        return self

    def annotate(self, name: str, start: float, short_us: float = 0.1) -> None:
        """A range of the program's own from `start` to a little before now."""
        self.span("user_annotation", name, start, self.clock - start - short_us)


def plain(made: Maker, i: int, **how: Any) -> None:
    """One of seven ops, in turn."""
    made.op(f"aten::op{i % 7}", f"kernel_aten::op{i % 7}<float>", **how)


def _names(n: int) -> Maker:
    return Maker().steps(4, max(n, 50), lambda made, i: made.op(f"aten::name{i % n}", f"kernel_aten::name{i % n}<float>"))


def _stems(n: int) -> Maker:
    """Ranges of the program's own, each of another stem, once a step."""

    def within(made: Maker, i: int) -> None:
        before = made.clock
        plain(made, i)
        made.annotate(f"stage {chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676 % 26)}", before)

    return Maker().steps(4, n, within)


def _ranges(n: int) -> Maker:
    """Ranges of a few stems that end in a number, without a profiler's step."""
    made = Maker()
    for i in range(n):
        before = made.clock
        for k in range(5):
            plain(made, k)
        made.annotate(f"request {i}", before)
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


def _waits(n: int) -> Maker:
    def waiting(made: Maker, i: int) -> None:
        plain(made, i)
        made.wait()

    return Maker().steps(4, n, waiting)


def _shapes(n: int) -> Maker:
    """Ops on tensors of as many sizes."""

    def sized(made: Maker, i: int) -> None:
        plain(made, i, **{"Input Dims": [[i % n + 1, 64]], "Input type": ["float"]})

    return Maker().steps(4, max(n, 50), sized)


def _copies(n: int) -> Maker:
    def copying(made: Maker, i: int) -> None:
        plain(made, i)
        made.copy()

    return Maker().steps(4, n, copying)


def _frames(n: int) -> Maker:
    """Python functions that call each other, as deep, around each of a few ops."""
    number = count(1)

    def called(made: Maker, i: int) -> None:
        start, around = made.clock, None
        made.clock += 0.01 * n
        plain(made, i)
        for level in range(n):
            frame = next(number)
            ids = {"Python id": frame, "Python parent id": around}
            made.span("python_function", f"model.py({level}): forward", start + 0.01 * level, made.clock - start + 0.01 * (n - 2 * level), **ids)
            around = frame
        made.clock += 0.01 * n

    return Maker().steps(4, 10, called)


AXES: dict[str, tuple[Callable[[int], Maker], int]] = {
    "steps": (lambda n: Maker().steps(n, 40), 150),
    "ops a step": (lambda n: Maker().steps(4, n), 1500),
    "ops in one window": (lambda n: Maker().steps(1, n), 6000),
    "aperiodic window": (_window, 6000),
    "names": (_names, 800),
    "stems": (_stems, 1000),
    "ranges": (_ranges, 1200),
    "streams": (lambda n: Maker().steps(4, max(n, 40), lambda made, i: plain(made, i, stream=STREAM + i % n)), 150),
    "threads": (lambda n: Maker().steps(4, max(n, 40), lambda made, i: plain(made, i, tid=MAIN + i % n)), 150),
    "devices": (lambda n: Maker().steps(4, n * 20, lambda made, i: plain(made, i, device=i % n)), 25),
    "depth": (lambda n: Maker().steps(4, 40, lambda made, i: plain(made, i, depth=n)), 100),
    "waits": (_waits, 1200),
    "shapes": (_shapes, 800),
    "copies": (_copies, 1200),
    "Python frames": (_frames, 200),
}
"""What is made ten times as long, and how long it is at first: long enough that its work is seen beside the fixed cost."""


def write(axis: str, n: int, path: Path) -> None:
    make = AXES[axis][0](n)
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132, "totalGlobalMem": 10**11}
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": make.events}))


_CHILD = """
import sys, time
import advisor
from advisor.reports import formats
page = formats()["html"].render
page(advisor.analyze(sys.argv[1]))  # imports, and what is made once
for path in sys.argv[1:]:
    before = time.process_time()
    report = advisor.analyze(path)
    analysed = time.process_time()
    page(report)
    print(analysed - before, time.process_time() - analysed)
"""


class Cost(NamedTuple):
    """CPU seconds of an analysis, and of its page after it."""

    analysis: float
    page: float

    def least(self, other: Cost) -> Cost:
        return Cost(*map(min, self, other))

    def above(self, short: Cost) -> bool:
        """Whether any part is more than `LIMIT` times that of a trace that is shorter by `GROWTH`."""
        return any(long > LIMIT * part for long, part in zip(self, short, strict=True))


def cpu_s(*paths: Path) -> list[Cost]:
    """What each costs, one after another in a process that has done the first before."""
    done = subprocess.run([sys.executable, "-c", _CHILD, *map(str, paths)], capture_output=True, text=True, check=True)
    return [Cost(*map(float, line.split())) for line in done.stdout.splitlines()]


def growth(axis: str, folder: Path) -> tuple[Cost, Cost]:
    """What the axis' first length costs, and ten times it; what looks like too much is measured again, against noise."""
    length = AXES[axis][1]
    paths = [folder / "short.json", folder / "long.json"]
    write(axis, length, paths[0])
    write(axis, length * GROWTH, paths[1])
    short, long = cpu_s(*paths)
    if long.above(short):
        long = long.least(cpu_s(*paths)[1])
    return short, long


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="*", default=list(AXES), help="; ".join(AXES))
    args = parser.parse_args()
    print("| Axis | from | analysis, CPU ms | page | to | analysis | page | ratio | of pages |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for axis in args.axes:
            short, long = growth(axis, Path(folder))
            length = AXES[axis][1]
            print(
                f"| {axis} | {length} | {short.analysis * 1e3:.0f} | {short.page * 1e3:.0f} "
                f"| {length * GROWTH} | {long.analysis * 1e3:.0f} | {long.page * 1e3:.0f} "
                f"| {long.analysis / short.analysis:.1f} | {long.page / short.page:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
