"""The device idles while the host makes or waits for the next batch."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, rule
from advisor.errors import Unavailable
from advisor.intervals import clip
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.idle import CAUSES
from advisor.recordings.timeline import Timeline
from advisor.report.finding import LOW_SHARE, SUMMARY_CHARACTERS, Clear
from advisor.report.numbers import duration
from advisor.report.wording.period import THE_STEP, of_each_step, step_of
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

    What
    The training loop asks its `DataLoader` for a batch that is not ready. With `num_workers=0` the main process
    reads, decodes and collates it. With workers, these are slower than the GPU.

    Why
    The host launches nothing while it prepares a batch. Once the GPU has finished the previous step, it idles.
    Dataloader work that overlaps GPU work costs nothing.

    How to fix
    Let worker processes prepare batches ahead:

        DataLoader(dataset, batch_size, num_workers=8, persistent_workers=True, pin_memory=True)

    If workers are too slow: use more of them or a higher `prefetch_factor`. Make transforms cheaper: decode
    once and store, resize before augmenting, batch transforms on the GPU.

    When to ignore
    The traced run uses generated data or a slower disk than production. Or the trace covers only the first
    batches of an epoch, while workers start.

    How it is measured
    The dataloader's time is the time in `DataLoader…__next__` ranges and the dataloader's Python frames, on
    launching threads. The replay removes it, so GPU work during loading is not counted. The saving is at most
    the GPU's idle time. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Case | Remaining wait |
    |---|---|
    | `expected`, single process | max(0.2 ms, time / `workers` ({workers}) - rest of the step) |
    | `low`, single process | half |
    | workers exist: `low` / `expected` / `high` | three quarters / half / none |

    References
    https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation
    """
    loading = loader.loading_spans(timeline, host)
    spans = clip(loading, steps.host_start_us, steps.host_end_us)
    if not len(spans[0]):
        if not len(timeline.cpu_ops) and not len(timeline.python_calls):
            raise Unavailable("no framework ranges were recorded, so a data loader would not be visible", *RECORD_BOTH)
        return Clear(why="no data loader is asked for a batch in the window")
    loader_us = host_time.seen().spent_us(loading)
    window = np.array([steps.host_start_us]), np.array([steps.host_end_us])
    starts = begins_inside(timeline.python_calls, window) & matches(timeline.python_calls, loader.STARTS_WORKERS)
    multi = loader.uses_workers(timeline, spans)
    # The device's window begins and ends later than the host's, and may hold a longer wait: it idles all the while then, and no longer is said.
    idle = gaps.share("data_loading")
    throughout = idle >= loader_us / work.step_us
    meanwhile = "throughout" if throughout else f"for {idle:.0%} of {THE_STEP} meanwhile"
    # What the device idles elsewhere goes too where the loader keeps the host from running ahead; no more than that was seen lost.
    idle_us = float(sum(gaps.causes[cause].sum() for cause in CAUSES if cause != "profiler")) / steps.steps
    if not throughout and (in_all := idle_us * steps.steps / gaps.run_us) >= idle + LOW_SHARE:
        meanwhile += f" ({in_all:.0%} in all)"
    slowest = batch_waits.slowest_frame(timeline, spans)
    where = f", mostly in {slowest.label}" if slowest else ""
    kind = "worker processes deliver it too late" if multi else "the main process makes each batch"
    summary = f"The loop waits {duration(loader_us)} {of_each_step(work.step_us)} for its batch{where}: {kind}. The GPU idles {meanwhile}."
    return Found(
        summary=summary if len(summary) <= SUMMARY_CHARACTERS else summary.replace(where, ""),
        edits=batch_waits.loading_ahead(host_time, loading, loader_us, work.step_us, multi, workers),
        removes="waiting for the next batch",
        likely_at_most_us=idle_us,
        quiet=f"the dataloader takes {duration(loader_us)} of {step_of(work.step_us)} and the GPU idles {meanwhile}",
        evidence=batch_waits.loading_evidence(timeline, spans, slowest),
        confidence=0.9 * (0.8 if multi else 1.0),
        # Workers that have just begun are behind once; those that stay behind set the pace.
        paces=multi and not starts.any(),
        fix=load_ahead(timeline, multi, batch_waits.copies_from_pageable(work), slowest, workers, spans),
    )
