"""Launches without an op on the GPU: those that were captured into a graph run nothing yet, those that the profiler lost ran unseen."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from advisor.intervals import Ints, Mask
from advisor.knowledge.cuda_api import ApiRole
from advisor.recordings.timeline import Timeline
from advisor.views.trace.frames import matches
from advisor.views.trace.launches import Launches

_BEGINS, _ENDS = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")


def captures(timeline: Timeline) -> tuple[tuple[str, float, float], ...]:
    """Stretches in which a thread captures a graph, which runs nothing and is done once for each."""
    calls = timeline.api_calls
    begins, ends = (np.flatnonzero(matches(calls, pattern)) for pattern in (_BEGINS, _ENDS))
    thread, start, dur = calls["tid"].to_numpy(), calls["start_us"].to_numpy(), calls["dur_us"].to_numpy()
    found = []
    for row in begins.tolist():
        later = ends[(thread[ends] == thread[row]) & (start[ends] > start[row])]
        if len(later):
            found.append(("the capture of a graph", float(start[row]), float(start[later[0]] + dur[later[0]])))
    return tuple(found)


def captured_calls(calls: pd.DataFrame, rows: Ints) -> Mask:
    """Which of these calls were made while their thread captured a graph: they run nothing yet."""
    begins, ends = matches(calls, _BEGINS), matches(calls, _ENDS)
    thread, start = calls["tid"].to_numpy(), calls["start_us"].to_numpy()
    captured = np.zeros(len(rows), bool)
    for t in np.unique(thread[begins]):
        own = rows[thread[rows] == t]
        opened, closed = (np.sort(start[marks & (thread == t)]) for marks in (begins, ends))
        inside = np.searchsorted(opened, start[own], "right") > np.searchsorted(closed, start[own], "right")
        captured[thread[rows] == t] = inside
    return captured


def lost_launches(timeline: Timeline, launches: Launches) -> tuple[Ints, Mask]:
    """Rows of the calls that launched something, and which of them left no GPU op. By correlation, not by row: of two rows of one launch
    (a driver call inside the runtime's) only one is tied to the op. None where no op is tied to its launch."""
    calls, rows = timeline.api_calls, launches.calls_with(ApiRole.LAUNCH, ApiRole.GRAPH_LAUNCH)
    rows = rows[~np.char.endswith(calls["name"].to_numpy()[rows].astype(str), "HostFunc") & ~captured_calls(calls, rows)]
    correlation = calls["correlation"].to_numpy()
    if not (launches.call >= 0).any():
        return rows, np.zeros(len(rows), bool)  # links were not recorded
    return rows, ~np.isin(rows, launches.call) & ~np.isin(correlation[rows], correlation[launches.call[launches.call >= 0]])
