"""A step as data that can be edited and run again: host calls in order, and the GPU ops they launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.views.replay.simulate import run


@dataclass(frozen=True)
class Schedule:
    """Host calls (n_calls,) in the order they were made, and GPU ops (n_ops,) in the order they were launched.

    Edits replace arrays and set `skip_*`; they never renumber, so that edits compose. All times in µs.

    host_us: host time since the call before. dispatch_us: how much of it is issuing ops (the rest is the program's own).
    call_us: the call itself, without what it waits. waits_for: op that must end before the call returns, -1 none,
    EARLIER for all of the repeat before. tail_us: from that op's end to the call's return.
    call_row: (n_calls,) row in `api_calls`. op_row: (n_ops,) row in `gpu_ops`.
    op_call: position of the launching call. stream: small integer. latency_us: launch to start on an idle stream.
    gap_us: after the op before on the stream, and after that on another stream which must end first (`after`, -1 none).
    """

    call_row: Ints
    host_us: Floats
    dispatch_us: Floats
    call_us: Floats
    waits_for: Ints
    tail_us: Floats
    op_row: Ints
    op_call: Ints
    stream: Ints
    dur_us: Floats
    latency_us: Floats
    gap_us: Floats
    after: Ints
    skip_op: Mask
    steps: int
    periodic: bool

    def edit(self, **arrays: np.ndarray) -> Schedule:
        """The same schedule with some arrays replaced."""
        return replace(self, **arrays)  # type: ignore[arg-type]

    @cached_property
    def replayed_us(self) -> float:
        """`period_us` of this schedule; every saving is held against the same few."""
        return _steady_us(self)

    def ops_of(self, gpu_rows: Ints) -> Ints:
        """Positions in this schedule of rows of `gpu_ops`; rows outside the schedule are left out."""
        return np.flatnonzero(np.isin(self.op_row, gpu_rows))


Edit = Callable[[Schedule], Schedule]
"""What a fix does to a schedule."""

REPEATS = 4
"""Steps replayed before the period is read off: the first ones fill the queue between host and GPU."""


def period_us(schedule: Schedule) -> float:
    """Steady time of one step: the schedule is run back to back, each op and call as early as it can be."""
    return schedule.replayed_us


def _steady_us(schedule: Schedule) -> float:
    repeats = REPEATS if schedule.periodic else 1
    finished, _ = run(schedule, repeats, 0.0, {})
    total = finished[-1] - finished[-2] if repeats > 1 else finished[-1]
    return total / schedule.steps


def last_end_us(schedule: Schedule, start_us: float, busy_until_us: Mapping[int, float]) -> float:
    """End of the last op of one run that begins at `start_us`, on streams that are busy until then."""
    return run(schedule, 1, start_us, busy_until_us)[1]


def combine(*edits: Edit) -> Edit:
    """All of several edits, one after the other."""

    def combined(schedule: Schedule) -> Schedule:
        for edit in edits:
            schedule = edit(schedule)
        return schedule

    return combined


def without_waits(calls: Ints) -> Edit:
    """These calls (positions) no longer wait for the GPU, nor cost the host anything."""

    def edit(schedule: Schedule) -> Schedule:
        waits, cost = schedule.waits_for.copy(), schedule.call_us.copy()
        waits[calls], cost[calls] = -1, 0.0
        return schedule.edit(waits_for=waits, call_us=cost)

    return edit


def with_durations(ops: Ints, dur_us: Floats) -> Edit:
    """These ops (positions) take that long; never longer than they did."""

    def edit(schedule: Schedule) -> Schedule:
        dur = schedule.dur_us.copy()
        dur[ops] = np.minimum(dur[ops], dur_us)
        return schedule.edit(dur_us=dur)

    return edit


ASYNC_LATENCY_US = 10.0
"""From the call of an asynchronous copy to its start on an idle stream, at most, as the captures show."""


def faster_copies(ops: Ints, dur_us: Floats) -> Edit:
    """These copies (positions) take that long and start without being staged; never slower than they were."""

    def edit(schedule: Schedule) -> Schedule:
        dur, latency = schedule.dur_us.copy(), schedule.latency_us.copy()
        dur[ops] = np.minimum(dur[ops], dur_us)
        latency[ops] = np.minimum(latency[ops], ASYNC_LATENCY_US)
        return schedule.edit(dur_us=dur, latency_us=latency)

    return edit


def fused(kept: Ints, gone: Ints, dur_us: Floats) -> Edit:
    """Ops `gone` (positions) disappear with the host time that issued them; `kept` do their work in `dur_us`."""

    def edit(schedule: Schedule) -> Schedule:
        dur, skip = schedule.dur_us.copy(), schedule.skip_op.copy()
        dur[kept] = dur_us
        skip[gone] = True
        host, dispatch, cost = schedule.host_us.copy(), schedule.dispatch_us.copy(), schedule.call_us.copy()
        # A call whose ops are all gone is not made.
        left = np.bincount(schedule.op_call[~skip], minlength=len(host))
        calls = np.unique(schedule.op_call[gone])
        calls = calls[left[calls] == 0]
        host[calls] -= dispatch[calls]
        dispatch[calls] = cost[calls] = 0.0
        return schedule.edit(dur_us=dur, skip_op=skip, host_us=host, dispatch_us=dispatch, call_us=cost)

    return edit


def cheaper_dispatch(share: float) -> Edit:
    """Issuing ops costs the host this share of what it did; waits and the program's own work stay."""

    def edit(schedule: Schedule) -> Schedule:
        launches = np.zeros(len(schedule.call_us), bool)
        launches[schedule.op_call] = True
        return schedule.edit(
            host_us=schedule.host_us - (1 - share) * schedule.dispatch_us,
            dispatch_us=share * schedule.dispatch_us,
            call_us=np.where(launches, share * schedule.call_us, schedule.call_us),
        )

    return edit


def with_dispatch(keep: Floats) -> Edit:
    """Issuing costs each call (n_calls,) this share of what it did; calls themselves stay."""

    def edit(schedule: Schedule) -> Schedule:
        return schedule.edit(
            host_us=schedule.host_us - (1 - keep) * schedule.dispatch_us, dispatch_us=keep * schedule.dispatch_us
        )

    return edit


def batched(items: float, ops: Ints) -> Edit:
    """One step serves `items` as it served one: per item, the host's part and these ops (positions) are shared."""

    def edit(schedule: Schedule) -> Schedule:
        dur = schedule.dur_us.copy()
        dur[ops] /= items
        return schedule.edit(
            host_us=schedule.host_us / items,
            dispatch_us=schedule.dispatch_us / items,
            call_us=schedule.call_us / items,
            tail_us=schedule.tail_us / items,
            latency_us=schedule.latency_us / items,
            gap_us=schedule.gap_us / items,
            dur_us=dur,
        )

    return edit


def as_graph(launch_us: float, node_gap_us: float) -> Edit:
    """The step's launches become graph launches: one where the step begins and one after each wait of the host."""

    def edit(schedule: Schedule) -> Schedule:
        n = len(schedule.call_us)
        launches = np.zeros(n, bool)
        launches[schedule.op_call[~schedule.skip_op]] = True
        waits = schedule.waits_for != -1
        starts = np.r_[True, waits[:-1]] if n else waits
        # The first launch after each wait carries the graph's cost.
        segment = np.cumsum(starts) - 1
        rows = np.flatnonzero(launches)
        _, first = np.unique(segment[rows], return_index=True)
        cost = np.where(launches & ~waits, 0.0, schedule.call_us)
        cost[rows[first]] += launch_us
        return schedule.edit(
            host_us=schedule.host_us - schedule.dispatch_us,
            dispatch_us=np.zeros(n),
            call_us=cost,
            gap_us=np.minimum(schedule.gap_us, node_gap_us),
        )

    return edit


def on_side_stream(ops: Ints) -> Edit:
    """These copies (positions) run on a stream of their own, ahead: no op of the same step waits for them."""

    def edit(schedule: Schedule) -> Schedule:
        stream, after = schedule.stream.copy(), schedule.after.copy()
        stream[ops] = schedule.stream.max() + 1
        after[ops] = -1
        after[np.isin(after, ops)] = -1
        waits = schedule.waits_for.copy()
        waits[np.isin(waits, ops)] = -1
        return schedule.edit(stream=stream, after=after, waits_for=waits)

    return edit
