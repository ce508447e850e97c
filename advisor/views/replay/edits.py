"""What fixes do to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.views.replay.schedule import Schedule

Edit = Callable[[Schedule], Schedule]
"""What a fix does to a schedule."""


class Edits(NamedTuple):
    """What a fix does to the step if it reaches least, what is likely, and most."""

    low: Edit
    expected: Edit
    high: Edit

    @classmethod
    def all_of(cls, edits: Sequence[Edits]) -> Edits:
        """Every fix applied, each at the same end."""
        return cls(*(combine(*ends) for ends in zip(*edits, strict=True))) if edits else cls(combine(), combine(), combine())


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
