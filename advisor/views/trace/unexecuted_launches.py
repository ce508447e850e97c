"""Launches without an op on the GPU: captured into a graph, lost by the profiler, or failed; and the first steps that lost theirs."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.shares import HARDLY_ANY
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.views.trace.launches import Launches, computing_ops
from advisor.views.trace.repeats import TWICE
from advisor.views.trace.table_filters import matches

_BEGINS, _ENDS = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")


def captures(timeline: Timeline) -> tuple[tuple[str, float, float], ...]:
    """Stretches in which a thread captures a graph, which runs nothing and is done once for each."""
    calls = timeline.api_calls
    begins, ends = (np.flatnonzero(matches(calls, pattern)) for pattern in (_BEGINS, _ENDS))
    thread, start, dur = calls["tid"], calls["start_us"], calls["dur_us"]
    found = []
    for row in begins.tolist():
        later = ends[(thread[ends] == thread[row]) & (start[ends] > start[row])]
        if len(later):
            found.append(("the capture of a graph", float(start[row]), float(start[later[0]] + dur[later[0]])))
    return tuple(found)


def captured_calls(calls: Table, rows: Ints) -> Mask:
    """Which of these calls were made while their thread captured a graph: they run nothing yet."""
    begins, ends = matches(calls, _BEGINS), matches(calls, _ENDS)
    thread, start = calls["tid"], calls["start_us"]
    captured = np.zeros(len(rows), bool)
    for t in np.unique(thread[begins]):
        own = rows[thread[rows] == t]
        opened, closed = (np.sort(start[marks & (thread == t)]) for marks in (begins, ends))
        inside = np.searchsorted(opened, start[own], "right") > np.searchsorted(closed, start[own], "right")
        captured[thread[rows] == t] = inside
    return captured


def lost_launches(timeline: Timeline, launches: Launches) -> tuple[Ints, Mask]:
    """Rows of the calls that launched something, one of each correlation id, and which of them left no GPU op. None of them did if the trace
    holds GPU ops but ties none to its launch: links were not recorded. Calls that failed launched nothing."""
    calls, rows = timeline.api_calls, launches.calls_with(ApiRole.LAUNCH, ApiRole.GRAPH_LAUNCH)
    rows = rows[~calls["name"].matching(lambda name: name.endswith("HostFunc"))[rows] & ~captured_calls(calls, rows)]
    rows = rows[~(calls["error"][rows] > 0)]
    # A driver call inside the runtime's, and the runtime's: of two rows of one launch only one is tied to the op.
    correlation = calls["correlation"]
    _, first = np.unique(np.where(correlation[rows] >= 0, correlation[rows], -2 - rows), return_index=True)
    rows = rows[np.sort(first)]
    if not len(timeline.gpu_ops):
        return rows, np.ones(len(rows), bool)
    tied = launches.call[launches.call >= 0]
    if not len(tied):
        return rows, np.zeros(len(rows), bool)
    return rows, ~np.isin(rows, tied) & ~np.isin(correlation[rows], correlation[tied]) & ~_ran_untied(timeline, launches, rows)


def _ran_untied(timeline: Timeline, launches: Launches, rows: Ints) -> Mask:
    """(n,) graphs with ops that may lack the launch's id, as some profilers write them: an op starts before the next graph launch."""
    start = timeline.api_calls["start_us"]
    graphs = launches.roles[rows] == list(ApiRole).index(ApiRole.GRAPH_LAUNCH)
    untied = np.sort(timeline.gpu_ops["start_us"][(launches.call < 0) & computing_ops(timeline)])
    begun = start[rows[graphs]]
    found = np.zeros(len(rows), bool)
    found[graphs] = np.searchsorted(untied, begun) < np.searchsorted(untied, np.r_[begun[1:], np.inf])
    return found


LOST = HARDLY_ANY
"""A step that lost a twentieth of its GPU ops looks shorter, with idle time in place of the lost ops."""

FEWEST_LEFT = TWICE
"""Whole steps needed to leave others out: a single step does not show the usual count, and they must outnumber the others."""


def first_that_lost(timeline: Timeline, launches: Launches, edges_us: Floats) -> tuple[int, str]:
    """The number of first steps with lost GPU ops, if whole steps follow, and a sentence. edges_us: (steps + 1,) start of each step on the host, and
    the end of the last.
    """
    steps = len(edges_us) - 1
    rows, gone = lost_launches(timeline, launches)
    of = np.searchsorted(edges_us, timeline.api_calls["start_us"][rows], side="right") - 1
    inside = (of >= 0) & (of < steps)
    made, lost = (np.bincount(of[chosen], minlength=steps) for chosen in (inside, inside & gone))
    partial = lost > LOST * made
    skip = steps if partial.all() else int(np.argmin(partial))
    if not skip or steps - skip < max(FEWEST_LEFT, skip):
        return 0, ""
    first = "the first step" if skip == 1 else f"the first {skip} steps"
    return skip, f"; {first} left out: {int(lost[:skip].sum()):,} of {int(made[:skip].sum()):,} launches left no GPU op in the trace"
