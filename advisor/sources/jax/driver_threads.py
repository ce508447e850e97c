"""Whose thread the driver's calls are on: AMD's profiler numbers threads as the system does, XLA's runtime in its own way.

The runtime opens a range where it runs a program. A line of nothing but driver's calls is the thread in whose such ranges all of them lie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from advisor.intervals import Ints, union

_RUNS = re.compile(r"GpuExecutable::ExecuteThunks|:XLA GPU module$")
LEAST_CALLS = 8
"""Fewer calls may lie in another thread's ranges by chance."""


def owners(calls: Mapping[str, Any], notes: Mapping[str, Any], other: Ints) -> Ints:
    """The thread of each of the driver's calls (n,). calls, notes: columns of `api_calls` and `annotations`. other: threads that hold more
    than driver's calls; each of the rest is one of them where exactly one ran programs around all of its calls."""
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
