"""When cuDNN plans its attention anew, which it does for each size that it has not met."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Ints, Spans, overlap_with
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

_ATTENTION = names_of("attention_of_cudnn")

PLANNED_US = cost("attention-plan")


class AttentionPlans(msgspec.Struct, frozen=True):
    """spans: host time of planning calls of cuDNN's attention on launching threads. calls: their rows of `cpu_ops`, outermost calls in the window. steps:
    steps
    with planning. sizes: number of distinct sizes, or of calls if shapes were not recorded.
    """

    spans: Spans
    calls: Ints
    steps: int
    sizes: int

    @classmethod
    def build(cls, timeline: Timeline, host: HostActivity, steps: Steps) -> AttentionPlans:
        ops, calls = timeline.cpu_ops, timeline.api_calls
        start, dur_us = ops["start_us"], ops["dur_us"]
        chosen = matches(ops, _ATTENTION) & host.on_threads(ops) & (dur_us >= PLANNED_US)
        called_us = overlap_with(start[chosen], (start + dur_us)[chosen], spans_of(calls, host.on_threads(calls)))
        chosen[chosen] = dur_us[chosen] - called_us >= PLANNED_US
        spans = spans_of(ops, chosen)
        inside = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], spans)
        outermost = np.flatnonzero(chosen & np.isin(start, spans[0]) & steps.issued_at(start))
        sizes = len(np.unique(ops["dims"].codes[outermost])) if timeline.source.shapes else len(outermost)
        return cls(spans, outermost, int((inside > 0).sum()), sizes)
