"""Rows of host tables by name and by time."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Mask, Spans, in_spans, union
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine
from advisor.views.trace.source_lines import user_frame


def matches(frame: Table, pattern: re.Pattern[str]) -> np.ndarray:
    """(n,) whether each row's name matches; each distinct name is looked at once."""
    return frame["name"].matching(pattern.search) if len(frame) else np.zeros(0, bool)


def begins_inside(frame: Table, spans: Spans) -> Mask:
    """(n,) whether each row of a host table begins inside disjoint, sorted spans."""
    return in_spans(frame["start_us"], spans)


def spans_of(frame: Table, chosen: np.ndarray) -> Spans:
    """Disjoint, sorted spans that cover the chosen rows of a host table."""
    return union(*frame.bounds(chosen))


def line_around(timeline: Timeline, mine: Mask, start_us: float, end_us: float) -> SourceLine | None:
    """The user's line of the innermost frame around a span of host time, None without stacks. mine: (n_python_calls,) frames of the threads in question."""
    calls = timeline.python_calls
    if not len(calls):
        return None
    start = calls["start_us"]
    around = np.flatnonzero(mine & (start <= start_us) & (start + calls["dur_us"] >= end_us))
    names = calls["name"].categories
    codes = calls["name"].codes
    for row in around[np.argsort(calls["dur_us"][around], kind="stable")]:
        if line := user_frame(str(names[codes[row]])):
            return line
    return None
