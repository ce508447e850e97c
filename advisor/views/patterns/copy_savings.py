"""What copies between host and device cost, and what is left of it where they are pinned, packed or not made."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints, Mask, Spans
from advisor.knowledge.host_waits import HostWait
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import TORCH
from advisor.views.device_rates import DeviceRates
from advisor.views.patterns.host_tensors import MadeOnHost
from advisor.views.patterns.transfers import HostCopies, StagedCopies
from advisor.views.replay.edits import Edit, Edits, FasterCopies, NextAfter, OnSideStream, WithDispatch, WithoutOps, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import MOSTLY, HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.table_filters import spans_of
from advisor.views.trace.waited_calls import WaitedCalls

DEFAULT_LINK_GBPS = cost("unknown-link")


COPY_LATENCY_US = cost("copy-latency")


def copy_edits(
    work: GpuWork, calls: HostCalls | None, replay: Replay, rates: DeviceRates, copies: HostCopies, blocking: Mask, small_bytes: int,
    staged: StagedCopies, made: MadeOnHost, unreleased: Edit, communication: Spans, packed: Edit, loader: bool,
) -> Edits:  # fmt: skip
    """At the rate of pinned memory, what comes to the host waited for; on a stream of their own, small ones packed and what the host made made there; no pageable copy at all."""
    schedule, nbytes = work.schedule, copies.bytes
    peaks = rates.of(work.device_at(int(copies.at[0])))
    rate = (peaks.host_link_gbps if peaks and peaks.host_link_gbps else DEFAULT_LINK_GBPS) * 1e3  # bytes per µs
    # Where kinds were not recorded, a copy that held its call was staged from pageable memory.
    slow = copies.at[(copies.pageable | blocking)[copies.at]]
    large = slow[nbytes[slow] >= small_bytes]
    held = calls.held_by_copies(schedule.op_call[copies.at]) if calls else copies.at[:0]
    waits = WithoutWaits(held)
    theirs = held[calls.inside(held, communication)] if calls else held[:0]
    pinned = FasterCopies(slow, COPY_LATENCY_US + np.where(nbytes[slow] >= small_bytes, nbytes[slow] / rate, 0.0))
    pinning = copies.pinned_by_loader(work, large) if loader else combine()
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
    hidden = combine(faster, packed, OnSideStream(np.setdiff1d(own, read)), made.on_device(calls, replay, kept=False), unreleased)
    if staged.us:
        ahead, gone = combine(hidden, staged.ahead), combine(waits, WithoutOps(copies.at), staged.gone)
        return Edits(ahead, gone if staged.same else ahead, gone)
    copying = spans_of(work.timeline.cpu_ops, np.unique(work.ops.outermost[work.op[slow][work.op[slow] >= 0]]))
    away = combine(waits, WithoutOps(slow), WithDispatch(replay.outside(copying)), made.on_device(calls, replay, kept=True), unreleased)
    return Edits(combine(least, pinning), hidden, combine(away, faster, OnSideStream(beside)))


def sending_call(work: GpuWork, calls: HostCalls, launches: Launches, waited: WaitedCalls, copies: Ints) -> HostWait | None:
    """The call, none that was written as a copy but those that wait though their memory is pinned, which most of what these copies (positions) take is of: of the device's time and the host's in them."""
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
