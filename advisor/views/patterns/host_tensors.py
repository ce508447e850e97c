"""Tensors that ops make on the host from nothing, to be copied to the device."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, Spans, length, union
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import HARDLY_ANY, NEARLY_ALL
from advisor.recordings.timeline import CopyKind, Timeline
from advisor.report.numbers import duration
from advisor.views.replay.edits import Edit, WithHostTime, WithoutHostTime, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.repeats import FEWEST_REPEATS

_MAKES = names_of("make_filled")
_CREATES = names_of("make_any")
"""Ops that make tensors of nothing, or of a few constants (`empty`, by torch.tensor). Not `lift_fresh`, which wraps data of lists or NumPy."""
_HANDLE, _COPY, _EMPTY = names_of("zeros"), names_of("copy"), names_of("empty")
_TENSOR_OP = names_of("torch_op")
_FROM_DATA = names_of("make_of_data")
"""What brings in data of the program's own: what is computed from it cannot be made elsewhere without it."""


class MadeOnHost(msgspec.Struct, frozen=True):
    """Copies (positions) whose tensor was made on the host, and when it was. as_launched_us: what as many ops cost that launch, a copy."""

    copies: Ints
    spans: Spans
    as_launched_us: float

    def host_us(self, steps: int) -> float:
        """What making them takes the host, a step."""
        return length(self.spans) / steps

    def told(self, steps: int, step_us: float) -> str:
        """What making them takes the host, if it is worth a word."""
        us = self.host_us(steps)
        return f"; making their data takes the host {duration(us)} as recorded" if us >= HARDLY_ANY * step_us else ""

    def on_device(self, calls: HostCalls | None, replay: Replay, *, kept: bool) -> Edit:
        """Made on the device instead, by as many launches, or once and kept there: neither copies nor the host's work are left."""
        if not len(self.copies):
            return combine()
        made = 1 - replay.uncovered_share(self.spans)
        held = calls.held_by_copies(replay.recorded.op_call[self.copies]) if calls else self.copies[:0]
        gone = combine(WithoutWaits(held), WithoutHostTime(made, made), WithoutOps(self.copies))
        return gone if kept else combine(gone, WithHostTime(self.copies, replay.host_share * self.as_launched_us))

    @classmethod
    def create(cls, work: GpuWork, copies: Ints, *, of_nothing: bool = False) -> MadeOnHost:
        """Copies (of some positions) after an unbroken run of ops without launches that starts with a new tensor. of_nothing: only runs of such ops, with no
        later write into the tensor."""
        cpu, ops = work.timeline.cpu_ops, work.ops
        copies = copies[work.op[copies] >= 0]
        start, dur = cpu["start_us"], cpu["dur_us"]
        top = np.flatnonzero((ops.parent < 0) & ops.named(_TENSOR_OP))
        thread = thread_ids(cpu)
        top = top[np.lexsort((start[top], thread[top]))]
        breaks = np.zeros(len(cpu), bool)
        launching = ops.outermost[ops.of_call[ops.of_call >= 0]]
        breaks[launching] = breaks[ops.outermost[ops.named(_FROM_DATA)]] = True
        # What follows the last op that breaks a run, from the first that makes a tensor on.
        place, order = np.arange(len(top)), np.full(len(cpu), -1, np.int64)
        order[top] = place
        broken = np.maximum.accumulate(np.where(breaks[top], place, -1)) if len(top) else place
        making = (ops.named(_MAKES) & ~_handles(work.timeline, ops))[top]
        makers = np.flatnonzero(making & ~breaks[top])
        at = order[ops.outermost[work.op[copies]]]
        copies, at = copies[at > 0], at[at > 0]
        after = np.searchsorted(makers, broken[at - 1], side="right")
        first = np.r_[makers, len(top)][after]
        made = first < at
        made[made] = thread[top[first[made]]] == thread[top[at[made]]]
        if of_nothing:
            others = np.r_[0, np.cumsum(~making)]
            made[made] = others[at[made]] == others[first[made]]
        rows = top[np.unique(np.concatenate([place[:0], *(place[a:b] for a, b in zip(first[made], at[made], strict=True))]))]
        each = float(np.median(dur[np.unique(launching)])) if len(launching) else 0.0
        as_launched_us = float(np.minimum(dur[rows], each).sum()) / max(len(copies[made]), 1)
        return cls(copies[made], union(start[rows], start[rows] + dur[rows]), as_launched_us)


HANDLE_US = cost("handle-before-range")


def _handles(timeline: Timeline, ops: Ops) -> Mask:
    """(n_cpu,) tensors that the framework makes as it opens a range: up to PyTorch 1.11 each begins with one."""
    cpu, ranges = timeline.cpu_ops, timeline.annotations
    found = np.zeros(len(cpu), bool)
    rows = np.flatnonzero(ops.named(_HANDLE) & (ops.parent < 0))
    if not len(rows) or len(ranges) < FEWEST_REPEATS:
        return found
    threads = thread_ids(ranges, cpu)
    of_range, end = threads[: len(ranges)], cpu.ends
    begun, opened = ranges["start_us"], 0
    for thread in np.unique(of_range).tolist():
        mine = rows[threads[len(ranges) :][rows] == thread]
        mine = mine[np.argsort(end[mine], kind="stable")]
        own = begun[of_range == thread]
        last = np.searchsorted(end[mine], own, side="right") - 1
        close = last >= 0
        close[close] = own[close] - end[mine[last[close]]] <= HANDLE_US
        found[mine[last[close]]] = True
        opened += int(close.sum())
    return found if opened >= NEARLY_ALL * len(ranges) else np.zeros(len(cpu), bool)


def created_on_host(timeline: Timeline, ops: Ops, rows: Ints) -> float:
    """Share of the copies whose tensor was made by the op just before, on the host."""
    found, handles, threads = 0, _handles(timeline, ops), thread_ids(timeline.cpu_ops)
    for op in ops.of_gpu[rows]:
        outer = int(ops.outermost[op]) if op >= 0 else -1
        before = _op_before(ops, threads, outer)
        if before >= 0 and _COPY.match(ops.name(outer)) and _EMPTY.match(ops.name(before)):
            before = _op_before(ops, threads, before)  # what a copy by itself writes to is made just before it
        found += before >= 0 and bool(_CREATES.match(ops.name(before))) and not handles[before]
    return found / max(len(rows), 1)


def _op_before(ops: Ops, threads: Ints, op: int) -> int:
    """The outermost op that precedes one on its thread, -1 if there is none."""
    before = op - 1
    while before >= 0 and (ops.outermost[before] != before or threads[before] != threads[op]):
        before -= 1
    return max(before, -1)


def unsent_behind(work: GpuWork, calls: HostCalls | None, ends_us: Floats) -> Edit:
    """Without pageable H2D copies directly after CPU code that ended at these times and may have made the data."""
    sending = work.pageable & (work.column("copy_kind") == CopyKind.HTOD.value)
    if calls is None or not sending.any():
        return combine()
    # Work must have ended between the last launch of anything else and the copy.
    other_us = np.fmax.accumulate(np.where(sending, -np.inf, work.launched_us))
    sent = np.flatnonzero(sending & (np.searchsorted(ends_us, work.launched_us) > np.searchsorted(ends_us, other_us)))
    return combine(WithoutWaits(calls.held_by_copies(work.schedule.op_call[sent])), WithoutOps(sent))
