"""When the loop waits for a batch, and who makes it."""

from __future__ import annotations

from advisor.intervals import Spans, joined
from advisor.knowledge.expressions import expression
from advisor.recordings.timeline import Timeline
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.table_filters import begins_inside, matches, spans_of

_SINGLE = expression(r"SingleProcess")
_MULTI = expression(r"MultiProcess")
# Frames and ops that only one of the two kinds of iterator has in the thread that trains.
_FETCHES_HERE = expression(r"torch/utils/data/_utils/fetch\.py\(\d+\): fetch$")
_WAITS_FOR_WORKERS = expression(r"torch/utils/data/dataloader\.py\(\d+\): (_try_get_data|_get_data)$")
STARTS_WORKERS = expression(r"torch/utils/data/dataloader\.py\(\d+\): _get_iterator$")


def loading_spans(timeline: Timeline, host: HostActivity) -> Spans:
    """Time in which the threads that issue GPU work are asked for a batch, or start workers for a new epoch."""
    calls = timeline.python_calls
    return joined(host.data_loading, spans_of(calls, matches(calls, STARTS_WORKERS) & host.on_threads(calls)))


def uses_workers(timeline: Timeline, spans: Spans) -> bool:
    """Whether worker processes make the batches, by the iterator's name or by what the thread that trains does in it."""
    notes, calls = timeline.annotations, timeline.python_calls
    for frame, several, one in ((notes, _MULTI, _SINGLE), (calls, _WAITS_FOR_WORKERS, _FETCHES_HERE)):
        inside = begins_inside(frame, spans)
        here, there = int((matches(frame, one) & inside).sum()), int((matches(frame, several) & inside).sum())
        if here or there:
            return there > here
    return False
