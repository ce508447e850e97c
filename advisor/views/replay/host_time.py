"""The host's time before each call of the schedule, so that a fix can take parts of it away."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import Floats, Spans, intersect
from advisor.knowledge.how_to_record import RECORD_LAUNCHES
from advisor.recordings.timeline import Timeline
from advisor.views.replay.edits import Edit, WithoutHostTime
from advisor.views.replay.from_trace import unseen_host
from advisor.views.replay.host_spans import HostSpans
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps


class HostTime(msgspec.Struct, frozen=True):
    """Host time before each call of `Replay.recorded`; `launch`, the spans with launching ops; and the share that is left without a profiler (`corrected`).
    unseen: the reason that the schedule lacks the host, or "".
    """

    spans: HostSpans
    launch: Spans
    recorded: Schedule
    corrected: Schedule
    unseen: str = ""

    def covered_us(self, spans: Spans) -> Floats:
        """(n_calls,) µs of the host time before each call that disjoint, sorted spans cover."""
        return self.spans.covered_us(spans)

    def spent_us(self, spans: Spans) -> float:
        """What the host spends inside disjoint, sorted spans in a step when nobody records."""
        issuing, own = self._split(spans)
        left, recorded = self.corrected, self.recorded
        kept = issuing * _ratio(left.dispatch_us, recorded.dispatch_us) + own * _ratio(left.host_us - left.dispatch_us, recorded.host_us - recorded.dispatch_us)
        return float(kept.sum()) / recorded.steps

    def cut_time(self, spans: Spans, share: float = 1.0) -> Edit:
        """The host no longer spends this share of its time inside disjoint, sorted spans; the calls there stay."""
        issuing, own = self._split(spans)
        recorded = self.recorded
        return WithoutHostTime(share * _ratio(issuing, recorded.dispatch_us), share * _ratio(own, recorded.host_us - recorded.dispatch_us))

    def _split(self, spans: Spans) -> tuple[Floats, Floats]:
        """(n_calls,) recorded µs before each call that spans cover: issuing ops, and the rest."""
        inside = self.covered_us(spans)
        issuing = np.minimum(self.covered_us(intersect(spans, self.launch)), np.minimum(self.recorded.dispatch_us, inside))
        return issuing, inside - issuing

    def seen(self) -> HostTime:
        """Itself, for callers that need host time; unavailable if the schedule lacks the host."""
        if self.unseen:
            raise Unavailable(self.unseen, *RECORD_LAUNCHES)
        return self

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, launches: Launches, host: HostActivity, replay: Replay) -> HostTime:
        spans = HostSpans.create(timeline, steps, replay.recorded)
        return cls(spans, host.launch, replay.recorded, replay.corrected, unseen_host(timeline, steps, launches))


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.clip(np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0), 0.0, 1.0)
