"""The recorded steps as a schedule, and what an edit of it would gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from advisor.intervals import Floats, Ints, Spans, overlap_with
from advisor.knowledge import cuda_api
from advisor.knowledge.recording_cost import ProfilerCost
from advisor.report.model import Basis, Saving
from advisor.timeline import Timeline
from advisor.views.replay.calibration import Calibration
from advisor.views.replay.schedule import Edit, Schedule, combine, last_end_us, period_us
from advisor.views.replay.simulate import EARLIER
from advisor.views.trace.host_activity import CLOCK_SKEW_US, LONGEST_DISPATCH_US, HostActivity, held_by_copy
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps

BACK_TO_BACK_US = 5.0
"""A queued op follows the one before within this; a longer gap has a cause (FORMULAS: back-to-back overhead)."""

UNSURE = 2.0
"""The profiler's cost on another machine, or with other options, as a multiple of the measured one."""

MOST_UNSURE = 8.0
"""No host is so much slower than the one measured on."""

EVENT_WAIT_US = 12.0
"""An op that waits for an event of another stream starts within this of the op before the event; 5 to 9 µs are usual."""

PROMPT_US = 100.0
"""A launch on an idle stream that takes longer to start waits for something else: an event, or work before the window."""

DEFAULT_LATENCY_US = 6.0
"""Launch call to start on an idle stream where the trace shows none; 4 to 8 µs on the devices seen."""

MAX_CALLS = 20_000
"""Calls that are replayed: of a longer window its middle steps stand for all. A replay of so many takes some 50 ms."""

MAX_ERROR = 0.15
"""A replay further from the recording than this is no base for a figure: savings are then called bounds."""


class Edits(NamedTuple):
    """What a fix does to the step if it reaches least, what is likely, and most."""

    low: Edit
    expected: Edit
    high: Edit

    @classmethod
    def all_of(cls, edits: Sequence[Edits]) -> Edits:
        """Every fix applied, each at the same end."""
        return cls(*(combine(*ends) for ends in zip(*edits, strict=True))) if edits else cls(combine(), combine(), combine())


@dataclass(frozen=True)
class Replay:
    """`recorded` replays the trace as it is; `corrected` takes the profiler's own cost off the host's time; `fastest`
    takes off as much again, for what the cost may be elsewhere. Where the step time without a profiler is known, `corrected`
    takes that long if it can, and is `calibrated`.

    error: how far the unedited replay of the window, from the state in which it began, ends from where it was recorded to
    end, as a share of the window.
    """

    recorded: Schedule
    corrected: Schedule
    fastest: Schedule
    call_start_us: Floats
    step_us: float
    error: float
    calibrated: bool = False

    def outside(self, spans: Spans) -> Floats:
        """(n_calls,) share of the host time before each call that lies outside disjoint, sorted spans."""
        host = self.recorded.host_us
        inside = overlap_with(self.call_start_us - host, self.call_start_us, spans)
        kept: Floats = np.clip(1 - np.divide(inside, host, out=np.zeros(len(host)), where=host > 0), 0.0, 1.0)
        return kept

    @property
    def basis(self) -> Basis:
        """What a saving from here may be called."""
        return "simulated" if self.error <= MAX_ERROR else "bound"

    def share(self, schedule: Schedule, edit: Edit) -> float:
        """Share of a step that an edit saves on one schedule, 0 where it saves nothing."""
        before = period_us(schedule)
        return max(0.0, 1 - period_us(edit(schedule)) / before) if before > 0 else 0.0

    def saving(self, edits: Edits, removes: str, at_most_us: float = np.inf) -> Saving:
        """What a step gains, in the trace's own time: expected without the profiler's cost, the ends over both schedules.

        at_most_us: what a step was seen to lose; no fix gains more, whatever a replay makes of it.
        """
        every = (self.corrected,) if self.calibrated else (self.corrected, self.recorded, self.fastest)
        middle = self.share(self.corrected, edits.expected)
        bottom = min(middle, *(self.share(s, edits.low) for s in every))
        top = max(middle, *(self.share(s, edits.high) for s in every))
        low, expected, high = (share * self.step_us for share in (bottom, middle, top))
        if expected > at_most_us:
            # The replay sees more than there was to lose: its range holds in proportion.
            low, expected = low * at_most_us / expected, at_most_us
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
        rows = _calls_of_window(timeline, steps, launches, host)
        window_step_us = steps.step_us
        if len(rows) > MAX_CALLS and steps.steps > 1:
            steps = steps.middle(max(1, MAX_CALLS * steps.steps // len(rows)))
            rows = _calls_of_window(timeline, steps, launches, host)
        schedule = _schedule(timeline, steps, launches, host, rows) if len(rows) else _gpu_only(timeline, steps)
        cost = _fitting_cost(timeline, steps, schedule, known.step_us) if known.step_us and len(rows) else 1.0
        corrected, fastest = (
            (_without_profiler(timeline, steps, schedule, factor) if len(rows) else schedule) for factor in (cost, cost * UNSURE)
        )
        start = timeline.api_calls["start_us"].to_numpy()[rows] if len(rows) else np.zeros(1)
        return cls(schedule, corrected, fastest, start, window_step_us, _error(timeline, steps, schedule, start), known.step_us is not None)


def _error(timeline: Timeline, steps: Steps, schedule: Schedule, call_start: Floats) -> float:
    """Distance of the replayed end of the last op from the recorded one, as a share of the window."""
    if not len(schedule.op_row) or not steps.step_us:
        return 0.0
    if schedule.call_row[0] < 0:  # no launches: the ops keep their gaps
        return abs(period_us(schedule) / steps.step_us - 1)
    ops = timeline.gpu_ops
    end, first = (ops["start_us"] + ops["dur_us"]).to_numpy(), np.full(int(schedule.stream.max()) + 1, np.inf)
    start = ops["start_us"].to_numpy()
    np.minimum.at(first, schedule.stream, start[schedule.op_row])
    keys = np.c_[ops["device"].to_numpy(), ops["stream"].to_numpy()]
    busy = {}
    for s, at in enumerate(first):
        key = keys[schedule.op_row[np.argmax(schedule.stream == s)]]
        before = (keys == key).all(axis=1) & (start < at)
        if before.any():
            busy[s] = float(end[before].max())
    replayed = last_end_us(schedule, float(call_start[0] - schedule.host_us[0]), busy)
    recorded = float(end[schedule.op_row].max())
    return abs(replayed - recorded) / (steps.end_us - steps.start_us)


def _calls_of_window(timeline: Timeline, steps: Steps, launches: Launches, host: HostActivity) -> Ints:
    """Rows of the calls that launch, wait or allocate on issuing threads in the host's part of the window."""
    calls = timeline.api_calls
    if not len(calls):
        return np.empty(0, np.int64)
    names = list(cuda_api.ApiRole)
    chosen = np.isin(launches.roles, [names.index(r) for r in (cuda_api.ApiRole.SYNC, cuda_api.ApiRole.ALLOCATION)])
    launched = launches.call[launches.call >= 0]
    chosen[launched] = True
    start = calls["start_us"].to_numpy()
    inside = (start >= steps.host_start_us) & (start < steps.host_end_us)
    chosen &= inside & host.on_threads(calls)
    # Where most of the window's GPU work has no launch, the host's part is not in the trace.
    ops = timeline.gpu_ops
    in_window = (ops["start_us"] >= steps.start_us).to_numpy() & (ops["start_us"] < steps.end_us).to_numpy()
    if in_window.sum() == 0 or (launches.call[in_window] >= 0).mean() < 0.5:
        return np.empty(0, np.int64)
    return np.flatnonzero(chosen)


def _schedule(timeline: Timeline, steps: Steps, launches: Launches, host: HostActivity, rows: Ints) -> Schedule:
    calls, ops = timeline.api_calls, timeline.gpu_ops
    start = calls["start_us"].to_numpy()[rows]
    end = start + calls["dur_us"].to_numpy()[rows]
    reach = np.r_[steps.host_start_us, np.maximum.accumulate(end)[:-1]]
    host_us = np.maximum(start - reach, 0.0)
    dispatch = np.minimum(overlap_with(np.minimum(reach, start), start, host.launch), host_us)
    dispatch[dispatch > LONGEST_DISPATCH_US] = 0.0
    if steps.repeats:
        # What the host does after the last call comes, in the next repeat, before the first.
        last, edge = end.max(keepdims=True), np.array([max(steps.host_end_us, end.max())])
        host_us[0] += float((edge - last)[0])
        dispatch[0] += min(float(overlap_with(last, edge, host.launch)[0]), LONGEST_DISPATCH_US)

    position = np.full(len(calls), -1, np.int64)
    position[rows] = np.arange(len(rows))
    op_call = np.where(launches.call >= 0, position[launches.call], -1)
    op_row = np.flatnonzero(op_call >= 0)
    op_start_all = ops["start_us"].to_numpy()
    op_row = op_row[np.lexsort((op_start_all[op_row], op_call[op_row]))]
    op_call = op_call[op_row]
    op_start = op_start_all[op_row]
    op_end = op_start + ops["dur_us"].to_numpy()[op_row]
    _, stream = np.unique(np.c_[ops["device"].to_numpy()[op_row], ops["stream"].to_numpy()[op_row]], axis=0, return_inverse=True)
    stream = stream.reshape(-1)
    latency, gap, after = _gpu_rules(
        op_start, op_end, stream, start[op_call], np.isin(launches.call[op_row], host.blocking_copies)
    )
    earlier = np.sort((op_start_all + ops["dur_us"].to_numpy())[launches.start_us < start[0]]) if steps.repeats else np.empty(0)
    waits, tail, cost = _host_rules(launches.roles[rows], start, end, op_call, op_start, op_end, earlier)
    return Schedule(
        call_row=rows,
        host_us=host_us,
        dispatch_us=dispatch,
        call_us=cost,
        waits_for=waits,
        tail_us=tail,
        op_row=op_row,
        op_call=op_call,
        stream=stream,
        dur_us=op_end - op_start,
        latency_us=latency,
        gap_us=gap,
        after=after,
        skip_op=np.zeros(len(op_row), bool),
        steps=steps.steps,
        periodic=steps.repeats,
    )


def _gpu_rules(start: Floats, end: Floats, stream: Ints, launch: Floats, staged: np.ndarray) -> tuple[Floats, Floats, Ints]:
    """Why each op started when it did: its launch's latency, the op before on its stream, or an op on another stream.

    staged: copies whose host staged the data first, which takes as long as it takes.
    """
    n = len(start)
    previous_end = np.full(n, -np.inf)
    for s in np.unique(stream):
        rows = np.flatnonzero(stream == s)
        previous_end[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    starved = launch > previous_end - CLOCK_SKEW_US
    delay, idle_gap = start - launch, start - previous_end
    close = ~starved & (idle_gap >= 0) & (idle_gap < BACK_TO_BACK_US)
    usual_gap = float(np.median(idle_gap[close])) if close.any() else 1.0
    prompt = starved & (delay >= 0) & (delay < PROMPT_US)
    usual_latency = float(np.median(delay[prompt])) if prompt.any() else DEFAULT_LATENCY_US
    latency = np.where(starved, np.maximum(delay, 0.0), usual_latency)
    # Programmatic launch starts an op before the one ahead of it ends: a negative gap, kept.
    gap = np.where(starved | ~np.isfinite(idle_gap), usual_gap, idle_gap)
    after = np.full(n, -1, np.int64)
    order = np.argsort(end, kind="stable")
    ends = end[order]
    for k in np.flatnonzero((~starved & (idle_gap > BACK_TO_BACK_US)) | (starved & (delay >= PROMPT_US) & ~staged)):
        latency[k], first = usual_latency if starved[k] else latency[k], int(np.searchsorted(ends, start[k], side="right")) - 1
        for i in range(first, -1, -1):
            j = order[i]
            if ends[i] <= start[k] - EVENT_WAIT_US:
                break
            if stream[j] != stream[k] and j < k:
                after[k], gap[k] = j, max(usual_gap, start[k] - ends[i])
                break
    return latency, gap, after


def _host_rules(
    roles: Ints,
    start: Floats,
    end: Floats,
    op_call: Ints,
    op_start: Floats,
    op_end: Floats,
    earlier: Floats,
) -> tuple[Ints, Floats, Floats]:
    """Which op each call waits for, how long it takes to return after that, and what it costs beside the wait.

    earlier: ends of what was launched before the window, sorted.
    """
    n = len(roles)
    waits, tail = np.full(n, -1, np.int64), np.zeros(n)
    cost = end - start
    names = list(cuda_api.ApiRole)
    waiting = np.isin(roles, [names.index(cuda_api.ApiRole.SYNC), names.index(cuda_api.ApiRole.ALLOCATION)])
    is_sync = roles == names.index(cuda_api.ApiRole.SYNC)
    is_copy = roles == names.index(cuda_api.ApiRole.COPY)
    first_op = np.searchsorted(op_call, np.arange(n + 1))
    usual = np.median(cost[~waiting]) if (~waiting).any() else 5.0
    latest = np.maximum.accumulate(op_end) if len(op_end) else op_end
    for i in np.flatnonzero(waiting | is_copy):
        if is_copy[i]:
            own = np.arange(first_op[i], first_op[i + 1])
            own = own[held_by_copy(op_start[own], op_end[own] - op_start[own], np.full(len(own), end[i]))]
            target = int(own[np.argmax(op_end[own])]) if len(own) else -1
        else:
            target = _last_done(op_end, latest, first_op[i], end[i])
            if target >= 0 and not is_sync[i] and op_end[target] < start[i]:
                target = -1
        if target < 0:
            behind = int(np.searchsorted(earlier, end[i] + CLOCK_SKEW_US)) - 1
            if is_sync[i] and not first_op[i] and behind >= 0 and earlier[behind] > start[i]:
                waits[i], tail[i], cost[i] = EARLIER, end[i] - earlier[behind], 0.0
            continue
        waits[i] = target
        blocked = op_end[target] > start[i]
        # Negative where a copy's call returns with the last piece still on its way.
        tail[i] = end[i] - op_end[target] if blocked else 0.0
        if blocked:
            cost[i] = min(cost[i], usual) if is_copy[i] else 0.0
    # A full launch queue blocks the launching call; the queue, not the call, is the cost.
    launching = ~waiting & ~is_copy
    if launching.any():
        typical = float(np.median(cost[launching]))
        cost = np.where(launching & (cost > 20 * typical) & (cost > 100.0) & _behind(start, latest, first_op), typical, cost)
    return waits, tail, cost


def _last_done(op_end: Floats, latest: Floats, launched: int, call_end: float) -> int:
    """Of the ops launched so far, the last to end that ended before the call returned."""
    for k in range(launched - 1, max(launched - 4096, -1), -1):
        if op_end[k] <= call_end + CLOCK_SKEW_US:
            # Later launches ended after the call: it waited for another stream. Earlier ones on this path ended sooner.
            return k
    return -1


def _behind(start: Floats, latest: Floats, first_op: Ints) -> np.ndarray:
    """Whether the GPU still had work queued when each call was made."""
    last = first_op[:-1] - 1
    return np.where(last >= 0, latest[np.maximum(last, 0)] > start, False) if len(latest) else np.zeros(len(start), bool)


def _without_profiler(timeline: Timeline, steps: Steps, schedule: Schedule, factor: float) -> Schedule:
    """The schedule less what recording cost the host (advisor/knowledge/recording_cost.toml)."""
    each = ProfilerCost.of(timeline.source)
    calls = timeline.api_calls["start_us"].to_numpy()
    start = calls[schedule.call_row]
    edges = np.r_[steps.host_start_us, start]
    recording = np.zeros(len(start))
    for times, cost_us in (
        (timeline.cpu_ops["start_us"].to_numpy(), each.op_us),
        (timeline.python_calls["start_us"].to_numpy(), each.python_call_us),
    ):
        recording += cost_us * np.diff(np.searchsorted(times, edges))
    # The calls between two of the schedule; the schedule's own have their cost in themselves.
    recording += each.api_call_us * np.maximum(np.diff(np.searchsorted(calls, edges)) - 1, 0)
    own = np.full(len(start), each.api_call_us)
    own[schedule.op_call] = each.launch_us
    keep = 1 - each.max_share
    # Only the time in which ops are issued is corrected: what the program does by itself may be anything.
    dispatch = np.maximum(schedule.dispatch_us - factor * recording, keep * schedule.dispatch_us)
    host = schedule.host_us - schedule.dispatch_us + dispatch
    cost = np.maximum(schedule.call_us - factor * own, keep * schedule.call_us)
    return schedule.edit(host_us=host, dispatch_us=dispatch, call_us=cost)


def _fitting_cost(timeline: Timeline, steps: Steps, schedule: Schedule, step_us: float) -> float:
    """The profiler's cost, as a multiple of the measured one, with which the replayed step takes as long as it truly does."""
    low, high = 0.0, MOST_UNSURE
    for _ in range(12):
        middle = (low + high) / 2
        if period_us(_without_profiler(timeline, steps, schedule, middle)) > step_us:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _gpu_only(timeline: Timeline, steps: Steps) -> Schedule:
    """A trace without launches: one call that launches all of the window's ops, which keep their recorded gaps."""
    ops = timeline.gpu_ops
    start = ops["start_us"].to_numpy()
    row = np.flatnonzero((start >= steps.start_us) & (start < steps.end_us))
    start = start[row]
    end = start + ops["dur_us"].to_numpy()[row]
    _, stream = np.unique(np.c_[ops["device"].to_numpy()[row], ops["stream"].to_numpy()[row]], axis=0, return_inverse=True)
    stream = stream.reshape(-1)
    gap = np.zeros(len(row))
    for s in np.unique(stream):
        rows = np.flatnonzero(stream == s)
        gap[rows] = start[rows] - np.r_[steps.start_us, np.maximum.accumulate(end[rows])[:-1]]
    one, none = np.zeros(1), np.full(1, -1, np.int64)
    return Schedule(
        call_row=none,
        host_us=one,
        dispatch_us=one,
        call_us=one,
        waits_for=none,
        tail_us=one,
        op_row=row,
        op_call=np.zeros(len(row), np.int64),
        stream=stream,
        dur_us=end - start,
        latency_us=np.zeros(len(row)),
        gap_us=np.maximum(gap, 0.0),
        after=np.full(len(row), -1, np.int64),
        skip_op=np.zeros(len(row), bool),
        steps=steps.steps,
        periodic=False,
    )
