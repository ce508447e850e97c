"""What recording cost the host, taken off a schedule."""

from __future__ import annotations

import numpy as np

from advisor.knowledge.recording_cost import ProfilerCost
from advisor.timeline import Timeline
from advisor.views.replay.schedule import Schedule
from advisor.views.replay.simulate import period_us
from advisor.views.trace.steps import Steps

UNSURE = 2.0
"""The profiler's cost on another machine, or with other options, as a multiple of the measured one."""

MOST_UNSURE = 8.0
"""No host is so much slower than the one measured on."""


def without_profiler(timeline: Timeline, steps: Steps, schedule: Schedule, factor: float) -> Schedule:
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


def fitting_cost(timeline: Timeline, steps: Steps, schedule: Schedule, step_us: float) -> float:
    """The profiler's cost, as a multiple of the measured one, with which the replayed step takes as long as it truly does."""
    low, high = 0.0, MOST_UNSURE
    for _ in range(12):
        middle = (low + high) / 2
        if period_us(without_profiler(timeline, steps, schedule, middle)) > step_us:
            low = middle
        else:
            high = middle
    return (low + high) / 2
