"""Locates the host time before each call of a schedule in the trace."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Spans, in_order, overlap_with
from advisor.recordings.timeline import Timeline
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.steps import Steps


class HostSpans(msgspec.Struct, frozen=True):
    """start_us, end_us: (n_calls,) the host's time before each call. `wrap`: host time after the last call, which the next repeat spends before its first.
    host_us: (n_calls,) their duration in the schedule.
    """

    start_us: Floats
    end_us: Floats
    wrap: tuple[float, float]
    host_us: Floats

    def covered_us(self, spans: Spans) -> Floats:
        """(n_calls,) µs of the host time before each call that disjoint, sorted spans cover."""
        found = overlap_with(self.start_us, self.end_us, spans)
        if len(found):
            found[0] += overlap_with(np.array([self.wrap[0]]), np.array([self.wrap[1]]), spans)[0]
        return np.minimum(found, self.host_us)

    def count(self, times_us: Floats) -> Ints:
        """(n_calls,) how many of the times lie in the host's time before each call."""
        times = in_order(times_us)
        found: Ints = np.searchsorted(times, self.end_us) - np.searchsorted(times, self.start_us)
        if len(found):
            first, last = np.searchsorted(times, self.wrap)
            found[0] += last - first
        return found

    @classmethod
    def create(cls, timeline: Timeline, steps: Steps, schedule: Schedule) -> HostSpans:
        """Those of a schedule as it was recorded."""
        rows = schedule.call_row
        if not len(rows) or rows[0] < 0:
            zero = np.zeros(len(rows))
            return cls(zero, zero, (0.0, 0.0), schedule.host_us)
        start, end = timeline.api_calls.bounds(rows)
        reach = np.r_[steps.host_start_us, np.maximum.accumulate(end)[:-1]]
        last = float(end.max())
        wrap = (last, max(steps.host_end_us, last)) if steps.periodic else (last, last)
        return cls(np.minimum(reach, start), start, wrap, schedule.host_us)
