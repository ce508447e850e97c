"""Runs a schedule: each op and call as early as possible, segment by segment.

Between two waits the host runs freely, so a segment of calls has a fixed duration. On a stream an op starts at its launch or at the end of its
predecessor. With `c` the sum of gaps and durations up to an op, end - c is a running maximum that does not depend on the segment's start: a segment is
evaluated once, and each further run is an addition and a maximum per stream. Ops that another stream waits for, and short segments, run
individually. With the C extension everything does, because a loop in C is faster than numpy calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.extension import EXTENSION
from advisor.views.replay.schedule import EARLIER, Schedule

STEADY = 1e-9
"""Two periods that differ by less than this share are the same: no further repeat changes them."""

SHORTEST = 24
"""Minimum ops of a vectorised stretch: numpy's calls cost as much as so many iterations of a loop."""

FEW = HARDLY_ANY  # of a column: with fewer look-ups, making a list takes longer
NEVER = -1e18  # before every time


class Lane(msgspec.Struct, frozen=True):
    """Effect of a segment on a stream: its ops end `sum_us` after the later of launch and predecessor, as `ready_us` says."""

    stream: int
    sum_us: float
    ready_us: float
    works: bool
    """Whether any op is left in it."""


Watched = tuple[int, int, float, float]
"""Op, lane, sum and ready as in `Lane`."""


class Stretch(msgspec.Struct, frozen=True):
    """Calls first to last - 1; only the last waits. watched: ops with an end that others need."""

    first: int
    last: int
    host_us: float
    lanes: tuple[Lane, ...]
    watched: tuple[Watched, ...]


def run(schedule: Schedule, repeats: int, start_us: float, busy_until_us: Mapping[int, float]) -> tuple[list[float], float]:
    """End of each repeat of host and GPU, and end of the last op. Stops once repeats are equal.

    repeats: 1 to 64 with the extension (ValueError for more); any number in Python.
    """
    if EXTENSION is None:
        return run_in_python(schedule, repeats, start_us, busy_until_us)
    done: tuple[list[float], float] = EXTENSION.replay(*columns_for_c(schedule, busy_until_us), repeats, start_us, STEADY)
    return done


def columns_for_c(schedule: Schedule, busy_until_us: Mapping[int, float]) -> Iterator[bytes]:
    """The columns of a schedule as the extension takes them."""
    of_calls = schedule.host_us, schedule.call_us, schedule.tail_us
    of_ops = schedule.dur_us, schedule.latency_us, schedule.gap_us
    yield from (np.asarray(column, np.float64).tobytes() for column in (*of_calls, *of_ops, _free_us(schedule, busy_until_us)))
    yield from (np.asarray(column, np.int64).tobytes() for column in (schedule.waits_for, _first_ops(schedule), schedule.stream, schedule.after))
    yield np.asarray(schedule.skip_op, bool).tobytes()


def _first_ops(schedule: Schedule) -> Ints:
    """(n_calls + 1,) the first op that each call launches, and how many there are."""
    return np.r_[0, np.cumsum(np.bincount(schedule.op_call, minlength=len(schedule.call_row)))]


def _free_us(schedule: Schedule, busy_until_us: Mapping[int, float]) -> list[float]:
    """Of each stream, until when it is busy before the schedule begins."""
    return [busy_until_us.get(s, NEVER) for s in range(int(schedule.stream.max()) + 1 if len(schedule.stream) else 0)]


def run_in_python(schedule: Schedule, repeats: int, start_us: float, busy_until_us: Mapping[int, float]) -> tuple[list[float], float]:
    """The same if there is no extension."""
    stretches = {stretch.first: stretch for stretch in _stretches(schedule)}
    n_calls, n_ops = len(schedule.call_row), len(schedule.op_row)
    alone = n_calls - sum(stretch.last - stretch.first for stretch in stretches.values())
    first_op = _indexable(_first_ops(schedule), alone)
    host, call, tail, waits = (_indexable(column, alone) for column in (schedule.host_us, schedule.call_us, schedule.tail_us, schedule.waits_for))
    after, stream, dur, latency, gap, skip = (
        _indexable(column, alone) for column in (schedule.after, schedule.stream, schedule.dur_us, schedule.latency_us, schedule.gap_us, schedule.skip_op)
    )
    free = _free_us(schedule, busy_until_us)
    ends = [NEVER] * n_ops
    t, done, finished = start_us, max([start_us, *free]), []
    for _ in range(repeats):
        before, latest = done, NEVER
        i = 0
        while i < n_calls:
            if stretch := stretches.get(i):
                began = [free[lane.stream] for lane in stretch.lanes]
                for lane, was in zip(stretch.lanes, began, strict=True):
                    end = lane.sum_us + max(lane.ready_us + t, was)
                    free[lane.stream] = end
                    done = max(done, end)
                    if lane.works:
                        latest = max(latest, end)
                for op, lane_number, sum_us, ready_us in stretch.watched:
                    ends[op] = sum_us + max(ready_us + t, began[lane_number])
                t += stretch.host_us
                i = stretch.last - 1
            else:
                t += host[i]
                for k in range(first_op[i], first_op[i + 1]):
                    s = stream[k]
                    if skip[k]:
                        ends[k] = free[s]
                        continue
                    start = t + latency[k]
                    if (ready := free[s] + gap[k]) > start:
                        start = ready
                    if (a := after[k]) >= 0 and (ready := ends[a] + gap[k]) > start:
                        start = ready
                    free[s] = ends[k] = start + dur[k]
                    if ends[k] > done:
                        done = ends[k]
                    if ends[k] > latest:
                        latest = ends[k]
                t += call[i]
            w = waits[i]
            if w != -1:
                end = (before if w == EARLIER else ends[w]) + tail[i]
                if end > t:
                    t = end
            i += 1
        finished.append(max(t, done))
        if len(finished) > 2 and abs(finished[-1] - 2 * finished[-2] + finished[-3]) <= STEADY * (finished[-1] - finished[-2]):
            break
    return [float(end) for end in finished], float(latest if latest > NEVER else start_us)


def _indexable(column: np.ndarray, asked: int) -> Any:
    """A list if many elements are read individually, else the array."""
    return column.tolist() if asked > FEW * len(column) else column


def _stretches(schedule: Schedule) -> list[Stretch]:
    """Runs of calls that nothing interrupts, long enough to be worth it."""
    n_calls = len(schedule.call_row)
    if not n_calls or not len(schedule.op_row):
        return []
    alone = np.zeros(n_calls, bool)
    alone[schedule.op_call[schedule.after >= 0]] = True
    ends_one = schedule.waits_for != -1
    # A stretch begins at the first call, after a wait, and around each call that stands alone.
    begins = np.flatnonzero(np.r_[True, ends_one[:-1]] | alone | np.r_[False, alone[:-1]])
    bounds = np.r_[begins, n_calls]
    ops: Ints = np.asarray(np.searchsorted(schedule.op_call, bounds), np.int64)
    worth = np.flatnonzero((np.diff(ops) >= SHORTEST) & ~alone[begins])
    if not len(worth):
        return []
    watched = np.zeros(len(schedule.op_row), bool)
    watched[schedule.after[schedule.after >= 0]] = True
    watched[schedule.waits_for[schedule.waits_for >= 0]] = True
    # When each call issues its ops, since the schedule's start.
    issued = np.cumsum(schedule.host_us) + np.r_[0.0, np.cumsum(schedule.call_us)[:-1]]
    since = (issued - schedule.host_us)[begins]
    gone = schedule.skip_op
    dur = np.where(gone, 0.0, schedule.dur_us)
    step = np.where(gone, 0.0, schedule.gap_us) + dur
    launched = issued[schedule.op_call] - np.repeat(since, np.diff(ops)) + schedule.latency_us
    lanes, seen = _lanes(schedule.stream, np.where(gone, NEVER, launched) + dur, step, ~gone, watched, ops[worth], ops[worth + 1])
    # In numpy's own order: an edit that changes nothing must not seem to by the last bit.
    host_us = [(schedule.host_us[a:b].sum() + schedule.call_us[a:b].sum()).item() for a, b in zip(begins[worth], bounds[worth + 1], strict=True)]
    return [Stretch(*one) for one in zip(begins[worth].tolist(), bounds[worth + 1].tolist(), host_us, lanes, seen, strict=True)]


def _lanes(
    stream: Ints, ready_us: Floats, step_us: Floats, works: Mask, watched: Mask, low: Ints, high: Ints
) -> tuple[list[tuple[Lane, ...]], list[tuple[Watched, ...]]]:
    """The lanes of each stretch of ops from low to high - 1, and the watched ops in them.

    ready_us: (n,) when each op would end on an idle stream, since its stretch began. step_us: its gap and its duration. works: whether it is left.
    """
    stretch = np.repeat(np.arange(len(low)), high - low)
    op = np.arange(len(stretch)) + np.repeat(low - np.r_[0, np.cumsum(high - low)[:-1]], high - low)
    if (stream[op] != stream[op[0]]).any():
        order = np.lexsort((stream[op], stretch))
        op, stretch = op[order], stretch[order]
    first = np.flatnonzero(np.r_[True, (np.diff(stretch) != 0) | (np.diff(stream[op]) != 0)])
    length = np.diff(np.r_[first, len(op)])
    sums, readies = np.empty(len(op)), np.empty(len(op))
    # Lanes of about the same length are worked out together, as rows of one table.
    digits = np.frexp(length)[1]
    for size in np.flatnonzero(np.bincount(digits)).tolist():
        rows = np.flatnonzero(digits == size)
        columns = np.arange(length[rows].max())
        there = columns < length[rows, None]
        at = np.where(there, first[rows, None] + columns, 0)
        sum_us = np.cumsum(np.where(there, step_us[op[at]], 0.0), axis=1)
        ready = np.maximum.accumulate(np.where(there, ready_us[op[at]] - sum_us, -np.inf), axis=1)
        sums[at[there]], readies[at[there]] = sum_us[there], ready[there]
    last = first + length - 1
    lanes: list[list[Lane]] = [[] for _ in low]
    done = stream[op[first]], sums[last], readies[last], np.logical_or.reduceat(works[op], first)
    for of, *lane in zip(stretch[first].tolist(), *(column.tolist() for column in done), strict=True):
        lanes[of].append(Lane(*lane))
    seen: list[list[Watched]] = [[] for _ in low]
    at = np.flatnonzero(watched[op])
    lane_of = np.searchsorted(first, at, side="right") - 1
    number = lane_of - np.searchsorted(stretch[first], stretch[at])
    for of, *one in zip(*(column.tolist() for column in (stretch[at], op[at], number, sums[at], readies[at])), strict=True):
        seen[of].append((*one,))
    return [(*of,) for of in lanes], [(*of,) for of in seen]


DIGITS = 4
"""In µs. No trace resolves less than a nanosecond, and rounding errors of C and of segments must not decide. Slightly more, so half of it, as half a
recorded time, is no tie.
"""


def without_noise(us: float) -> float:
    """A time as C and Python both have it. A sixteenth of a recorded time can be a tie: their errors go first, so that a tie is one to both."""
    return round(round(us, DIGITS + 3), DIGITS)


REPEATS = 4
"""Steps replayed before the period is read off: the first ones fill the queue between host and GPU. The longest path is read in the last but one."""


def period_us(schedule: Schedule) -> float:
    """Steady time of one step: the schedule is run back to back, each op and call as early as it can be."""
    if schedule not in _PERIODS:
        _PERIODS[schedule] = _steady_us(schedule)
    return _PERIODS[schedule]


_PERIODS: WeakKeyDictionary[Schedule, float] = WeakKeyDictionary()
"""Every saving is held against the same few schedules: each is run once."""


def _steady_us(schedule: Schedule) -> float:
    repeats = REPEATS if schedule.periodic else 1
    finished, _ = run(schedule, repeats, 0.0, {})
    total = finished[-1] - finished[-2] if repeats > 1 else finished[-1]
    return without_noise(total) / schedule.steps


def last_end_us(schedule: Schedule, start_us: float, busy_until_us: Mapping[int, float]) -> float:
    """End of the last op of one run that begins at `start_us`, on streams that are busy until then."""
    return without_noise(run(schedule, 1, start_us, busy_until_us)[1])
