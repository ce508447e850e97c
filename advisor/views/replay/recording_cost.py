"""Profiler overhead of the host, by two independent estimates, and a schedule without it.

Host time between close events is partly overhead; a pause without events belongs to the program. The first estimate subtracts the overhead per event
that the trace shows: an empty Python call takes about 0.05 µs, so its recorded time is overhead. The second ignores recorded times and adds the time
that a host needs per op, call and frame. Their geometric mean, weighted by certainty, is closer than either (docs/true-step.md).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, complement, in_order, intersect, joined
from advisor.knowledge import recording_cost
from advisor.knowledge.counts import ENOUGH, USUAL
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import CONSIDERABLE, MOST, NO_DIFFERENCE
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Source, Timeline
from advisor.views.replay.host_spans import HostSpans
from advisor.views.replay.pauses import Pauses
from advisor.views.replay.schedule import Schedule
from advisor.views.replay.simulate import period_us
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps

FEWEST_CALLS = USUAL
"""Minimum number of empty calls; with fewer, cold caches dominate their time."""

FEW_STEPS = ENOUGH
"""Unmarked steps, at most this many: a recording of the program's start, with slower first steps."""

SETTLED_AT_LEAST = MOST
"""Steps that became faster by more than this while they were recorded differ in more than in how warm the recorder was."""


MOSTLY = 1 - CONSIDERABLE
"""Share of step pairs in which the later step is shorter, if steps settle; half in random order."""


class HostCost(msgspec.Struct, frozen=True):
    """Host time of a schedule, by whether recording can stretch it.

    dispatch_us, own_us, call_us, return_us: (n_calls,) close events in time of launching ops, of other CPU code, of the calls, and of their return from a
    wait. issued_last: (n_ops,) ops of graphs, with a launch that returns before they can start. gone_us: (n_calls,) profiler work; odd_us: unusual pauses
    (`Pauses`). less_us: (n_calls,) the first four without overhead, by the trace. needed_us: host time that these events need, None if unknown.
    python_call_us: assumed overhead per Python call. settled: last step over mean step, if steps got shorter in turn (the profiler warms up too). cold:
    whether the steps are the program's first.
    """

    dispatch_us: Floats
    own_us: Floats
    call_us: Floats
    return_us: Floats
    issued_last: Mask
    gone_us: Floats
    odd_us: Floats
    less_us: Floats
    needed_us: float | None
    python_us: float
    python_call_us: float
    settled: float
    cold: bool

    @property
    def recorded_us(self) -> float:
        """The time that recording can have stretched, as recorded."""
        return float(self._close_us.sum())

    @property
    def _close_us(self) -> Floats:
        return self.dispatch_us + self.own_us + self.call_us + self.return_us

    @property
    def estimates_us(self) -> tuple[float, ...]:
        """That time as it is without recording, by each estimate that can be made."""
        less = float(self.less_us.sum())
        return (less,) if self.needed_us is None else (less, min(self.needed_us, self.recorded_us))

    @property
    def expected_us(self) -> float:
        """The geometric mean of the estimates, each by how sure it is."""
        logs = np.log(np.maximum(self.estimates_us, 1e-9))
        return float(np.exp(np.average(logs, weights=self._deviations**-2.0)))

    @property
    def low_us(self) -> float:
        """As little as it may be: neither estimate is below."""
        return min(self.expected_us / self._factor, *self.estimates_us)

    @property
    def high_us(self) -> float:
        """As much as it may be; never more than was recorded."""
        return min(self.expected_us * self._factor, self.recorded_us)

    @property
    def _deviations(self) -> Floats:
        """Of the logarithm of each estimate. The more was taken off for Python calls, the less is known of what is left."""
        spread, less = recording_cost.spread(), max(self.estimates_us[0], 1e-9)
        added = math.hypot(spread.added, spread.added_share * self.python_us / less)
        return np.array([added, spread.needed][: len(self.estimates_us)])

    @property
    def _factor(self) -> float:
        spread, both = recording_cost.spread(), 1 / math.sqrt(float((self._deviations**-2.0).sum()))
        return math.exp(spread.deviations * math.hypot(both, spread.cold * self.cold))

    def left_in(self, schedule: Schedule, total_us: float, own: float = 1.0, odd: float = 0.0) -> Schedule:
        """The schedule with stretched time of `total_us` in all, CPU code scaled by `own`, and that share of the odd pauses."""
        close, less, least = self._close_us, self.less_us, float(self.less_us.sum())
        if total_us <= least:
            left = less * (total_us / least if least else 1.0)
        else:
            left = less + (close - less) * min((total_us - least) / max(self.recorded_us - least, 1e-9), 1.0)
        share = np.divide(left, close, out=np.ones(len(close)), where=close > 0)
        own_dispatch = schedule.dispatch_us - self.dispatch_us
        own_rest = np.maximum(schedule.host_us - schedule.dispatch_us - self.own_us - self.gone_us - (1 - odd) * self.odd_us, 0.0)
        dispatch = self.settled * (share * self.dispatch_us + own * own_dispatch)
        call = share * self.call_us + (schedule.call_us - self.call_us)
        # What began once a call had returned begins as much earlier as the call gets shorter.
        behind = self.issued_last & (schedule.latency_us >= schedule.call_us[schedule.op_call])
        return schedule.edit(
            host_us=dispatch + self.settled * (share * self.own_us + own * own_rest),
            dispatch_us=dispatch,
            call_us=call,
            latency_us=schedule.latency_us - np.where(behind, (schedule.call_us - call)[schedule.op_call], 0.0),
            tail_us=share * self.return_us + (schedule.tail_us - self.return_us),
        )

    @classmethod
    def create(cls, timeline: Timeline, steps: Steps, host: HostActivity, schedule: Schedule) -> HostCost | None:
        """That of a recorded schedule; None if the host's part was not recorded or nobody knows the recorder's cost."""
        # Frames of another trace of the same run were not recorded in this one.
        python_calls = timeline.python_calls[:0] if timeline.source.borrowed else timeline.python_calls
        tables = (timeline.cpu_ops, timeline.api_calls, python_calls, timeline.annotations)
        *frames, marks = (f.select("name", "start_us", "dur_us").masked(host.on_threads(f)) for f in tables)
        ops, calls, python = (f["start_us"] for f in frames)
        # The last step that was recorded only closes the window.
        pauses = Pauses.create([*frames, marks], steps.steps + steps.repeats, host.data_loading)
        edges = pauses.edges_us
        added = recording_cost.added(timeline.source, _empty_call_us(frames[2], edges, steps), _view_us(timeline, frames[0], edges, steps))
        if added is None or not len(edges) or not len(schedule.call_row) or schedule.call_row[0] < 0:
            return None
        limits, spans = recording_cost.limits(), HostSpans.create(timeline, steps, schedule)
        quiet = joined(pauses.own, pauses.odd)
        close = complement(quiet, float(edges[0]) - 1.0, float(edges[-1]) + 1.0)
        dispatch = np.minimum(spans.covered_us(intersect(close, host.launch)), schedule.dispatch_us)
        own = np.clip(spans.covered_us(close) - dispatch, 0.0, schedule.host_us - schedule.dispatch_us)
        # The schedule's own calls are counted with the time before them; a wait is no cost, unless the framework runs code in it.
        waits, nodes = schedule.waits_for != -1, _nodes(timeline, schedule)
        returning = waits & added.in_waits
        ended = spans.end_us + timeline.api_calls["dur_us"][schedule.call_row]
        back = np.where(returning, np.maximum(schedule.tail_us, 0.0), 0.0)
        counts = (spans.count(ops), spans.count(calls) + ~waits, spans.count(python) + np.where(returning, _count_within(python, spans.end_us, ended), 0))
        longest = np.where(returning | (nodes * added.graph_node_us > 0), np.inf, limits.quiet_us)
        call = np.where(waits & ~returning, 0.0, np.minimum(schedule.call_us, longest))
        recorded = dispatch + own + call + back
        python_us = counts[2] * added.python_call_us
        issuing_us = counts[0] * added.op_us + counts[1] * added.api_call_us + nodes * added.graph_node_us
        less = np.maximum(added.kept * (recorded - python_us) - issuing_us, (1 - limits.max_share) * recorded)
        return cls(
            dispatch_us=dispatch,
            own_us=own,
            call_us=call,
            return_us=back,
            issued_last=nodes[schedule.op_call] > 0,
            gone_us=spans.covered_us(intersect(pauses.own, host.profiler)),
            odd_us=spans.covered_us(pauses.odd),
            less_us=less,
            needed_us=_needed_us(timeline.source, counts, float(recorded.sum()), float(less.sum()), added) if len(ops) else None,
            python_us=min(float(python_us.sum()), float((recorded - less).sum())),
            python_call_us=added.python_call_us,
            settled=float(np.clip(steps.periods_us[-1] / steps.step_us, SETTLED_AT_LEAST, 1.0)) if _became_shorter(steps.periods_us) else 1.0,
            cold=steps.basis in ("detected", "whole") and steps.steps < FEW_STEPS,
        )


def _nodes(timeline: Timeline, schedule: Schedule) -> Ints:
    """(n_calls,) how many ops of a graph each call launched: each is recorded by itself."""
    of_graph = (timeline.gpu_ops["graph_id"] >= 0)[schedule.op_row]
    return np.bincount(schedule.op_call[of_graph], minlength=len(schedule.call_row))


def _count_within(times_us: Floats, start_us: Floats, end_us: Floats) -> Ints:
    """(n,) how many of the times lie in each span."""
    times = in_order(times_us)
    return np.searchsorted(times, end_us) - np.searchsorted(times, start_us)


ENOUGH_STEPS = 500
"""Steps, evenly spread, that show whether they became shorter."""


def _became_shorter(periods_us: Floats) -> bool:
    """Whether steps mostly took less time than their predecessor. A short last step after alternating steps shows nothing."""
    if len(periods_us) > ENOUGH_STEPS:  # their pairs grow with the square
        periods_us = periods_us[np.linspace(0, len(periods_us) - 1, ENOUGH_STEPS).astype(int)]
    earlier, later = np.triu_indices(len(periods_us), 1)
    return bool(len(earlier)) and float((periods_us[later] < periods_us[earlier]).mean()) >= MOSTLY


def without_recording(cost: HostCost, recorded: Schedule) -> tuple[Schedule, Schedule, Schedule]:
    """The schedule with the host's time as low, as expected and as high as it may be when nobody records."""
    own = recording_cost.spread().own
    return (cost.left_in(recorded, cost.low_us, 1 / own), cost.left_in(recorded, cost.expected_us), cost.left_in(recorded, cost.high_us, own, odd=1.0))


SAME_STEP = NO_DIFFERENCE
"""A replayed step that is closer than this to the measured one could be it."""

HALVINGS = 12
"""Of the range in which the fitting time of the host is looked for: to a four-thousandth of what was recorded."""


FASTEST_STAGING = cost("fastest-staging")


def as_measured(cost: HostCost, recorded: Schedule, slowed: Mask, step_us: float, fastest: float) -> Schedule:
    """The schedule, if its GPU part alone exceeds a measured step: ops that recording makes longer become as short as needed. Unchanged if they cannot be
    the reason.

    slowed: (n,) these ops: copies that the host moves, or collectives that wait for another rank's host. fastest: the least share of its time that each takes.
    """

    def faster(factor: float) -> Schedule:
        return recorded.edit(dur_us=np.where(slowed, factor * recorded.dur_us, recorded.dur_us))

    def fits(factor: float) -> bool:
        return period_us(cost.left_in(faster(factor), cost.low_us)) <= step_us

    if not slowed.any() or fits(1.0) or not fits(fastest):
        return recorded
    low, high = fastest, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return faster(low)


def fitting(cost: HostCost, recorded: Schedule, step_us: float) -> tuple[Schedule, Schedule, Schedule]:
    """The same for a measured step: only host times with which the replayed step takes as long.

    If the host is the bound, a single time fits, and all three are equal. If the GPU is, the step says little about the host: any time hidden behind the
    GPU fits, and the range stays.
    """

    def replayed(total_us: float) -> float:
        return period_us(cost.left_in(recorded, total_us))

    def longest(within_us: float) -> float:
        """The most of the host's time with which a step takes no longer."""
        low, high = 0.0, cost.recorded_us
        if replayed(high) <= within_us:
            return high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if replayed(middle) <= within_us else (low, middle)
        return low

    without_host = replayed(0.0)
    most = longest(max(step_us, without_host) * (1 + SAME_STEP))
    gpu_bound = step_us <= without_host * recording_cost.spread().gpu_slower
    least = 0.0 if gpu_bound else longest(step_us * (1 - SAME_STEP))
    low, expected, high = (min(max(us, least), most) for us in (cost.low_us, cost.expected_us, cost.high_us))
    return cost.left_in(recorded, low), cost.left_in(recorded, expected), cost.left_in(recorded, high)


def _needed_us(source: Source, counts: tuple[Ints, Ints, Ints], recorded_us: float, less_us: float, added: recording_cost.Added) -> float | None:
    """Host time that so many ops, calls and Python calls need; None if they do not show it.

    If few events are in much time, they do not explain it: time that no profiler adds is needed too.
    """
    needed, limits = recording_cost.needed(source), recording_cost.limits()
    if needed is None:
        return None
    ops, calls, python = (int(count.sum()) for count in counts)
    own_us = recorded_us - limits.event_us * (ops + calls) - limits.python_times * added.python_call_us * python
    return max(ops * needed.op_us + calls * needed.api_call_us + python * needed.python_call_us, min(own_us, less_us))


def _empty_call_us(python: Table, edges: Floats, steps: Steps) -> float | None:
    """What a Python call that does nothing takes in the trace: its duration and the time to the next edge; the mean."""
    if not len(python):
        return None
    start = python["start_us"]
    rows = np.flatnonzero(python["name"].matching(recording_cost.DOES_NOTHING.match))
    rows = rows[steps.issued_at(start[rows])]
    if len(rows) < FEWEST_CALLS:
        return None
    end = start[rows] + python["dur_us"][rows]
    following = edges[np.minimum(np.searchsorted(edges, end, side="right"), len(edges) - 1)]
    taken = following - start[rows]
    return _usual(taken)


def _view_us(timeline: Timeline, ops: Table, edges: Floats, steps: Steps) -> float | None:
    """Time of a view op as NVTX range, including writing its text just before: duration plus time since the previous edge. Mean over ops inside another op, so
    no Python is in between.
    """
    if not len(ops) or not recording_cost.ranges_tell(timeline.source):
        return None
    makes_view = ops["name"].matching(recording_cost.MAKES_A_VIEW.match)
    start, end = ops.bounds()
    order = np.argsort(start, kind="stable")
    reach = np.r_[-np.inf, np.maximum.accumulate(end[order])[:-1]]
    called = np.zeros(len(ops), bool)
    called[order] = end[order] <= reach
    rows = np.flatnonzero(makes_view & called & steps.issued_at(start))
    if len(rows) < FEWEST_CALLS:
        return None
    before = edges[np.maximum(np.searchsorted(edges, start[rows]) - 1, 0)]
    return _usual(end[rows] - before)


def _usual(taken_us: Floats) -> float | None:
    """The mean, since what is slow now and then (memory for the next records) is recording too; but not a pause."""
    usual = taken_us[taken_us < recording_cost.limits().quiet_us]
    return float(usual.mean()) if len(usual) else None
