"""Where in the trace the host time before each call of the schedule lies, so that a fix can take parts of it away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.intervals import Floats, Spans, intersect, overlap_with
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edit, WithoutHostTime
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps


@dataclass(frozen=True)
class HostTime:
    """start_us, end_us: (n_calls,) the host's time before each call of `Replay.recorded`, and `wrap`, what the host does
    after the last call, which the next repeat does before the first one. launch: spans in which ops were issued."""

    start_us: Floats
    end_us: Floats
    wrap: tuple[float, float]
    launch: Spans
    recorded: Schedule

    def inside(self, spans: Spans) -> Floats:
        """(n_calls,) µs of the host time before each call that disjoint, sorted spans cover."""
        found = overlap_with(self.start_us, self.end_us, spans)
        if len(found):
            found[0] += overlap_with(np.array([self.wrap[0]]), np.array([self.wrap[1]]), spans)[0]
        return np.minimum(found, self.recorded.host_us)

    def without(self, spans: Spans, share: float = 1.0) -> Edit:
        """The host no longer spends this share of its time inside disjoint, sorted spans; the calls there stay."""
        inside = self.inside(spans)
        issuing = np.minimum(self.inside(intersect(spans, self.launch)), np.minimum(self.recorded.dispatch_us, inside))
        own = self.recorded.host_us - self.recorded.dispatch_us
        return WithoutHostTime(share * _ratio(issuing, self.recorded.dispatch_us), share * _ratio(inside - issuing, own))

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, host: HostActivity, replay: Replay) -> HostTime:
        schedule = replay.recorded
        rows = schedule.call_row
        if not len(rows) or rows[0] < 0:
            zero = np.zeros(len(rows))
            return cls(zero, zero, (0.0, 0.0), host.launch, schedule)
        start = timeline.api_calls["start_us"].to_numpy()[rows]
        end = start + timeline.api_calls["dur_us"].to_numpy()[rows]
        reach = np.r_[steps.host_start_us, np.maximum.accumulate(end)[:-1]]
        last = float(end.max())
        wrap = (last, max(steps.host_end_us, last)) if steps.repeats else (last, last)
        return cls(np.minimum(reach, start), start, wrap, host.launch, schedule)


def _ratio(part: Floats, whole: Floats) -> Floats:
    ratio: Floats = np.clip(np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0), 0.0, 1.0)
    return ratio
