"""Pageable memory that the host gives back right behind the copy that needed it last, as in x = x.cuda()."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Floats, Ints, Spans, clip, union
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import CopyKind, MemoryKind, Timeline
from advisor.report.numbers import duration
from advisor.views.replay.edits import Edit
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.host_activity import DISPATCH_PAUSE_US
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps


class ReleasedMemory(msgspec.Struct, frozen=True):
    """spans: in which the host gives it back, disjoint and sorted. us: of a step. Nothing where calls of functions of C were not recorded: what
    such a pause is then, nobody knows."""

    spans: Spans
    us: float
    host_time: HostTime

    @property
    def gone(self) -> Edit:
        """Pinned memory is kept, and given to the next batch."""
        return self.host_time.cut_time(self.spans)

    def told(self, step_us: float) -> str:
        """What it takes the host, if it is worth a word."""
        return f"; giving their memory back takes the host {duration(self.us)}" if self.us >= HARDLY_ANY * step_us else ""

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, launches: Launches, ops: Ops, sources: Sources, host_time: HostTime) -> ReleasedMemory:
        spans = clip(_behind_copies(timeline, launches, ops), steps.host_start_us, steps.host_end_us) if sources.tells_c else EMPTY
        return cls(spans, host_time.spent_us(spans), host_time)


def _behind_copies(timeline: Timeline, launches: Launches, ops: Ops) -> Spans:
    """Time from each op that sends pageable memory to its thread's next event. It exceeds the pause between two ops, but not the copy: unmapping memory is
    faster than copying it (17 to 30 GB/s against 7, on the hosts of the samples)."""
    gpu, cpu = timeline.gpu_ops, timeline.cpu_ops
    sent = (gpu["copy_kind"] == CopyKind.HTOD.value) & (gpu["src_kind"] == MemoryKind.PAGEABLE.value) & (launches.call >= 0)
    op = ops.of_call[launches.call[sent]] if sent.any() else np.empty(0, np.int64)
    op = np.unique(ops.outermost[op[op >= 0]])
    if not len(op):
        return EMPTY
    tables = (cpu, timeline.api_calls, timeline.python_calls)
    thread = thread_ids(*tables)
    start: Floats = np.concatenate([table["start_us"] for table in tables])
    order = np.lexsort((start, thread))
    end = cpu.ends[op]
    begins, until = np.full(len(op), np.nan), np.full(len(op), np.nan)
    for one in np.unique(thread[op]).tolist():
        mine = thread[op] == one
        starts = start[order[slice(*np.searchsorted(thread[order], (one, one + 1)))]]
        following: Ints = np.searchsorted(starts, end[mine])
        there = following < len(starts)
        at = np.flatnonzero(mine)[there]
        begins[at], until[at] = end[at], starts[following[there]]
    pause = until - begins
    long = pause > DISPATCH_PAUSE_US
    took = cpu["dur_us"][op]
    return union(begins[long], np.minimum(until, begins + took)[long])
