"""A little more of what says nothing of the program: work too small to matter, a thread that only watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import numpy as np

from advisor.lab.stability.events import CALLS, ON_DEVICE, ON_HOST, Event, Recorded, arguments, begins, ends, moved_event, spans
from advisor.lab.stability.times import STEP

Place = TypeVar("Place")
US = 1000  # nanoseconds
TINY_NS = 1500
"""A kernel that fills a few numbers."""
FREE_NS = 6 * US
"""Between two events of a thread: room for a launch, which takes some 3 µs, and for its op."""
TF32 = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize32x32x8_stage3_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)"
)
OPS = ("cpu_op", "Operator")
BORROWED_FROM_NS = 100 * US
"""A kernel of this length lends the time for a tiny kernel after it: 2 % of its own."""


def side_stream(trace: Recorded, rng: Random) -> Recorded | None:
    """A tiny kernel per step on its own stream, launched while the host has nothing else to do."""
    stage = _Stage.create(trace)
    if stage is None or (places := _alike_place([dict(stage.pauses(*step)) for step in stage.steps])) is None:
        return None
    stream, added = stage.free_stream(), []
    for number, free in enumerate(places):
        call = free + US, free + 4 * US
        added += stage.launch(number, call, (call[1] + 2 * US, call[1] + 2 * US + TINY_NS), FILL, stream)
    return trace.with_events([*trace.events, *added])


def one_convolution_in_tf32(trace: Recorded, rng: Random) -> Recorded | None:
    """A tiny TF32 convolution per step on the busiest stream: the dtype of a single op says nothing of the others."""
    stage = _Stage.create(trace)
    if stage is None or (places := _alike_place([dict(stage.between_kernels(*step)) for step in stage.steps])) is None:
        return None
    shapes = any("Input Dims" in arguments(e) or "Input dims" in arguments(e) for e in spans(trace, frozenset(("cpu_op",))))
    shorter: dict[int, int] = {}
    added: list[Event] = []
    for number, (free, start, lender) in enumerate(places):
        if lender is not None:
            shorter[id(lender)] = start - US // 2
        added += stage.convolution(free, shapes)
        added += stage.launch(number, (free + 2 * US, free + 4 * US), (start, start + TINY_NS), TF32, stage.stream)
    events = [moved_event(e, begins(e), shorter[id(e)]) if id(e) in shorter else e for e in trace.events]
    return trace.with_events([*events, *added])


def _alike_place(of_steps: list[dict[int, Place]]) -> list[Place] | None:
    """A place in each step, by the share of the step before it: a program does the same in each. The first place of each step if no place is in all;
    None if a step has none."""
    if not all(of_steps):
        return None
    shared = set.intersection(*map(set, of_steps))
    return [places[min(shared or places)] for places in of_steps]


def watching_thread(trace: Recorded, rng: Random) -> Recorded | None:
    """A Python thread that sleeps and polls, with its frames, next to the working threads."""
    host = [e for e in spans(trace, ON_HOST) if type(e.get("pid")) is int and type(e.get("tid")) is int]
    if not host:
        return None
    pid = Counter(e["pid"] for e in host).most_common(1)[0][0]
    tid = max(e["tid"] for e in host) + 1
    first, last = min(map(begins, host)), max(map(ends, host))
    number = 1 + max((n for e in host if type(n := arguments(e).get("Python id")) is int), default=0)
    frames = [
        ("threading.py(1002): _bootstrap", first, last),
        ("threading.py(982): run", first + 100, last - 100),
        ("watch.py(12): watch", first + 200, last - 200),
    ]
    looks = np.linspace(first + 300, last - 300, 41).astype(np.int64).tolist()
    frames += [("<built-in function sleep>", a, b - 200) for a, b in pairwise(looks)]
    added = [
        {
            "ph": "X", "cat": "python_function", "name": name, "pid": pid, "tid": tid, "ts": a / 1000, "dur": (b - a) / 1000,
            "args": {"Python id": number + i, "Python parent id": number + min(i, 3) - 1 if i else None},
        }
        for i, (name, a, b) in enumerate(frames)
        if b > a
    ]  # fmt: skip
    named = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": "thread watch"}}
    return trace.with_events([*trace.events, named, *added])


@dataclass
class _Stage:
    """Free time in a trace.

    steps: begin and end of each in ns, by the host.

    free: unrecorded intervals of the thread that launches most, ignoring enclosing ranges.

    stream: the busiest stream. device: its device. op: its kernels, by start, with their launches."""

    pid: int
    tid: int
    steps: list[tuple[int, int]]
    free: list[tuple[int, int]]
    device: int
    stream: int
    kernels: list[Event]
    launched: dict[Any, int]
    correlation: int

    @classmethod
    def create(cls, trace: Recorded) -> _Stage | None:
        """None if the trace marks no steps, or no launch is known."""
        marks = sorted({(begins(e), ends(e)) for e in spans(trace, frozenset(("user_annotation", "cpu_op"))) if STEP.match(str(e.get("name", "")))})
        calls = [e for e in spans(trace, CALLS) if type(e.get("pid")) is int and type(e.get("tid")) is int and type(arguments(e).get("correlation")) is int]
        device = [e for e in spans(trace, ON_DEVICE) if type(arguments(e).get("stream")) is int and "correlation" in arguments(e)]
        launched = {arguments(e)["correlation"]: begins(e) for e in calls}
        known = [e for e in device if arguments(e)["correlation"] in launched]
        if not marks or not known:
            return None
        busiest: Counter[tuple[Any, int]] = Counter()
        for e in known:
            busiest[e.get("pid"), arguments(e)["stream"]] += ends(e) - begins(e)
        (gpu, stream), _ = busiest.most_common(1)[0]
        of_launch = {arguments(e)["correlation"] for e in known}
        pid, tid = Counter((e["pid"], e["tid"]) for e in calls if arguments(e)["correlation"] in of_launch).most_common(1)[0][0]
        mine = [e for e in spans(trace, ON_HOST) if (e.get("pid"), e.get("tid")) == (pid, tid)]
        return cls(
            pid, tid, marks, _free(mine), gpu, stream,
            sorted((e for e in device if (e.get("pid"), arguments(e)["stream"]) == (gpu, stream)), key=begins),
            launched, 1 + max(n for e in (*calls, *device) if type(n := arguments(e)["correlation"]) is int),
        )  # fmt: skip

    def free_stream(self) -> int:
        return 1 + max(arguments(e)["stream"] for e in self.kernels) + 12

    def pauses(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Free times of the host within a step, by the number of earlier launches in it; the first of each."""
        at_launch = np.sort(np.array([ns for ns in self.launched.values() if begin <= ns < end], np.int64))
        seen: set[int] = set()
        for a, b in self.free:
            before = int(np.searchsorted(at_launch, a))
            if begin <= a and b <= end and before not in seen:
                seen.add(before)
                yield before, a

    def between_kernels(self, begin: int, end: int) -> Iterator[tuple[int, tuple[int, int, Event | None]]]:
        """Free times of the host between the launches of consecutive kernels, by the number of earlier launches in the step. Each has the possible
        start of a tiny kernel, and the kernel that lends it the time, None if none has to."""
        at_launch = [self.launched.get(arguments(e)["correlation"], -1) for e in self.kernels]
        free = np.array([a for a, _ in self.free], np.int64)
        before = 0
        for one, other, launch, following in zip(self.kernels[:-1], self.kernels[1:], at_launch[:-1], at_launch[1:], strict=True):
            if not begin <= launch < following <= end:
                continue
            before += 1
            i = int(np.searchsorted(free, launch))
            if i == len(free) or self.free[i][1] > following:
                continue
            start = max(ends(one) + US // 2, self.free[i][0] + 6 * US)
            if start + TINY_NS + US // 2 <= begins(other):
                yield before, (self.free[i][0], start, None)
            elif ends(one) - begins(one) >= BORROWED_FROM_NS and self.free[i][0] + 6 * US < begins(other) - TINY_NS - US // 2:
                yield before, (self.free[i][0], begins(other) - TINY_NS - US // 2, one)

    def launch(self, number: int, call: tuple[int, int], kernel: tuple[int, int], name: str, stream: int) -> list[Event]:
        """A call of the host and the kernel that it launches."""
        link = {"correlation": self.correlation + number}
        grid = {
            "device": self.device,
            "context": 1,
            "stream": stream,
            **link,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
            "registers per thread": 16,
            "shared memory": 0,
        }
        return [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **self._place_in_step(*call), "args": {"cbid": 211, **link}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": self.device,
                "tid": stream,
                "ts": kernel[0] / 1000,
                "dur": (kernel[1] - kernel[0]) / 1000,
                "args": grid,
            },
        ]

    def convolution(self, start: int, shapes: bool) -> list[Event]:
        """The ops around a launch."""
        dims = {
            "Input Dims": [[1, 8, 16, 16], [8, 8, 3, 3], [], [], [], [], []],
            "Input type": ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
        }
        told = dims if shapes else {}
        names = ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
        inside = [(start + US + 100 * i, start + 5 * US - 100 * i) for i in range(len(names))]
        return [{"ph": "X", "cat": "cpu_op", "name": name, **self._place_in_step(a, b), "args": {**told}} for name, (a, b) in zip(names, inside, strict=True)]

    def _place_in_step(self, start: int, end: int) -> dict[str, Any]:
        return {"pid": self.pid, "tid": self.tid, "ts": start / 1000, "dur": (end - start) / 1000}


def _free(events: list[Event]) -> list[tuple[int, int]]:
    """Stretches of a thread between two edges of its events, outside its calls and ops, that are long enough."""
    edges = np.unique(np.array([time for e in events for time in (begins(e), ends(e))], np.int64))
    calls = sorted((begins(e), ends(e)) for e in events if e.get("cat") in (*CALLS, *OPS))
    starts = np.array([a for a, _ in calls], np.int64)
    reached = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(np.array([b for _, b in calls], np.int64))] if calls else np.array([np.iinfo(np.int64).min])
    left, right = edges[:-1], edges[1:]
    quiet = (right - left >= FREE_NS) & (reached[np.searchsorted(starts, left, side="right")] <= left)
    return list(zip(left[quiet].tolist(), right[quiet].tolist(), strict=True))
