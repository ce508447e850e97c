"""Batches that the thread which launches makes anew, epoch after epoch."""

from __future__ import annotations

from advisor.engine.rule import Found
from advisor.intervals import clip
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Fix
from advisor.report.numbers import duration
from advisor.views.replay.edits import Edits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import folded
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.loader import loading_spans, uses_workers
from advisor.views.trace.steps import Steps

OF_LOADER = 0.9
"""What of the loader's time goes where batches are made once: a little is left to index what was made."""


_PREPARED = Fix(
    title="Prepare once what is the same in every epoch",
    steps=(
        "Parse, tokenise, decode and resize once; keep the result as tensors, in a memory-mapped file where it is large.",
        "Take a batch by one index into that (__getitems__, with a collate_fn that hands it on); what is random do on the GPU, for the whole batch.",
    ),
    url="https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data",
    risk="What is drawn at random for each example must stay random: prepare only what comes before that.",
)


def made_anew(timeline: Timeline, steps: Steps, work: GpuWork, host: HostActivity, host_time: HostTime, min_pause_us: float) -> Found | None:
    """What the data set's own code does in the thread that launches, for each batch anew; None where worker processes do it."""
    loading = loading_spans(timeline, host)
    spans = clip(loading, steps.host_start_us, steps.host_end_us)
    spent_us = host_time.spent_us(loading)
    if not steps.repeats or not len(spans[0]) or uses_workers(timeline, spans) or spent_us < min_pause_us:
        return None
    spent = f"The data set and its loader take {duration(spent_us)} of each {duration(work.step_us)} step in the thread that launches"
    return Found(
        title="Each batch is made anew while the GPU waits",
        summary=f"{spent}; what they parse, tokenise or decode may be the same in every epoch.",
        edits=Edits(combine(), host_time.without(spans, OF_LOADER), host_time.without(spans)),
        removes="making each batch anew",
        quiet=spent,
        evidence=folded(["the loop waits for its batch"] * len(spans[0]), spans[0], spans[1] - spans[0]),
        confidence=0.5,
        at_most="low",
        status="possible",
        possible_why="whether it is the same in every epoch is not in a trace",
        decide_with="look at what __getitem__ does with the same index twice",
        fix=_PREPARED,
    )
