"""When cuDNN plans its attention anew, which it does for each size that it has not met."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Ints, Spans, overlap_with
from advisor.recordings.timeline import Timeline
from advisor.views.trace.frames import matches, spans_of
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps

_ATTENTION = re.compile(r"^aten::_(scaled_dot_product_)?cudnn_attention(_(forward|backward))?$")

PLANNED_US = 5_000.0
"""What a call takes the host at least that plans a kernel: 48 to 82 ms on H200s' hosts, torch 2.11; one that has its plan takes 0.05 to 1."""


@dataclass(frozen=True)
class AttentionPlans:
    """spans: host time of the calls of cuDNN's attention that plan, on the threads that issue GPU work. calls: their rows of `cpu_ops`, those
    of the window and not inside another. steps: how many steps hold any."""

    spans: Spans
    calls: Ints
    steps: int

    @classmethod
    def build(cls, timeline: Timeline, host: HostActivity, steps: Steps) -> AttentionPlans:
        ops = timeline.cpu_ops
        chosen = matches(ops, _ATTENTION) & host.on_threads(ops) & (ops["dur_us"].to_numpy() >= PLANNED_US)
        spans = spans_of(ops, chosen)
        inside = overlap_with(steps.host_edges_us[:-1], steps.host_edges_us[1:], spans)
        start = ops["start_us"].to_numpy()
        outermost = chosen & np.isin(start, spans[0]) & steps.issued_at(start)
        return cls(spans, np.flatnonzero(outermost), int((inside > 0).sum()))
