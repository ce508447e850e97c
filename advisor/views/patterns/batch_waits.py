"""A step that waits for its batch: what loading ahead changes, and what the host does meanwhile."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Spans, length
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import CopyKind, MemoryKind, Timeline
from advisor.report.finding import Evidence
from advisor.views.replay.edits import Edits
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.evidence import folded
from advisor.views.trace.source_lines import user_frame
from advisor.views.trace.table_filters import begins_inside, matches

DEQUEUE_US = cost("worker-batch")


MORE_WORKERS = 2
"""Where workers are in use already, how many times as many are assumed at the most."""


PINS = re.compile(r"torch/utils/data/_utils/pin_memory\.py")


def loading_ahead(host_time: HostTime, spans: Spans, loader_us: float, step_us: float, multi: bool, workers: int) -> Edits:
    if multi:
        return Edits(host_time.cut_time(spans, 0.25), host_time.cut_time(spans, 1 - 1 / MORE_WORKERS), host_time.cut_time(spans))
    waited = max(DEQUEUE_US, loader_us / workers - max(step_us - loader_us, 0.0))
    hidden = max(0.0, 1 - waited / max(loader_us, 1e-9))
    return Edits(host_time.cut_time(spans, min(0.5, hidden)), host_time.cut_time(spans, hidden), host_time.cut_time(spans))


def copies_from_pageable(work: GpuWork) -> bool:
    up = work.column("copy_kind") == CopyKind.HTOD.value
    return bool((up & (work.column("src_kind") == MemoryKind.PAGEABLE.value)).any())


def slowest_frame(timeline: Timeline, spans: Spans) -> Evidence | None:
    """The innermost frame of the user's that holds at least half of the loader's time."""
    calls = timeline.python_calls
    rows = np.flatnonzero(begins_inside(calls, spans))
    if not len(rows):
        return None
    codes = calls["name"].codes[rows]
    dur = calls["dur_us"][rows]
    names = calls["name"].categories
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
        start_us=float(calls["start_us"][mine].min()),
        dur_us=float(calls["dur_us"][mine].sum()),
        count=len(mine),
        source=line,
    )


def loading_evidence(timeline: Timeline, spans: Spans, slowest: Evidence | None) -> tuple[Evidence, ...]:
    notes = timeline.annotations
    if len(rows := np.flatnonzero(begins_inside(notes, spans) & matches(notes, re.compile("DataLoader")))):
        names = [str(n) for n in notes["name"][rows]]
        found = folded(names, notes["start_us"][rows], notes["dur_us"][rows])
    else:
        found = folded(["DataLoader __next__"] * len(spans[0]), spans[0], spans[1] - spans[0])
    ops = timeline.cpu_ops
    if len(inner := np.flatnonzero(begins_inside(ops, spans))):
        # Ops of the loader's own: outermost ones only, so that no time stands twice.
        end = ops.ends[inner]
        outer = np.r_[True, end[1:] > np.maximum.accumulate(end)[:-1]]
        kept = inner[outer]
        names = [f"{n} in the data loader" for n in ops["name"][kept]]
        found += folded(names, ops["start_us"][kept], ops["dur_us"][kept])[:3]
    return (*((slowest,) if slowest else ()), *found)
