"""The thread of the driver's calls: AMD's profiler uses the system's thread numbers, XLA's runtime its own.

The runtime opens a range around each run of a program. A line with only driver calls belongs to the thread with ranges around all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from advisor.intervals import Ints, union
from advisor.knowledge.counts import BY_CHANCE

_RUNS = re.compile(r"GpuExecutable::ExecuteThunks|:XLA GPU module$")
LEAST_CALLS = BY_CHANCE
"""Fewer calls may lie in another thread's ranges by chance."""


def owners(calls: Mapping[str, Any], notes: Mapping[str, Any], other: Ints) -> Ints:
    """The thread of each of the driver's calls (n,). calls, notes: columns of `api_calls` and `annotations`.

    other: threads with other events than driver calls. Each remaining thread is one of these, if exactly a single thread ran programs around all of
    its calls."""
    found: Ints = calls["tid"].copy()
    runs = np.array([bool(_RUNS.search(name)) for name in notes["name"].categories], bool)[notes["name"].codes]
    start = notes["start_us"][runs]
    end, thread = start + notes["dur_us"][runs], notes["tid"][runs]
    spans = {one: union(start[thread == one], end[thread == one]) for one in np.unique(thread).tolist()}
    for line in np.setdiff1d(found, other).tolist():
        mine = calls["tid"] == line
        at = calls["start_us"][mine]
        around = [one for one, (begins, ends) in spans.items() if len(at) >= LEAST_CALLS and _inside_spans(at, begins, ends)]
        if len(around) == 1:
            found[mine] = around[0]
    return found


def _inside_spans(at: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> bool:
    before = np.searchsorted(begins, at, side="right") - 1
    return bool(((before >= 0) & (at < ends[np.maximum(before, 0)])).all())
