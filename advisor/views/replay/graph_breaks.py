"""Reads that cut a compiled graph in two, and what the cut costs the host."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Mask, Spans, union
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.ops import Ops

_REGION = re.compile(r"^Torch-Compiled Region")


def behind_breaks(calls: HostCalls, ops: Ops, reading: Mask) -> Spans:
    """The host's way from each read (a mask over ops) into the compiled region that resumes behind it, and out of that again.

    torch.compile cuts a graph at a read, and runs what follows as another compiled function inside the first one's region: guards are
    checked and wrappers entered before its first launch. One graph would have it without.
    """
    cpu, api = calls.timeline.cpu_ops, calls.timeline.api_calls
    region, nested = ops.named(_REGION), ops.parent >= 0
    nested[nested] = region[ops.parent[nested]]
    resumed, reads = np.flatnonzero(region & nested), np.flatnonzero(reading & nested)
    if not len(resumed) or not len(reads):
        return union(np.empty(0), np.empty(0))
    start = cpu["start_us"].to_numpy()
    end = start + cpu["dur_us"].to_numpy()
    # When each region's own part first and last launches.
    at = np.flatnonzero(calls.op >= 0)
    op = ops.outermost_where(nested & ~region)[calls.op[at]]
    op = np.where(op >= 0, op, calls.op[at])
    at, op = at[nested[op]], op[nested[op]]
    first, last = end.copy(), end.copy()
    last[ops.parent[op]] = 0.0
    np.minimum.at(first, ops.parent[op], start[op])
    np.maximum.at(last, ops.parent[op], end[op])
    reads = reads[np.argsort(end[reads], kind="stable")]
    before = np.searchsorted(end[reads], start[resumed], side="right") - 1
    read = reads[np.maximum(before, 0)]
    called = np.sort(api["start_us"].to_numpy()[calls.rows])
    directly = np.searchsorted(called, end[read]) == np.searchsorted(called, start[resumed])
    cut = (before >= 0) & (ops.parent[read] == ops.parent[resumed]) & directly
    resumed, read = resumed[cut], read[cut]
    return union(np.r_[end[read], last[resumed]], np.r_[first[resumed], end[resumed]])
