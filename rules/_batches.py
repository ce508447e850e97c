"""Batches that the thread which launches makes anew, epoch after epoch, and batches that are cut into micro-batches."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found
from advisor.intervals import Floats, clip, length, union
from advisor.knowledge.shares import NEARLY_ALL
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import A_STEP, of_each_step
from advisor.rules.fixes import known_fix
from advisor.views.patterns.gradient_accumulation import MicroBatches
from advisor.views.replay.edits import Edit, Edits, Fused, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import Witness, folded
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.loader import loading_spans, uses_workers
from advisor.views.trace.steps import Steps

OF_LOADER = NEARLY_ALL
"""What of the loader's time goes where batches are made once: a little is left to index what was made."""


_PREPARED = known_fix("pytorch", "prepare-once")


def made_anew(timeline: Timeline, steps: Steps, work: GpuWork, host: HostActivity, host_time: HostTime, min_pause_us: float) -> Found | None:
    """What the data set's own code does in the thread that launches, for each batch anew; None where worker processes do it."""
    loading = loading_spans(timeline, host)
    spans = clip(loading, steps.host_start_us, steps.host_end_us)
    spent_us = host_time.spent_us(loading)
    if not steps.repeats or not len(spans[0]) or uses_workers(timeline, spans) or spent_us < min_pause_us:
        return None
    spent = f"The data set and its data loader take {duration(spent_us)} {of_each_step(work.step_us)} in the launching thread"
    return Found(
        title="Preprocessing delays each batch",
        summary=f"{spent}. Parsing, tokenising or decoding may be the same in every epoch.",
        edits=Edits(combine(), host_time.cut_time(spans, OF_LOADER), host_time.cut_time(spans)),
        removes="making each batch anew",
        likely_at_most_us=_idle_us(timeline, steps, work),
        quiet=spent,
        evidence=folded(["the loop waits for its batch"] * len(spans[0]), spans[0], spans[1] - spans[0]),
        confidence=0.5,
        at_most="low",
        status="possible",
        possible_why="a trace does not show whether it is the same in every epoch",
        decide_with="compare the dataset's work for the same example in two epochs",
        cause="batches",
        fix=_PREPARED,
    )


def _idle_us(timeline: Timeline, steps: Steps, work: GpuWork) -> float:
    """What the busiest device idles in a step, as it runs when nobody records: no batch that is there at once gains more."""
    ops = timeline.gpu_ops
    device, start, end = (column for column in (ops["device"], ops["start_us"], ops["start_us"] + ops["dur_us"]))
    busy = (length(clip(union(start[device == d], end[device == d]), steps.start_us, steps.end_us)) for d in np.unique(device))
    return max(work.step_us - max(busy, default=0.0) / steps.steps, 0.0)


_FEWER = known_fix("pytorch", "fewer-micro-batches")


def merged(work: GpuWork, micro: MicroBatches, fill: Floats, witness: Witness) -> Found:
    """One micro-batch in place of all. fill: (n,) share of the device that each GPU op fills, NaN if it is not known."""

    def single_batch(share: Floats) -> Edit:
        return combine(WithoutWaits(micro.waits), Fused(micro.kept, micro.gone, micro.together_us * share))

    # What fills a part of the device takes no longer until all micro-batches together fill it.
    as_long = single_batch(np.maximum(np.nan_to_num(fill[micro.kept], nan=1.0), 1 / micro.times))
    both = np.union1d(micro.kept, micro.gone)
    parts = counted(micro.times, "micro-batch", "micro-batches")
    return Found(
        title="The batch is split into too many micro-batches",
        summary=f"{parts.capitalize()} of {A_STEP} launch the same ops: {counted(work.a_step(both), 'GPU op')}, {duration(work.us_a_step(both))} of GPU time in a "
        f"step of {duration(work.step_us)}. A single micro-batch of all their samples would launch them once.",
        edits=Edits(combine(), single_batch(np.ones(len(micro.kept))), as_long),
        removes="launching the same ops for each micro-batch",
        quiet=f"{A_STEP} adds up the gradients of {parts}",
        evidence=witness.of_gpu(work.rows[micro.gone], ["launched again for a further micro-batch"] * len(micro.gone)),
        confidence=0.6,
        at_most="low",
        counted=False,  # most of its gain is launch-gap's too
        status="possible",
        possible_why="a trace does not show whether memory holds a larger micro-batch",
        decide_with="half as many micro-batches of twice as many samples",
        fix=_FEWER,
    )
