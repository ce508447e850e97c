"""Tensors that an op makes on the host, to be copied to the device."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import NEARLY_ALL
from advisor.recordings.timeline import Timeline
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.repeats import FEWEST_REPEATS

_CREATES = names_of("make_any")
"""Ops that make tensors of nothing, or of a few constants (`empty`, by torch.tensor). Not `lift_fresh`, which wraps data of lists or NumPy."""
_HANDLE, _COPY, _EMPTY = names_of("zeros"), names_of("copy"), names_of("empty")


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
