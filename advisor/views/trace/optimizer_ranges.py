"""When the host updates parameters."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Mask, Spans, union
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.views.trace.table_filters import matches

_BACKWARD = names_of("autograd_node")


def update_spans(timeline: Timeline, chosen: Mask) -> Spans:
    """Disjoint, sorted spans of an optimizer's ranges, chosen rows of `annotations`, in which it updates.

    A step that is given a closure runs forward and backward pass inside its range first: LBFGS asks for that, Lightning always does so. What a range does
    up to the end of the last backward node that begins in it is the closure's.
    """
    notes, ops = timeline.annotations, timeline.cpu_ops
    start, end = notes.bounds(chosen)
    nodes = ops[matches(ops, _BACKWARD)]
    begins = nodes["start_us"]
    order = np.argsort(begins, kind="stable")
    ended = np.maximum.accumulate(np.r_[-np.inf, (begins + nodes["dur_us"])[order]])
    first, last = (np.searchsorted(begins[order], at) for at in (start, end))
    return union(np.where(last > first, np.clip(ended[last], start, end), start), end)
