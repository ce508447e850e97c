"""Rows of host tables by name and by time."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from advisor.intervals import Mask, Spans, in_spans, union
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine
from advisor.views.trace.source_lines import user_frame


def matches(frame: pd.DataFrame, pattern: re.Pattern[str]) -> np.ndarray:
    """(n,) whether each row's name matches; each distinct name is looked at once."""
    if not len(frame):
        return np.zeros(0, bool)
    names = frame["name"].cat
    by_name = np.array([pattern.search(name) is not None for name in names.categories.to_list()], bool)
    found: np.ndarray = by_name[names.codes.to_numpy()]
    return found


def begins_inside(frame: pd.DataFrame, spans: Spans) -> Mask:
    """(n,) whether each row of a host table begins inside disjoint, sorted spans."""
    return in_spans(frame["start_us"].to_numpy(), spans)


def spans_of(frame: pd.DataFrame, chosen: np.ndarray) -> Spans:
    """Disjoint, sorted spans that cover the chosen rows of a host table."""
    start = frame["start_us"].to_numpy()[chosen]
    return union(start, start + frame["dur_us"].to_numpy()[chosen])


def line_around(timeline: Timeline, mine: Mask, start_us: float, end_us: float) -> SourceLine | None:
    """The user's line whose frame is the innermost one around a span of host time, None if no stacks were recorded. mine: (n_python_calls,) frames of the threads in question."""
    calls = timeline.python_calls
    if not len(calls):
        return None
    start = calls["start_us"].to_numpy()
    around = np.flatnonzero(mine & (start <= start_us) & (start + calls["dur_us"].to_numpy() >= end_us))
    names = calls["name"].cat.categories
    codes = calls["name"].cat.codes.to_numpy()
    for row in around[np.argsort(calls["dur_us"].to_numpy()[around], kind="stable")]:
        if line := user_frame(str(names[codes[row]])):
            return line
    return None
