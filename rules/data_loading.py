"""The device idles while the host makes or waits for the next batch."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, rule
from advisor.errors import Unavailable
from advisor.intervals import Spans, clip, length
from advisor.knowledge.how_to_record import RECORD_BOTH
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import CopyKind, MemoryKind, Timeline
from advisor.report.finding import SUMMARY_CHARACTERS, Clear, Code, Evidence, Fix
from advisor.report.numbers import duration, times
from advisor.views.replay.edits import Edits
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import folded
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.loader import STARTS_WORKERS, loading_spans, uses_workers
from advisor.views.trace.source_lines import user_frame
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import begins_inside, matches

DEQUEUE_US = cost("worker-batch")

MORE_WORKERS = 2
"""Where workers are in use already, how many times as many are assumed at the most."""

WORTH_SAYING = 0.01
"""Of the step: what the device idles beside less is not said."""

_PINS = re.compile(r"torch/utils/data/_utils/pin_memory\.py")


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
    loading = loading_spans(timeline, host)
    spans = clip(loading, steps.host_start_us, steps.host_end_us)
    if not len(spans[0]):
        if not len(timeline.cpu_ops) and not len(timeline.python_calls):
            raise Unavailable("no framework ranges were recorded, so a loader would not show", RECORD_BOTH)
        return Clear(why="no DataLoader is asked for a batch inside the window")
    loader_us = host_time.seen().spent_us(loading)
    window = np.array([steps.host_start_us]), np.array([steps.host_end_us])
    starts = begins_inside(timeline.python_calls, window) & matches(timeline.python_calls, STARTS_WORKERS)
    multi = uses_workers(timeline, spans)
    # The device's window begins and ends later than the host's, and may hold a longer wait: it idles all the while then, and no longer is said.
    idle = gaps.share("data_loading")
    meanwhile = "all the while" if idle >= loader_us / work.step_us else f"through {idle:.0%} of the step meanwhile"
    # What the device idles elsewhere goes too where the loader keeps the host from running ahead; no more than that was seen lost.
    idle_us = float(gaps.causes.drop(columns="profiler").to_numpy().sum()) / steps.steps
    if not meanwhile.startswith("all") and (in_all := idle_us * steps.steps / gaps.run_us) >= idle + WORTH_SAYING:
        meanwhile += f", and {in_all:.0%} in all"
    slowest = _slowest_frame(timeline, spans)
    where = f", mostly in {slowest.label}" if slowest else ""
    kind = "worker processes deliver it too late" if multi else "the main process makes each batch itself"
    summary = f"The loop waits {duration(loader_us)} of each {duration(work.step_us)} step for its batch{where}: {kind}; the GPU idles {meanwhile}."
    return Found(
        summary=summary if len(summary) <= SUMMARY_CHARACTERS else summary.replace(where, ""),
        edits=_edits(host_time, loading, loader_us, work.step_us, multi, workers),
        removes="waiting for the next batch",
        likely_at_most_us=idle_us,
        quiet=f"the loader takes {duration(loader_us)} of a step of {duration(work.step_us)} and the GPU idles {meanwhile}",
        evidence=_evidence(timeline, spans, slowest),
        confidence=0.9 * (0.8 if multi else 1.0),
        # Workers that have just begun are behind once; those that stay behind set the pace.
        paces=multi and not starts.any(),
        fix=_fix(timeline, multi, _copies_from_pageable(work), slowest, workers, spans),
    )


def _edits(host_time: HostTime, spans: Spans, loader_us: float, step_us: float, multi: bool, workers: int) -> Edits:
    if multi:
        return Edits(host_time.without(spans, 0.25), host_time.without(spans, 1 - 1 / MORE_WORKERS), host_time.without(spans))
    waited = max(DEQUEUE_US, loader_us / workers - max(step_us - loader_us, 0.0))
    hidden = max(0.0, 1 - waited / max(loader_us, 1e-9))
    return Edits(host_time.without(spans, min(0.5, hidden)), host_time.without(spans, hidden), host_time.without(spans))


def _copies_from_pageable(work: GpuWork) -> bool:
    up = work.column("copy_kind") == CopyKind.HTOD.value
    return bool((up & (work.column("src_kind") == MemoryKind.PAGEABLE.value)).any())


def _slowest_frame(timeline: Timeline, spans: Spans) -> Evidence | None:
    """The innermost frame of the user's that holds at least half of the loader's time."""
    calls = timeline.python_calls
    rows = np.flatnonzero(begins_inside(calls, spans))
    if not len(rows):
        return None
    codes = calls["name"].cat.codes.to_numpy()[rows]
    dur = calls["dur_us"].to_numpy()[rows]
    names = calls["name"].cat.categories.to_numpy()
    total = np.bincount(codes, weights=dur)
    whole = length(spans)
    candidates = [(float(total[c]), int(c)) for c in np.flatnonzero(total >= MOST * whole) if total[c] <= 1.05 * whole and user_frame(names[c])]
    if not candidates:
        return None
    _, code = min(candidates)
    mine = rows[codes == code]
    line = user_frame(names[code])
    function = str(names[code]).rpartition(": ")[2]
    return Evidence(
        label=f"{function} ({line.file}:{line.line})" if line else function,
        start_us=float(calls["start_us"].to_numpy()[mine].min()),
        dur_us=float(calls["dur_us"].to_numpy()[mine].sum()),
        count=len(mine),
        source=line,
    )


def _evidence(timeline: Timeline, spans: Spans, slowest: Evidence | None) -> tuple[Evidence, ...]:
    notes = timeline.annotations
    if len(rows := np.flatnonzero(begins_inside(notes, spans) & matches(notes, re.compile("DataLoader")))):
        names = [str(n) for n in notes["name"].iloc[rows]]
        found = folded(names, notes["start_us"].to_numpy()[rows], notes["dur_us"].to_numpy()[rows])
    else:
        found = folded(["DataLoader __next__"] * len(spans[0]), spans[0], spans[1] - spans[0])
    ops = timeline.cpu_ops
    if len(inner := np.flatnonzero(begins_inside(ops, spans))):
        # Ops of the loader's own: outermost ones only, so that no time stands twice.
        start = ops["start_us"].to_numpy()[inner]
        end = start + ops["dur_us"].to_numpy()[inner]
        outer = np.r_[True, end[1:] > np.maximum.accumulate(end)[:-1]]
        kept = inner[outer]
        names = [f"{n} in the loader" for n in ops["name"].iloc[kept]]
        found += folded(names, ops["start_us"].to_numpy()[kept], ops["dur_us"].to_numpy()[kept])[:3]
    return (*((slowest,) if slowest else ()), *found)


def _fix(timeline: Timeline, multi: bool, pageable: bool, slowest: Evidence | None, workers: int, spans: Spans) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading"
    cheaper = f"Make {slowest.label} cheaper: it runs {times(slowest.count)} in the window." if slowest else (
        "Make the transforms cheaper: decode once and store the result, or move them to the GPU, batched."
    )  # fmt: skip
    pin = ("Set pin_memory=True: the trace shows copies from pageable memory.",) if pageable else ()
    pinned = ", pin_memory=True" if pageable or bool(matches(timeline.python_calls, _PINS).any()) else ""
    if multi:
        calls = timeline.python_calls
        restarts = bool((matches(calls, STARTS_WORKERS) & begins_inside(calls, spans)).any())
        keep = ("Set persistent_workers=True: workers are started again inside the window.",) if restarts else ()
        return Fix(
            title="Let the workers keep up",
            steps=(
                "Raise num_workers while the host has idle cores, and prefetch_factor (2 by default) if batches take unequal time.",
                cheaper,
                *keep,
                *pin,
            ),
            code=Code(
                before="loader = DataLoader(dataset, batch_size=..., num_workers=n)",
                after=f"loader = DataLoader(dataset, batch_size=..., num_workers=2 * n, prefetch_factor=4, persistent_workers=True{pinned})",
            ),
            url=url,
            risk="Each worker holds its own copy of the data set object and prefetch_factor batches in host memory.",
        )
    return Fix(
        title="Load batches in worker processes",
        steps=(
            f"Set num_workers (start with {workers}, at most the cores that each GPU has) and persistent_workers=True.",
            *pin,
            cheaper,
        ),
        code=Code(
            before="loader = DataLoader(dataset, batch_size=...)",
            after=f"loader = DataLoader(\n    dataset, batch_size=..., num_workers={workers}, persistent_workers=True{pinned}\n)",
        ),
        url=url,
        risk="Workers fork or spawn: the data set must be picklable, must not touch CUDA, and draws other random numbers in each worker.",
    )
