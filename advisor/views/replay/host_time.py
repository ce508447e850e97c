"""The host's time before each call of the schedule, so that a fix can take parts of it away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.intervals import Floats, Spans, intersect
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edit, WithoutHostTime
from advisor.views.replay.host_spans import HostSpans
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps


@dataclass(frozen=True)
class HostTime:
    """Where the host's time before each call of `Replay.recorded` lies, and `launch`, the spans in which ops were issued."""

    spans: HostSpans
    launch: Spans
    recorded: Schedule

    def inside(self, spans: Spans) -> Floats:
        """(n_calls,) µs of the host time before each call that disjoint, sorted spans cover."""
        return self.spans.inside(spans)

    def without(self, spans: Spans, share: float = 1.0) -> Edit:
        """The host no longer spends this share of its time inside disjoint, sorted spans; the calls there stay."""
        inside = self.inside(spans)
        issuing = np.minimum(self.inside(intersect(spans, self.launch)), np.minimum(self.recorded.dispatch_us, inside))
        own = self.recorded.host_us - self.recorded.dispatch_us
        return WithoutHostTime(share * _ratio(issuing, self.recorded.dispatch_us), share * _ratio(inside - issuing, own))

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, host: HostActivity, replay: Replay) -> HostTime:
        return cls(HostSpans.of(timeline, steps, replay.recorded), host.launch, replay.recorded)


def _ratio(part: Floats, whole: Floats) -> Floats:
    ratio: Floats = np.clip(np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0), 0.0, 1.0)
    return ratio
