"""The recorded steps as a schedule, and the gain of an edit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from advisor.intervals import NANOSECOND_US, Floats, Mask, Spans, clip, length, overlap_with, union
from advisor.knowledge import recording_cost
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_tokens.families import Family, family
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import MemoryKind, Timeline
from advisor.report.finding import LOW_SHARE, Basis, Saving
from advisor.views.replay.edits import Edit, Edits, least_us
from advisor.views.replay.from_trace import begun_us, calls_of_window, ended_before_us, gpu_only, schedule_of
from advisor.views.replay.recording_cost import FASTEST_STAGING, HostCost, as_measured, fitting, without_recording
from advisor.views.replay.schedule import Schedule
from advisor.views.replay.simulate import last_end_us, period_us
from advisor.views.replay.true_step import Calibration, Timed, TrueStep
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps

MAX_CALLS = 20_000
"""Calls that are replayed: of a longer window its middle steps represent all. A replay of so many takes some 50 ms."""

HIDDEN, SEEN = costs("hidden-host")

MAX_ERROR = 0.15
"""A replay further from the recording than this is no base for a figure: savings are then called bounds."""


AMISS = LOW_SHARE
"""Share of a step: a replay's rounding explains a smaller difference of fixes, or a step that is longer by less."""

_TIMES = ("dur_us", "latency_us", "host_us", "dispatch_us", "call_us")
"""Columns of a schedule that are never negative. Gaps and returns may be: clocks differ."""


@dataclass(frozen=True)
class Replay:
    """`recorded` replays the trace unchanged. `corrected` has the expected host time without a profiler, `fastest` and `slowest` the lowest and highest. If the
    step was measured without a profiler, they take as long as that.

    step_us: the recorded step, the time base of rules; the engine converts savings to `true_step`. error: distance between the end of the unedited replay and
    the recorded end, as a share of the window. cost: None if unknown.
    """

    recorded: Schedule
    corrected: Schedule
    fastest: Schedule
    slowest: Schedule
    call_start_us: Floats
    error: float
    true_step: TrueStep
    cost: HostCost | None = None
    _shorter_by: WeakKeyDictionary[Edit, dict[Schedule, float]] = field(init=False, default_factory=WeakKeyDictionary, repr=False, compare=False)
    """Earlier replays: low and expected fixes often share an edit, which others are compared with."""

    @property
    def step_us(self) -> float:
        """The step as the trace shows it."""
        return self.true_step.recorded_us

    @property
    def host_share(self) -> float:
        """How much of the host's recorded time is its own, as expected; the rest is recording."""
        recorded = float(self.recorded.host_us.sum())
        return float(self.corrected.host_us.sum()) / recorded if recorded > 0 else 1.0

    @cached_property
    def hidden(self) -> float:
        """How far the step is as long whatever the host's time is: 1 up to `HIDDEN`, 0 from `SEEN` on."""
        before = period_us(self.fastest)
        ratio = period_us(self.corrected) / before if before > 0 else SEEN
        return float(np.clip((SEEN - ratio) / (SEEN - HIDDEN), 0.0, 1.0))

    def _gives_the_host_work(self, edit: Edit) -> bool:
        after = edit.apply(self.corrected)
        return float((after.host_us + after.call_us).sum()) > (1 + AMISS) * float((self.corrected.host_us + self.corrected.call_us).sum())

    def uncovered_share(self, spans: Spans) -> Floats:
        """(n_calls,) share of the host time before each call that lies outside disjoint, sorted spans."""
        host = self.recorded.host_us
        inside = overlap_with(self.call_start_us - host, self.call_start_us, spans)
        return np.clip(1 - np.divide(inside, host, out=np.zeros(len(host)), where=host > 0), 0.0, 1.0)

    @property
    def basis(self) -> Basis:
        """The kind of a saving from this replay."""
        return "simulated" if self.error <= MAX_ERROR else "bound"

    def share(self, schedule: Schedule, edit: Edit) -> float:
        """Share of a step that an edit saves on one schedule, 0 if it saves nothing."""
        return max(0.0, self._shorter(schedule, edit))

    def expected_share(self, edit: Edit) -> float:
        """Expected share of the step that an edit saves: the mean over possible host times, not the value at the likely time, since a GPU fix may gain nothing
        there and much below. Both ends, `deviations` away, have the weight that gives the three points the whole spread. If the step only limits the host's
        time from above, see `HIDDEN`.
        """
        likely, fast, slow = (self._shorter(schedule, edit) for schedule in (self.corrected, self.fastest, self.slowest))
        outer = 1 / (2 * recording_cost.spread().deviations ** 2)
        told = (1 - 2 * outer) * likely + outer * (fast + slow)
        # A host that takes no longer is no slower than likely; what gives it more to do may make it the bound.
        no_slower = (1 - outer) * likely + outer * fast if self._gives_the_host_work(edit) else (likely + fast) / 2
        return max(0.0, self.hidden * no_slower + (1 - self.hidden) * told)

    def most_share(self, edit: Edit) -> float:
        """Share of a step that an edit saves with the host's time as good for it as it may be."""
        return max(self.share(schedule, edit) for schedule in (self.corrected, self.fastest, self.slowest))

    def _shorter(self, schedule: Schedule, edit: Edit) -> float:
        known = self._shorter_by.setdefault(edit, {})
        if schedule not in known:
            before = period_us(schedule)
            known[schedule] = 1 - period_us(edit.apply(schedule)) / before if before > 0 else 0.0
        return known[schedule]

    def _check(self, edit: Edit) -> None:
        """Raises ValueError for an edit after which something takes less than no time, or a time that is no number."""
        after = edit.apply(self.corrected)
        for name in _TIMES:
            times = getattr(after, name)
            if not (np.isfinite(times) & (times >= -NANOSECOND_US)).all():
                raise ValueError(f"the edit {edit.name} makes {name} negative, infinite or no number")

    def amiss(self, edits: Edits) -> str:
        """Why edits are no fix, else "": each makes the step longer, or their order is most, expected, least. If a fix only has a likely and a best end,
        the least may gain more: it leaves other things unchanged."""
        low, expected, high = (self._shorter(self.corrected, edit) for edit in edits)
        if max(low, expected, high) < -AMISS:
            return "each of its edits makes the step longer"
        if min(low - expected, expected - high) > AMISS:
            return "its edits gain less from one to the next: give the least first, then the expected, then the most"
        return ""

    def removable_share(self, edits: Edits) -> float:
        """Share of the step that a fix can remove: all but the remaining work at the high end with the fastest host. A replay in which the host takes twice as
        long gives a share of a longer step.
        """
        whole_us = max(self.true_step.expected_us, period_us(self.corrected))
        return max(0.0, 1 - least_us(self.fastest, edits.high) / whole_us) if whole_us > 0 else 0.0

    def saving(self, edits: Edits, removes: str, at_most_us: float = np.inf, likely_at_most_us: float = np.inf) -> Saving:
        """The gain of a step in the trace's own time: expected, and the ends over possible host times.

        at_most_us: measured loss without a profiler, which limits the gain. likely_at_most_us: the same for the expected fix, if the fix at the high end
        removes more.
        """
        for edit in dict.fromkeys(edits):
            self._check(edit)
        every = (self.corrected, self.fastest, self.slowest)
        middle = self.expected_share(edits.expected)
        bottom = min(middle, *(self.share(s, edits.low) for s in every))
        top = max(middle, *(self.share(s, edits.high) for s in every))
        # What a replay that falls short of the step leaves unexplained, no fix of it shortens.
        explained_us = self.step_us if self.basis == "simulated" else min(self.step_us, period_us(self.recorded))
        low, expected, high = (share * explained_us for share in (bottom, middle, top))
        in_trace_time = self.step_us / self.true_step.expected_us
        at_most_us, likely_at_most_us = at_most_us * in_trace_time, min(likely_at_most_us, at_most_us) * in_trace_time
        if expected > likely_at_most_us:
            # The replay sees more than there was to lose: its range holds in proportion.
            low, expected = low * likely_at_most_us / expected, likely_at_most_us
        return Saving(
            # A replay that does not reproduce the step bounds what a fix gains: it may be nothing.
            low_us=low if self.basis == "simulated" else 0.0,
            expected_us=expected,
            high_us=min(high, at_most_us),
            basis=self.basis,
            removes=removes,
        )

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, launches: Launches, host: HostActivity, known: Calibration) -> Replay:
        rows = calls_of_window(timeline, steps, launches, host)
        window = steps
        if len(rows) > MAX_CALLS and steps.steps > 1:
            steps = steps.middle(max(1, MAX_CALLS * steps.steps // len(rows)))
            rows = calls_of_window(timeline, steps, launches, host)
        schedule = schedule_of(timeline, steps, launches, host, rows) if len(rows) else gpu_only(timeline, steps)
        start = begun_us(timeline, steps, rows) if len(rows) else np.zeros(1)
        error = _error(timeline, steps, schedule, start)
        cost = HostCost.create(timeline, steps, host, schedule)
        staged = _staged(timeline, schedule)
        working_us, timed = _working_us(timeline, window), None
        if known.steps_us:
            measured = TrueStep.measured(known.steps_us, window.step_us)
            # In the replay's own time, which may be a little less than the recording's.
            before = period_us(schedule)
            replayed_us = measured.expected_us * min(before / window.step_us, 1.0)
            every = fitting(cost, _shortened(timeline, cost, schedule, staged, replayed_us), replayed_us) if cost else (schedule,) * 3
            reached_us = window.step_us * period_us(every[1]) / before if before > 0 else measured.expected_us
            timed = Timed(measured.expected_us, reached_us, working_us, window.step_us)
            if not timed.shorter and not timed.longer:
                fastest, corrected, slowest = every
                return cls(schedule, corrected, fastest, slowest, start, error, replace(measured, timed=timed), cost)
        if cost is None:
            return cls(schedule, schedule, schedule, schedule, start, error, replace(TrueStep.as_recorded(window.step_us), timed=timed))
        fastest, corrected, slowest = without_recording(cost, schedule)
        true_step = TrueStep.estimated(window.step_us, schedule, fastest, corrected, slowest, cost, working_us, staged, recording_cost.spread(timeline.source))
        return cls(schedule, corrected, fastest, slowest, start, error, replace(true_step, timed=timed), cost)


def _staged(timeline: Timeline, schedule: Schedule) -> Mask:
    """(n,) whether the host moves each op's data itself: copies from or to pageable memory."""
    ops = timeline.gpu_ops
    pageable = (ops["src_kind"] == MemoryKind.PAGEABLE.value) | (ops["dst_kind"] == MemoryKind.PAGEABLE.value)
    return pageable[schedule.op_row]


def _shortened(timeline: Timeline, cost: HostCost, schedule: Schedule, staged: Mask, step_us: float) -> Schedule:
    """The schedule with GPU ops that recording made longer shortened to fit a measured step: copies that the host moves, then waits for other ranks."""
    shorter = as_measured(cost, schedule, staged, step_us, FASTEST_STAGING)
    return as_measured(cost, shorter, _exchanges(timeline)[schedule.op_row], step_us, 0.0)


def _exchanges(timeline: Timeline) -> Mask:
    """(n,) kernels that wait for other ranks."""
    ops = timeline.gpu_ops
    return (ops["kind"] == "kernel") & ops["name"].matching(lambda name: family(name) is Family.COMMUNICATION)


def _working_us(timeline: Timeline, steps: Steps) -> float:
    """How long the busiest device ran kernels in each step, but for those that wait for other ranks."""
    ops = timeline.gpu_ops
    works = (ops["kind"] == "kernel") & ~_exchanges(timeline)
    start, end, device = (ops["start_us"][works], ops.ends[works], ops["device"][works])
    window = steps.start_us, steps.end_us
    return max((length(clip(union(start[device == d], end[device == d]), *window)) for d in np.unique(device)), default=0.0) / steps.steps


def _error(timeline: Timeline, steps: Steps, schedule: Schedule, call_start: Floats) -> float:
    """Distance of the replayed end of the last op from the recorded end, as a share of the window; or by how much longer than the window the host alone
    takes, if that is more.
    """
    if not len(schedule.op_row) or not steps.step_us:
        return 0.0
    if schedule.call_row[0] < 0:  # no launches: the ops keep their gaps
        return abs(period_us(schedule) / steps.step_us - 1)
    # A host that stood still within the window held the device up too, or their clocks jumped. What comes before the first launch is not in between.
    host_us = float(schedule.host_us[1:].sum() + schedule.call_us.sum())
    # A device that waits for other ranks lags behind its host by more in one step than in the next.
    alone = schedule.periodic and not _exchanges(timeline)[schedule.op_row].any()
    late = host_us / (steps.end_us - steps.start_us) - 1 if alone else 0.0
    ops = timeline.gpu_ops
    end = ops["start_us"] + ops["dur_us"]
    busy = {s: float(us) for s, us in enumerate(ended_before_us(ops, schedule.op_row, schedule.stream)) if np.isfinite(us)}
    replayed = last_end_us(schedule, float(call_start[0] - schedule.host_us[0]), busy)
    recorded = float(end[schedule.op_row].max())
    return max(abs(replayed - recorded) / (steps.end_us - steps.start_us), late)
