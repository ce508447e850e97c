"""What copies between host and device cost, and what is left of it if they are pinned, packed or not made."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask, Spans
from advisor.knowledge.host_waits import HostWait
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import TORCH
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.timeline import CopyKind, MemoryKind
from advisor.views.device_rates import DeviceRates
from advisor.views.patterns.host_tensors import created_on_host
from advisor.views.patterns.transfers import HostCopies, StagedCopies, us_a_step_inside
from advisor.views.replay.edits import Edit, Edits, FasterCopies, NextAfter, OnSideStream, WithDispatch, WithoutOps, WithoutWaits, changes, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import MOSTLY, HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import spans_of
from advisor.views.trace.waited_calls import WaitedCalls

DEFAULT_LINK_GBPS = cost("unknown-link")


COPY_LATENCY_US = cost("copy-latency")

MIN_WAIT_SHARE = HARDLY_ANY
"""Share of waits for copies from which the text names them next to the copies."""

_HOST_COPIES = (CopyKind.HTOD.value, CopyKind.DTOH.value)


class CopyCost(msgspec.Struct, frozen=True):
    """Cost of some copies, in µs per step. exposed: without overlapping compute; waited: by the host, as recorded; issuing: launching small copies; launching
    and paused: the device's waits for the host afterwards; at_most, likely_at_most: upper limits of a fix.

    pageable: share of the copies. pinned: whether all are known to be pinned. many: whether launching small copies dominates. call: the main call, if the
    program wrote no copy. created: share of H2D copies of fresh host data. fetched: share of D2H time.
    """

    copies: HostCopies
    exposed_us: float
    waited_us: float
    issuing_us: float
    launching_us: float
    paused_us: float
    at_most_us: float
    likely_at_most_us: float
    bytes_moved: float
    pageable: float
    pinned: bool
    many: bool
    loader: bool
    created: float
    fetched: float
    call: HostWait | None
    edits: Edits


class CopyCosts(msgspec.Struct, frozen=True):
    """What copies between host and device cost, and the step without: which of them count, a size in bytes decides."""

    steps: Steps
    work: GpuWork
    calls: HostCalls | None
    launches: Launches
    host: HostActivity
    partition: Partition
    gaps: Gaps
    replay: Replay
    rates: DeviceRates
    staged: StagedCopies
    waited_calls: WaitedCalls

    @classmethod
    def build(
        cls, steps: Steps, work: GpuWork, calls: HostCalls | None, launches: Launches, host: HostActivity, partition: Partition, gaps: Gaps, replay: Replay,
        rates: DeviceRates, staged: StagedCopies, waited_calls: WaitedCalls,
    ) -> CopyCosts:  # fmt: skip
        return cls(steps, work, calls, launches, host, partition, gaps, replay, rates, staged, waited_calls)

    def _moving(self, small_bytes: int) -> Mask:
        """Of all GPU ops. Small reads of a value are waits, not transfers, but for those that only pageable memory makes wait."""
        work, calls = self.work, self.calls
        kind, nbytes = work.timeline.gpu_ops["copy_kind"], work.timeline.gpu_ops["bytes"]
        moves: Mask = kind.isin(_HOST_COPIES) & ~((kind == CopyKind.DTOH.value) & (nbytes < small_bytes))
        moves[work.rows] |= work.pageable & calls.held_unasked(work.pageable)[work.schedule.op_call] if calls else False
        return moves

    def copies(self, small_bytes: int) -> HostCopies:
        """Those of the window."""
        return HostCopies(np.flatnonzero(self._moving(small_bytes)[self.work.rows]), self.work.column("bytes"), self.work.pageable)

    def cost_of(self, copies: HostCopies, small_bytes: int) -> CopyCost:
        """Of some of `copies(small_bytes)`, where the device's time is known."""
        work, calls, gaps, steps, staged = self.work, self.calls, self.gaps, self.steps, self.staged
        main = self.partition.main
        assert main is not None
        pageable, at = copies.pageable, copies.at
        exposed_us = us_a_step_inside(work, steps, np.flatnonzero(self._moving(small_bytes)), main.copy)
        # Copies cost the time that nothing hides and, where they hold the host up, what the GPU then waits for it; no fix of them gains more.
        blocking = np.isin(self.launches.call[work.rows], self.host.blocking_copies)
        # A call outlasts a transfer of a microsecond whether it waits for it or not.
        long = (work.dur_us >= COPY_LATENCY_US) & blocking
        spare = copies.spare(work, small_bytes)
        holds = bool(len(spare)) or bool(
            (pageable | long | (copies.bytes >= small_bytes))[at].any() or (calls and calls.waits_of_copies(work.schedule.op_call[at]).any())
        )
        launching_us, paused_us = (float(gaps.together_us(*causes).sum()) / steps.steps if holds else 0.0 for causes in (["launch"], ["sync", "host"]))
        pinned = (work.column("src_kind") == MemoryKind.PINNED.value) | (work.column("dst_kind") == MemoryKind.PINNED.value)
        held = calls.held_by_copies(work.schedule.op_call[at]) if calls else at[:0]
        waited_us = calls.us_a_step(held) if calls else 0.0
        issuing_us = sum(change.host_us for change in changes(work.schedule, WithoutOps(spare)))
        loader = len(self.host.data_loading[0]) > 0
        up = copies.to_device(work)
        # Of the host's pauses no more are likely to be theirs than what it does for them while the device idles: kernels it would wait for anyway.
        staging_us = (copies.host_us(calls, main.idle) if calls else 0.0) + staged.us
        edits = copy_edits(work, calls, self.replay, self.rates, copies, blocking, small_bytes, staged, main.communication, WithoutOps(spare))
        # What the device waits for before a copy it would wait for before the next op, but for the time that the host has more by then.
        # A wait as recorded is shorter by what recording had the host do before it.
        of_waits = len(held) / max(int(calls.waits.sum()), 1) if calls else 0.0
        behind_us = gaps.wait_after_us(work.timeline.gpu_ops[work.rows[at]])
        seen_us = exposed_us + waited_us + behind_us + staged.us + of_waits * self.replay.true_step.recording_us
        likely, most = (seen_us + sum(change.host_us for change in changes(work.schedule, edit)) for edit in (edits.expected, edits.high))
        return CopyCost(
            copies=copies,
            exposed_us=exposed_us,
            waited_us=waited_us,
            issuing_us=issuing_us,
            launching_us=launching_us,
            paused_us=paused_us,
            at_most_us=min(exposed_us + launching_us + paused_us, max(likely, most)),
            likely_at_most_us=min(exposed_us + launching_us + min(paused_us, staging_us + issuing_us), likely),
            bytes_moved=float(copies.bytes[at].clip(min=0).sum()),
            pageable=float(pageable[at].mean()),
            pinned=bool(pinned[at].all()),
            # What moves in no time may still be waited for, and each costs the host its call.
            many=bool(issuing_us > max(exposed_us, waited_us, MIN_WAIT_SHARE * work.step_us)),
            loader=loader,
            created=created_on_host(work.timeline, work.ops, work.rows[up]),
            fetched=float(work.dur_us[copies.to_host(work)].sum() / max(float(work.dur_us[at].sum()), 1e-9)),
            call=sending_call(work, calls, self.launches, self.waited_calls, at) if calls else None,
            edits=edits,
        )


def copy_edits(
    work: GpuWork, calls: HostCalls | None, replay: Replay, rates: DeviceRates, copies: HostCopies, blocking: Mask, small_bytes: int,
    staged: StagedCopies, communication: Spans, packed: Edit,
) -> Edits:  # fmt: skip
    """At the rate of pinned memory with waits for D2H copies; on a separate stream, with small copies packed; without any pageable copy."""
    schedule, nbytes = work.schedule, copies.bytes
    peaks = rates.peaks_of(work.device_at(int(copies.at[0])))
    rate = (peaks.host_link_gbps if peaks and peaks.host_link_gbps else DEFAULT_LINK_GBPS) * 1e3  # bytes per µs
    # Where kinds were not recorded, a copy that held its call was staged from pageable memory.
    slow = copies.at[(copies.pageable | blocking)[copies.at]]
    held = calls.held_by_copies(schedule.op_call[copies.at]) if calls else copies.at[:0]
    waits = WithoutWaits(held)
    theirs = held[calls.mostly_covered(held, communication)] if calls else held[:0]
    pinned = FasterCopies(slow, COPY_LATENCY_US + np.where(nbytes[slow] >= small_bytes, nbytes[slow] / rate, 0.0))
    # What comes to the host is there to be used: at the least, the host waits for it as before.
    used = np.intersect1d(held, calls.held_by_copies(schedule.op_call[copies.to_host(work)])) if calls else held
    # Nor is it known that what is sent on another stream could have begun before.
    ordered = NextAfter(copies.at[np.isin(schedule.op_call[copies.at], held)])
    least = combine(WithoutWaits(np.setdiff1d(held, np.r_[theirs, used])), pinned, ordered)
    read = copies.read_at_once(work, calls) if calls else held[:0]
    needed = calls.held_by_copies(schedule.op_call[read]) if calls else held[:0]
    faster = combine(WithoutWaits(np.setdiff1d(held, np.r_[theirs, needed])), pinned)
    # Copies that have a stream to themselves are ahead already.
    beside = copies.at[np.isin(schedule.stream[copies.at], schedule.stream[~np.isin(np.arange(len(work.rows)), copies.at)])]
    # A wait that ends with a collective ends when the other ranks let it: without it this rank waits for them elsewhere.
    own = beside[~calls.waited_for_at(schedule.op_call[beside], theirs)] if calls else beside
    hidden = combine(faster, packed, OnSideStream(np.setdiff1d(own, read)))
    if staged.us:
        ahead, gone = combine(hidden, staged.ahead), combine(waits, WithoutOps(copies.at), staged.gone)
        return Edits(ahead, gone if staged.same else ahead, gone)
    copying = spans_of(work.timeline.cpu_ops, np.unique(work.ops.outermost[work.op[slow][work.op[slow] >= 0]]))
    away = combine(waits, WithoutOps(slow), WithDispatch(replay.uncovered_share(copying)))
    return Edits(least, hidden, combine(away, faster, OnSideStream(beside)))


def sending_call(work: GpuWork, calls: HostCalls, launches: Launches, waited: WaitedCalls, copies: Ints) -> HostWait | None:
    """The call with most of these copies' device and host time: no explicit copy, except copies that wait although their memory is pinned."""
    took = work.dur_us[copies] + calls.held_us(work.schedule.op_call[copies])
    of = waited.rows_of(launches.call[work.rows[copies]], [outer_op(work.ops, op) for op in work.op[copies].tolist()])
    total: dict[HostWait, float] = {}
    for row, us in zip(of, took.tolist(), strict=True):
        if row and (row.memory or not row.general):
            total[row] = total.get(row, 0.0) + us
    largest = max(total, key=total.__getitem__, default=None)
    return largest if largest and total[largest] >= MOSTLY * took.sum() else None


def outer_op(ops: Ops, op: int) -> str:
    return next((n for n in reversed(ops.chain(op)) if n.startswith(TORCH)), "a runtime call")
