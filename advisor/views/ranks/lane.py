"""A rank's own lane: the work of its device besides communication, cut at meetings with other ranks.

The lane is compute, copies and memsets of the busiest device. In some gaps the next op waits for a collective of this rank. The rest belongs to the
rank, split by host activity (`idle_gaps`).
"""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import EMPTY, Floats, Ints, Mask, Spans, complement, intersect, joined, overlap_with, subtract, union
from advisor.knowledge.cuda_api import FREES
from advisor.knowledge.idle import CAUSES
from advisor.knowledge.measured_costs import cost
from advisor.recordings.timeline import CopyKind, Timeline
from advisor.views.ranks.collectives import RankCollectives
from advisor.views.replay.dependencies import BACK_TO_BACK_US
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import gaps_of_device
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.host_activity import CLOCK_SKEW_US, HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

PARTS = ("compute", "copy", "data-loading", "host", "sync", "launch", "other", "communication")
"""What a rank's time is: its own first, waiting for and moving data between ranks last."""

_PART_OF_CAUSE = {
    "sync": "sync",
    "data_loading": "data-loading",
    "launch": "launch",
    "allocator": "host",
    "host": "host",
    "dependency": "other",
    "profiler": "launch",
    "unknown": "other",
}

STREAM_WAIT_US = cost("stream-wait")


class Lane(msgspec.Struct, frozen=True):
    """Disjoint, sorted pieces that cover the window of a rank's device, and the gaps that wait for collectives.

    start_us, end_us: (n,). parts: (n, len(PARTS)) µs; a row sums to its piece. waits: disjoint spans in which the lane waits. wait_collective: (n_waits,)
    row of the collective that ends each.
    """

    start_us: Floats
    end_us: Floats
    parts: Floats
    waits: Spans
    wait_collective: Ints
    held: Spans
    """Disjoint, sorted gaps in which the host restarts after waiting for a collective or reading its result."""

    def parts_between(self, start_us: Floats, end_us: Floats) -> Floats:
        """(m, len(PARTS)) what spans of the window are made of; a piece that a span cuts counts in proportion."""
        cumulative = np.vstack([np.zeros(len(PARTS)), np.cumsum(self.parts, axis=0)])
        edges = np.r_[self.start_us, self.end_us[-1:]]
        if not len(edges):
            return np.zeros((len(start_us), len(PARTS)))
        low, high = (np.column_stack([np.interp(at, edges, cumulative[:, part]) for part in range(len(PARTS))]) for at in (start_us, end_us))
        return np.maximum(high - low, 0.0)

    def since_computing(self, at_us: Floats) -> Floats:
        """(m, len(PARTS)) what lies between each moment and the end of the last kernel before it."""
        ends = self.end_us[self.parts[:, PARTS.index("compute")] > 0]
        last = np.searchsorted(ends, at_us + 1e-3, side="right") - 1
        return self.parts_between(np.where(last >= 0, ends[np.maximum(last, 0)], at_us) if len(ends) else at_us, at_us)

    @classmethod
    def build(
        cls, timeline: Timeline, steps: Steps, launches: Launches, kernels: Kernels, host: HostActivity, partition: Partition, collectives: RankCollectives
    ) -> Lane:
        if partition.main is None:
            raise TraceError("it holds no GPU work in its steps", "Record this rank's GPU too, and look whether its file is whole.")
        window = (steps.start_us, steps.end_us)
        ops = timeline.gpu_ops
        start, end = ops.bounds()
        device = partition.main.device
        own = (ops["device"] == device) & ~kernels.communication & (end > window[0]) & (start <= window[1] + 1e-3)
        compute = union(start[own & kernels.compute], end[own & kernels.compute])
        busy = union(start[own], end[own])
        gaps = complement(busy, *window)
        rows = np.flatnonzero(own)
        # What gives memory back waits until the device is idle.
        frees = spans_of(timeline.api_calls, matches(timeline.api_calls, FREES) & host.on_threads(timeline.api_calls))
        waits, waited_for, held = _waits(gaps, timeline, rows, launches, joined(host.sync, frees), collectives)
        read = _after_reads(gaps, timeline, rows, host, collectives)
        held = joined(held, read)
        rest = subtract(gaps, waits) if len(waits[0]) else gaps
        idle_start, idle_end, _, causes = gaps_of_device(timeline, launches, host, device, rest)
        pieces: list[tuple[Floats, Floats, Floats]] = []
        for spans, part in ((compute, "compute"), (subtract(busy, compute), "copy"), (waits, "communication")):
            clipped = np.clip(spans[0], *window), np.clip(spans[1], *window)
            made = np.zeros((len(spans[0]), len(PARTS)))
            made[:, PARTS.index(part)] = clipped[1] - clipped[0]
            pieces.append((*clipped, made))
        made = np.zeros((len(idle_start), len(PARTS)))
        for cause in CAUSES:
            made[:, PARTS.index(_PART_OF_CAUSE[cause])] += causes[cause]
        pieces.append((idle_start, idle_end, made))
        starts, ends, parts = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        order = np.argsort(starts, kind="stable")
        order = order[ends[order] > starts[order]]
        return cls(starts[order], ends[order], parts[order], waits, waited_for, held)


def _waits(gaps: Spans, timeline: Timeline, own: Ints, launches: Launches, blocked: Spans, collectives: RankCollectives) -> tuple[Spans, Ints, Spans]:
    """Parts of gaps that wait for collectives, the collective that ends each, and the rest of the gap after a collective that blocked the host.

    A gap waits if a collective ends in it and the next op depends on it: the op was launched before and starts directly after; or it runs on the
    collective's stream; or the host was blocked by the collective until the launch.
    """
    none = EMPTY, np.empty(0, np.int64), EMPTY
    if not len(collectives.start_us) or not len(own) or not len(gaps[0]):
        return none
    ops = timeline.gpu_ops
    op_start = ops["start_us"][own]
    at = np.searchsorted(op_start, gaps[1] - 1e-6)
    follows = at < len(own)
    next_op = own[np.minimum(at, len(own) - 1)]
    launch = launches.start_us[next_op]
    by_end = np.argsort(collectives.end_us, kind="stable")
    ends = collectives.end_us[by_end]
    last = np.searchsorted(ends, gaps[1] + CLOCK_SKEW_US, side="right") - 1
    found = np.where(last >= 0, by_end[np.maximum(last, 0)], -1)
    ended = np.where(found >= 0, collectives.end_us[np.maximum(found, 0)], -np.inf)
    inside = follows & (found >= 0) & (ended > gaps[0]) & (gaps[1] - gaps[0] > BACK_TO_BACK_US)
    queued = (~(launch > ended + CLOCK_SKEW_US)) & (gaps[1] - ended < STREAM_WAIT_US)
    same_stream = ops["stream"][next_op] == collectives.stream[np.maximum(found, 0)]
    held = _holds(blocked, ended, launch)
    waiting = inside & (queued | same_stream | held)
    spans = union(_from_queue(collectives), collectives.end_us)
    chosen = intersect(spans, (gaps[0][waiting], gaps[1][waiting]))
    if not len(chosen[0]):
        return none
    ends_with = np.searchsorted(ends, chosen[1] + 1e-6, side="right") - 1
    late = waiting & held & (gaps[1] > ended)
    return chosen, by_end[np.maximum(ends_with, 0)], (np.maximum(ended, gaps[0])[late], gaps[1][late])


READ_WITHIN_US = 100.0
"""A copy to the host that starts so soon after a collective, with nothing computed between, reads what it made."""


def _after_reads(gaps: Spans, timeline: Timeline, own: Ints, host: HostActivity, collectives: RankCollectives) -> Spans:
    """Gaps after copies to the host that directly follow a collective, where the host was blocked until the copy was done."""
    if not len(own) or not len(collectives.end_us):
        return EMPTY
    ops = timeline.gpu_ops[own]
    start, end = ops.bounds()
    reads = np.flatnonzero(ops["copy_kind"] == CopyKind.DTOH.value)
    ends = np.sort(collectives.end_us)
    behind = np.searchsorted(ends, start[reads] + CLOCK_SKEW_US, side="right") - 1
    since = np.where(behind >= 0, ends[np.maximum(behind, 0)], -np.inf)
    before = np.where(reads > 0, end[np.maximum(reads - 1, 0)], -np.inf)
    reads = reads[
        (start[reads] - since < READ_WITHIN_US) & (start[np.maximum(reads - 1, 0)] <= since + CLOCK_SKEW_US) & (before <= start[reads] + CLOCK_SKEW_US)
    ]
    at = np.searchsorted(gaps[0], end[reads] - CLOCK_SKEW_US)
    inside = at < len(gaps[0])
    at, reads = at[inside], reads[inside]
    follows = np.abs(gaps[0][at] - end[reads]) <= CLOCK_SKEW_US
    blocked = overlap_with(end[reads] - CLOCK_SKEW_US, end[reads] + CLOCK_SKEW_US, host.sync) > 0
    chosen = at[follows & blocked]
    return gaps[0][chosen], gaps[1][chosen]


def _from_queue(collectives: RankCollectives) -> Floats:
    """(n,) start of each collective; the end of its predecessor if it was queued by then and followed immediately."""
    start = collectives.start_us.copy()
    for stream in np.unique(collectives.stream):
        rows = np.flatnonzero(collectives.stream == stream)
        ended = collectives.end_us[rows[:-1]]
        following = rows[1:]
        queued = (collectives.launch_us[following] <= ended) & (start[following] - ended < STREAM_WAIT_US)
        start[following[queued]] = np.minimum(start[following], ended)[queued]
    return start


def _holds(sync: Spans, ended: Floats, launch: Floats) -> Mask:
    """Whether the host was in a blocking call when each collective ended, and launched the op after that call."""
    if not len(sync[0]):
        return np.zeros(len(ended), bool)
    at = np.searchsorted(sync[0], ended, side="right") - 1
    inside = (at >= 0) & (sync[1][np.maximum(at, 0)] >= ended - CLOCK_SKEW_US)
    return inside & (launch >= sync[1][np.maximum(at, 0)] - CLOCK_SKEW_US)
