"""The device idles while the host makes or waits for the next batch."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, rule
from advisor.errors import Unavailable
from advisor.intervals import clip
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.recordings.timeline import Timeline
from advisor.report.finding import LOW_SHARE, SUMMARY_CHARACTERS, Clear
from advisor.report.numbers import duration
from advisor.rules.fixes.data_loading import load_ahead
from advisor.views.patterns import batch_waits
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace import loader
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import begins_inside, matches


@rule("data-loading", relies_on=("host",), min_saving_share=0.03)
def data_loading(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    gaps: Gaps,
    host: HostActivity,
    host_time: HostTime,
    *,
    workers: Annotated[int, Range(1)] = 8,
) -> Outcome:
    """The GPU waits for the next batch

    What it is
    The training loop asks its `DataLoader` for a batch and the batch is not there: with `num_workers=0` the main process
    reads, decodes and collates it on the spot; with worker processes they are slower than the GPU.

    Why it costs time
    While the host makes a batch it launches nothing. Once the GPU has finished the step before, it idles. Work of the
    loader that the GPU was busy through costs nothing.

    How it is measured
    The loader's time is the union of `enumerate(DataLoader)…__next__` ranges, and of the loader's own Python frames (the
    start of its workers among them) where stacks were recorded, on the threads that launch GPU work. The step is replayed
    without it; what the GPU was busy through is thereby not counted, and no more is expected than the GPU idles. `expected`, single process: `workers` ({workers}: what a host has for each GPU) make batches
    while the step runs, so of a batch that takes L the time max(0.2 ms, L / workers - rest of the step) is still waited
    for. `low` keeps half of the loader's time. Where workers are in use already, twice as many hide half of the wait
    (`expected`), or a quarter (`low`), or all of it (`high`); and as workers that are behind set the pace, other fixes are possible
    then, not found: a shorter step waits longer. Reported from `min_saving_share` of the step ({min_saving_share}: smaller
    gains drown in the loader's own scatter from batch to batch).

    How to fix it
    Let worker processes load ahead: `DataLoader(..., num_workers=8, persistent_workers=True, pin_memory=True)`. If
    workers wait themselves: more of them, a higher `prefetch_factor`, cheaper transforms (decode once and store, resize
    before augmenting, batch the transforms on the GPU).

    When to ignore it
    When the data set of the traced run is a stand-in (generated, or on a slower disk than in production), or when the
    trace covers the first batches of an epoch only, while workers start.

    References
    https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation
    """
    loading = loader.loading_spans(timeline, host)
    spans = clip(loading, steps.host_start_us, steps.host_end_us)
    if not len(spans[0]):
        if not len(timeline.cpu_ops) and not len(timeline.python_calls):
            raise Unavailable("no framework ranges were recorded, so a loader would not show", RECORD_BOTH)
        return Clear(why="no DataLoader is asked for a batch inside the window")
    loader_us = host_time.seen().spent_us(loading)
    window = np.array([steps.host_start_us]), np.array([steps.host_end_us])
    starts = begins_inside(timeline.python_calls, window) & matches(timeline.python_calls, loader.STARTS_WORKERS)
    multi = loader.uses_workers(timeline, spans)
    # The device's window begins and ends later than the host's, and may hold a longer wait: it idles all the while then, and no longer is said.
    idle = gaps.share("data_loading")
    meanwhile = "all the while" if idle >= loader_us / work.step_us else f"through {idle:.0%} of the step meanwhile"
    # What the device idles elsewhere goes too where the loader keeps the host from running ahead; no more than that was seen lost.
    idle_us = float(gaps.causes.drop(columns="profiler").to_numpy().sum()) / steps.steps
    if not meanwhile.startswith("all") and (in_all := idle_us * steps.steps / gaps.run_us) >= idle + LOW_SHARE:
        meanwhile += f", and {in_all:.0%} in all"
    slowest = batch_waits.slowest_frame(timeline, spans)
    where = f", mostly in {slowest.label}" if slowest else ""
    kind = "worker processes deliver it too late" if multi else "the main process makes each batch itself"
    summary = f"The loop waits {duration(loader_us)} of each {duration(work.step_us)} step for its batch{where}: {kind}; the GPU idles {meanwhile}."
    return Found(
        summary=summary if len(summary) <= SUMMARY_CHARACTERS else summary.replace(where, ""),
        edits=batch_waits.loading_ahead(host_time, loading, loader_us, work.step_us, multi, workers),
        removes="waiting for the next batch",
        likely_at_most_us=idle_us,
        quiet=f"the loader takes {duration(loader_us)} of a step of {duration(work.step_us)} and the GPU idles {meanwhile}",
        evidence=batch_waits.loading_evidence(timeline, spans, slowest),
        confidence=0.9 * (0.8 if multi else 1.0),
        # Workers that have just begun are behind once; those that stay behind set the pace.
        paces=multi and not starts.any(),
        fix=load_ahead(timeline, multi, batch_waits.copies_from_pageable(work), slowest, workers, spans),
    )
