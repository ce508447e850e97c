"""Whether a recording is a program's first pass, which meets its kernels and takes its memory as it goes: later passes do neither."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, Spans, clip, length, overlap_with
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

STILL_NEW = MOST
"""A program that repeats itself has run all its kernels in its first pass. If a new kernel appears after half of its ops, the pass is the first."""


FEWEST_TAKEN = 12
"""An allocator with a full cache asks the driver for nothing. A dozen requests in a pass, with less than half freed, show that the cache still fills."""

_TAKES = re.compile(r"^(cudaMalloc|hipMalloc|cuMemAlloc|(cu|hip)MemCreate)(Managed|Pitch|3D)?(_v\d+|_ptsz|_ptds)*$")
_GIVES_BACK = re.compile(r"^(cudaFree|hipFree|cuMemFree|(cu|hip)MemRelease)(_v\d+|_ptsz|_ptds)*$")


class FirstPass(msgspec.Struct, frozen=True, eq=False):
    """only: whether the whole window is a first pass of a framework's program; plain CUDA programs are judged by their single run. once_us: one-time work
    before it. met: (n_gpu,) ops that run a kernel for the first time. allocating: while the host takes device memory. taken: how often a framework's
    allocator takes device memory in the only recorded pass, if it fills its cache, else 0. brief: whether one-time work exceeds the rest of a
    framework's recording without steps.
    """

    only: bool
    once_us: float
    met: Mask
    allocating: Spans
    taken: int = 0
    brief: bool = False

    def repeats(self, next_op: Ints, start_us: Floats, end_us: Floats) -> Mask:
        """(n,) whether later passes have these gaps too, each before an op (row, -1 for none): not before the first run of a kernel, nor while memory is taken."""
        if not self.only:
            return np.ones(len(next_op), bool)
        return ~(self.met[next_op] & (next_op >= 0)) & (overlap_with(start_us, end_us, self.allocating) == 0)

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, startup: StartUp, program: Program, host: HostActivity) -> FirstPass:
        ops = timeline.gpu_ops
        start = ops["start_us"]
        met = np.zeros(len(ops), bool)
        order = np.argsort(start, kind="stable")
        order = order[(ops["kind"] == GpuKind.KERNEL.value)[order]]
        _, first = np.unique(ops["name"].codes[order], return_index=True)
        met[order[first]] = True
        once_us = length(clip(startup.once, -np.inf, steps.start_us))
        inside = order[steps.holds(start[order])]
        new = np.flatnonzero(met[inside])
        still = len(new) > 0 and new[-1] >= STILL_NEW * len(inside)
        framework = program.framework != "cuda"
        brief = framework and not steps.repeats and once_us > steps.end_us - steps.start_us
        taken = _taken(timeline, steps) if framework and steps.steps == 1 else 0
        return cls(brief and still and len(timeline.cpu_ops) > 0, once_us, met, host.allocator, taken, brief)


def _taken(timeline: Timeline, steps: Steps) -> int:
    """How often device memory is taken in the window, 0 if that fills no cache."""
    calls = timeline.api_calls
    start = calls["start_us"]
    inside = (start >= steps.host_start_us) & (start < steps.end_us)
    taken, given_back = (int((matches(calls, pattern) & inside).sum()) for pattern in (_TAKES, _GIVES_BACK))
    return taken if taken >= FEWEST_TAKEN and given_back < taken / 2 else 0
