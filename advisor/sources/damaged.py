"""Repairs single records with impossible times: a duration that overflowed, a start that is far off.

Other records decide. Ops of a stream run in the order of their launches and one at a time. Calls of a thread are
numbered in order. A wait for the device ends after the awaited work. A few records that contradict this are damaged, and are moved to
fit the others. Many are not: then clocks disagree, or several queues share a number, which other checks report. Work of
another queue with a wrong number, such as collectives and copies, is not damaged either: its records are alike."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.intervals import Floats, Mask
from advisor.knowledge.cuda_api import plain
from advisor.knowledge.op_tokens.families import Family, family
from advisor.knowledge.shares import FAR_APART
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Table
from advisor.recordings.timeline import TABLES, GpuKind, Timeline
from advisor.sources.queues import SLACK_US, Queued, few_rows

FAR = FAR_APART
"""A record that overflowed is far longer than all others of its name. Records of a separate queue are alike."""

_WAITS_FOR_DEVICE = re.compile(r"(cuda|cu|hip)(Device|Ctx|Context)Synchronize$")


def mended(timeline: Timeline) -> Timeline:
    """The timeline with repaired records; the same object if none is damaged."""
    ops, calls = Queued.create(("pid", "tid"), {"external_id": timeline.cpu_ops, "correlation": timeline.api_calls})
    (work,) = Queued.create(("device", "stream"), {"correlation": timeline.gpu_ops})
    for host in (ops, calls):
        host.put_back(_only_row(host.out_of_turn()))
    calls.cut(*_beyond_their_op(calls, ops))
    launched = _Launched.create(work, calls)
    work.put_back(launched.misplaced(work), launched.start_us, lambda *rows: launched.race(work, *rows))
    work.cut(*_too_long(work, launched))
    issues = (*ops.issues("op"), *calls.issues("call"), *work.issues("GPU record"))
    if not issues:
        return timeline
    tables = {name: getattr(timeline, name) for name in TABLES} | {"cpu_ops": ops.frame, "api_calls": calls.frame, "gpu_ops": work.frame}
    timed = {name: frame for name, frame in tables.items() if "start_us" in frame and len(frame)}
    shift_us = min(float(frame["start_us"].min()) for frame in timed.values())
    tables |= {name: frame.with_columns(start_us=frame["start_us"] - shift_us) for name, frame in timed.items() if shift_us}
    source = replace(timeline.source, issues=(*timeline.source.issues, *issues))
    return Timeline.build(source, timeline.devices, timeline.base_ns + round(shift_us * 1000), **tables)


class _Launched(msgspec.Struct, frozen=True):
    """For each GPU op: the row of its call, -1 if unknown, and its start_us, then minus infinity.

    waited_us: the end of a later wait for the device, infinite if there was none. extent_us: the recorded time of the host, until over_us."""

    calls: Queued
    call: NDArray[np.int32]
    start_us: Floats
    waited_us: Floats
    extent_us: float
    over_us: float

    @classmethod
    def create(cls, work: Queued, calls: Queued) -> _Launched:
        n = len(work.numbers)
        waited = np.broadcast_to(np.inf, n)
        if not len(calls.numbers):
            return cls(calls, np.broadcast_to(np.int32(-1), n), np.broadcast_to(-np.inf, n), waited, np.inf, np.inf)
        order = np.lexsort((calls.start_us, calls.numbers))
        at = order[np.minimum(np.searchsorted(calls.numbers, work.numbers, sorter=order), len(order) - 1)]
        known = (calls.numbers[at] == work.numbers) & (work.numbers >= 0)
        call, start = np.where(known, at, -1).astype(np.int32), np.where(known, calls.start_us[at], -np.inf)
        del order, at
        names = calls.table["name"]
        waits = np.array([bool(_WAITS_FOR_DEVICE.match(plain(name))) for name in names.categories], bool)[names.codes]
        # A wait is for its own device, and which that is the call does not say.
        if waits.any() and len(np.unique(work.table["device"])) == len(np.unique(calls.table["pid"])) == 1:
            began = np.argsort(calls.start_us[waits], kind="stable")
            over = np.minimum.accumulate(calls.end_us[waits][began][::-1])[::-1]
            waited = np.where(known, np.r_[over, np.inf][np.searchsorted(calls.start_us[waits][began], start, side="right")], np.inf)
        over_us = float(calls.end_us.max())
        return cls(calls, call, start, waited, over_us - float(calls.start_us.min()), over_us)

    def misplaced(self, work: Queued) -> Mask:
        """Ops that begin before their launch, and before ops of their stream that were launched earlier: with wrong clocks they would keep their
        order. Ops farther from their launch than the whole recording: no clock is off by that. And unique violations: an op that begins before
        its launch, or a kernel that is out of order."""
        turn = work.out_of_turn()
        before_us, after_us = self.start_us - work.start_us, work.start_us - np.minimum(self.waited_us, self.over_us)
        early = before_us > SLACK_US
        return (early & turn) | (np.maximum(before_us, after_us) > self.extent_us) | _only_row(early) | _computing(work.table, _only_row(turn))

    def race(self, work: Queued, before: int | None, row: int, after: int | None) -> bool:
        """Whether two threads launched into a stream at once: then the numbers of their calls do not show their order."""
        overtakes = before is not None and work.start_us[row] < work.start_us[before] and self.start_us[row] < self._end_us(before)
        overtaken = after is not None and work.start_us[after] < work.start_us[row] and self.start_us[after] < self._end_us(row)
        return bool(overtakes or overtaken)

    def _end_us(self, row: int) -> float:
        """When the call of an op ends, minus infinity if that is unknown."""
        call = self.call[row]
        return float(self.calls.start_us[call] + self.calls.dur_us[call]) if call >= 0 else -np.inf


def _only_row(wrong: Mask) -> Mask:
    """The only row that satisfies this. None for several rows: then the profiler may number or time events differently."""
    return few_rows(wrong) if wrong.sum() == 1 else np.zeros(len(wrong), bool)


def _too_long(work: Queued, launched: _Launched) -> tuple[Mask, Floats]:
    """Ops that overlap the next op of their stream, or a wait for them, by more than the whole recording. And kernels unlike the others of their name
    that end after the next op, long after a wait, or after all host work. With their latest possible ends."""
    ops, end_us = work.table, work.end_us

    def times_after(rows: NDArray[np.int32], times_us: Floats) -> Floats:
        """The times of what follows each row, infinite if nothing does."""
        return np.where(rows < 0, np.inf, times_us[rows])

    after = work.following(np.ones(len(ops), bool))
    endless = end_us > np.minimum(times_after(after, end_us), launched.waited_us) + launched.extent_us
    until_us = np.minimum(times_after(after, work.start_us), launched.waited_us)
    kernel = work.following(ops["kind"] == GpuKind.KERNEL.value)
    over, waited, beyond = (
        end_us > times_after(kernel, end_us) + SLACK_US,
        end_us > launched.waited_us + SLACK_US,
        end_us > launched.over_us + launched.extent_us,
    )
    if not (suspect := over | waited | beyond).any():
        return endless, until_us
    name, usual_us = ops["name"].codes, np.zeros(len(ops["name"].categories))
    np.maximum.at(usual_us, name[~suspect], work.dur_us[~suspect])
    usual_us = usual_us[name]
    unlike = (work.dur_us > FAR * usual_us) & ((usual_us > 0) | _only_row(over))
    waited &= end_us - launched.waited_us > FAR * usual_us
    over, beyond = _computing(ops, (over | waited) & unlike), _computing(ops, beyond & unlike & (usual_us > 0))
    until_us = np.minimum(until_us, np.where(over, times_after(kernel, work.start_us), np.inf))
    return over | beyond | endless, np.minimum(until_us, np.where(beyond, work.start_us + usual_us, np.inf))


def _computing(ops: Table, among: Mask) -> Mask:
    """Those of some ops that compute: copies and collectives may have a queue of their own that is unknown."""
    found = among & (ops["kind"] == GpuKind.KERNEL.value)
    rows = np.flatnonzero(found)
    pairs = zip(ops["name"][rows], ops["collective"][rows], strict=True)
    found[rows] = [family(name, collective=collective) is not Family.COMMUNICATION for name, collective in pairs]
    return found


def _beyond_their_op(calls: Queued, ops: Queued) -> tuple[Mask, Floats]:
    """Calls that end after the framework's op that made them, or after the start of the next op, which makes no call. With their latest possible ends."""
    found, until = np.zeros(len(calls.numbers), bool), np.full(len(calls.numbers), np.inf)
    threads = ops.by_queue()
    for thread, rows in calls.by_queue().items() if threads else ():
        of = threads.get(thread)
        if of is None:
            continue
        start, end = calls.start_us[rows], calls.end_us[rows]
        at = np.searchsorted(ops.start_us[of], start, side="right")
        around = np.r_[-np.inf, np.maximum.accumulate(ops.end_us[of])][at]
        limit = np.minimum(np.where(around > start, around, np.inf), np.r_[ops.start_us[of], np.inf][at])
        found[rows] = end > limit + SLACK_US
        until[rows] = np.minimum(limit, np.r_[start[1:], np.inf])
    return found, until
