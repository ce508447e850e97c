"""What the threads that issue GPU work were doing, as spans of time by cause."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Spans, joined, subtract, union
from advisor.knowledge import cuda_api
from advisor.knowledge.expressions import expression
from advisor.knowledge.measured_costs import cost
from advisor.recordings.columns import Table
from advisor.recordings.timeline import CopyKind, GpuKind, MemoryKind, Timeline
from advisor.views.groups import Groups
from advisor.views.trace.launches import Launches
from advisor.views.trace.startup import StartUp
from advisor.views.trace.table_filters import matches, spans_of

CLOCK_SKEW_US = cost("clock-skew")

DISPATCH_PAUSE_US = cost("dispatch-pause")

UNSEEN_DISPATCH_PAUSE_US = cost("dispatch-pause-unseen")

LONGEST_DISPATCH_US = cost("longest-dispatch")

_LOADER = expression(r"enumerate\(DataLoader\)|DataLoader.{0,200}__next__")
_LOADER_FRAME = expression(r"torch/utils/data/dataloader\.py\(\d+\): (__next__|_next_data)$")
# JAX has no loader of its own: what its programs iterate over is grain, tf.data or a class of theirs. Frames have no directories there.
_ITERATOR_FRAME = expression(r"^[\w.]+\.py\(\d+\): (__next__|get_next|_next_internal)$")
# One-time work of the driver, which the profiler reports beside its own.
_NOT_PROFILER = expression(r"Lazy Function Loading|Module Loading", re.IGNORECASE)


class HostActivity(msgspec.Struct, frozen=True):
    """Disjoint spans of the activity of launching threads. Earlier names win if several apply."""

    profiler: Spans
    sync: Spans
    allocator: Spans
    data_loading: Spans
    launch: Spans
    blocking_copies: Ints
    """Rows of `api_calls`: copies that held the host until their transfer was done, whatever their name says."""
    threads: frozenset[tuple[int, int]]
    once: Spans
    """What the driver does once (`StartUp.once`)."""

    def on_threads(self, frame: Table) -> np.ndarray:
        """(n,) whether each row of a host table is on a thread that issues GPU work."""
        return _on_threads(frame, self.threads)

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, startup: StartUp) -> HostActivity:
        calls, overheads = timeline.api_calls, timeline.overheads
        issuing = _issuing_threads(timeline, launches)
        here = _on_threads(calls, issuing)
        copying = _blocking_copies(timeline, launches)
        waiting = np.zeros(len(calls), bool)
        waiting[launches.calls_with(cuda_api.ApiRole.SYNC)] = True
        waiting[copying] = True
        allocating = launches.calls_with(cuda_api.ApiRole.ALLOCATION)
        return cls(
            profiler=spans_of(overheads, ~matches(overheads, _NOT_PROFILER) & _can_hold(overheads, issuing)),
            sync=spans_of(calls, here & waiting),
            allocator=spans_of(calls, allocating[here[allocating]]),
            data_loading=_loading(timeline, issuing),
            # Loading a kernel or choosing an algorithm is done once: no cheaper way of issuing work saves it.
            launch=subtract(_dispatching(timeline, issuing, here), startup.once),
            blocking_copies=copying,
            threads=issuing,
            once=startup.once,
        )


def _loading(timeline: Timeline, issuing: frozenset[tuple[int, int]]) -> Spans:
    """Where those threads ask a dataloader for the next batch."""
    frames = _ITERATOR_FRAME if timeline.source.format == "jax" else _LOADER_FRAME
    asked = ((timeline.annotations, _LOADER), (timeline.python_calls, frames))
    return joined(*(spans_of(table, matches(table, pattern) & _on_threads(table, issuing)) for table, pattern in asked))


def _dispatching(timeline: Timeline, issuing: frozenset[tuple[int, int]], calling: np.ndarray) -> Spans:
    """Where those threads issue work: ops and runtime calls, and the short pauses between them."""
    ops = timeline.cpu_ops
    start, end = joined(spans_of(ops, _on_threads(ops, issuing)), spans_of(timeline.api_calls, calling))
    pause = DISPATCH_PAUSE_US if len(ops) else UNSEEN_DISPATCH_PAUSE_US
    return union(start, np.r_[np.where(start[1:] - end[:-1] < pause, start[1:], end[:-1]), end[-1:]])


def _blocking_copies(timeline: Timeline, launches: Launches) -> Ints:
    ops, calls = timeline.gpu_ops, timeline.api_calls
    # A copy within the device never holds the host: a short one is done by the time that its slow call returns.
    within = ops["copy_kind"] == CopyKind.DTOD.value
    rows = np.flatnonzero((ops["kind"] == GpuKind.MEMCPY.value) & ~within & (launches.call >= 0))
    rows = rows[~np.isin(launches.call[rows], launches.calls_with(cuda_api.ApiRole.GRAPH_LAUNCH))]  # a replay returns whatever is in it
    rows = rows[~_asynchronous(timeline, launches, rows)]
    caller = launches.call[rows]
    op_start, op_dur = ops["start_us"][rows], ops["dur_us"][rows]
    call_end = calls.ends[caller]
    return np.unique(caller[held_by_copy(op_start, op_dur, call_end)])


def _asynchronous(timeline: Timeline, launches: Launches, copies: Ints) -> np.ndarray:
    """(k,) which of these copies do not block the host, by their call: of memory that the device reaches itself, and no longer than queueing takes. Clocks
    with errors of some µs do not show whether such a call ends before its copy starts.
    """
    ops, calls, called = timeline.gpu_ops, timeline.api_calls["name"], launches.call[copies]
    reached = np.ones(len(copies), bool)
    for side in ("src_kind", "dst_kind"):
        reached &= ops[side].isin([MemoryKind.PINNED.value, MemoryKind.DEVICE.value])[copies]
    queued = timeline.api_calls["dur_us"][called] < DISPATCH_PAUSE_US
    return reached & queued & calls[called].matching(cuda_api.ASYNCHRONOUS.search)


def held_by_copy(op_start: Floats, op_dur: Floats, call_end: Floats) -> np.ndarray:
    """(n,) whether a copy's call was still running when half of its transfer was done.

    A pageable copy's call returns once the last piece is staged, some 10 µs before the transfer ends.
    """
    return call_end >= op_start + 0.5 * op_dur


def _issuing_threads(timeline: Timeline, launches: Launches) -> frozenset[tuple[int, int]]:
    calls = launches.call[launches.call >= 0]
    frame, rows = (timeline.api_calls, calls) if len(calls) else (timeline.cpu_ops, slice(None))
    pid, tid = frame["pid"][rows], frame["tid"][rows]
    first = Groups.by_keys(pid, tid).first
    return frozenset(zip(pid[first].tolist(), tid[first].tolist(), strict=True))


def _can_hold(overheads: Table, issuing: frozenset[tuple[int, int]]) -> np.ndarray:
    """(n,) whether profiler work can keep those threads from launching: it runs on one of them, or on an unknown thread. Its work for other threads, such as
    their setup, delays only those.
    """
    known = (overheads["pid"] > 0) & (overheads["tid"] > 0)
    return ~known | _on_threads(overheads, issuing)


def _on_threads(frame: Table, threads: frozenset[tuple[int, int]]) -> np.ndarray:
    pid, tid = frame["pid"], frame["tid"]
    found = np.zeros(len(frame), bool)
    for p, t in threads:
        found |= (pid == p) & (tid == t)
    return found
