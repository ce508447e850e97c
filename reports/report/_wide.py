"""The whole trace for the page's timeline: every slice as columns, or of a trace with too many the finest level of detail that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from advisor.report.charts import Cut, Moment
from advisor.reports._clean import shortened
from advisor.reports.report._columns import packed, steps
from advisor.reports.report._thin import thin

DEEPEST = 16
"""Slices nested deeper than a page has room for are left out, and that is said."""
UNIT_US = 0.01


def wide(cut: Cut, most: int, code: Callable[[str], int], whole: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """At most `most` slices of the cut, none merged within `whole` (start and end in µs). Times are counted from the cut's start.

    `columns` are, row by row of `rows` (lane, depth, slices): the step of the start, the length, the name, the kind, the op + 1, the step
    of the launching slice + 1, how many slices were merged, and how much of the length none of these fills.
    """
    made = thin(cut, most, DEEPEST, whole)
    order = np.lexsort((made.start_us, made.depth, made.lane))
    place = np.argsort(order)
    lane, depth, longest = made.lane[order], made.depth[order], made.longest[order]
    # Coarser where 2³² hundredths of a µs, 43 s, do not reach.
    unit = max(UNIT_US, (cut.end_us - cut.start_us + 1.0) / 2**31)
    start = np.round((made.start_us[order] - cut.start_us) / unit).astype(np.int64)
    length = np.round((made.end_us - made.start_us)[order] / unit).astype(np.int64)
    blank = np.where(made.count > 1, made.end_us - made.start_us - made.busy_us, 0.0)[order]
    launcher = cut.launched_by[longest]
    by = np.where(launcher >= 0, made.of[launcher], -1) if len(made.of) else np.full(len(order), -1)
    by = np.where(by >= 0, place[by], -1)
    names = np.array([code(name) for name in cut.names] or [0], np.int64)
    op = cut.op[longest]
    edges = np.flatnonzero(np.r_[True, (np.diff(lane) != 0) | (np.diff(depth) != 0)]) if len(order) else np.empty(0, np.int64)
    counts = np.diff(np.r_[edges, len(order)])
    return {
        "at": round(cut.start_us, 3),
        "dur": round(cut.end_us - cut.start_us, 3),
        "unit": unit,
        "n": len(order),
        "lanes": [[shortened(one.label, 160), one.side] for one in cut.lanes],
        "kinds": list(cut.kinds),
        "rows": [[int(lane[at]), int(depth[at]), int(count)] for at, count in zip(edges.tolist(), counts.tolist(), strict=True)],
        "columns": packed(
            (
                steps(start),
                length,
                names[cut.name[longest]],
                cut.kind[longest],
                np.where(op >= 0, names[op], -1) + 1,
                steps(by + 1),
                made.count[order],
                np.round(blank / unit).astype(np.int64),
            )
        ),
        "merged": int(made.count[made.count > 1].sum()),
        "finest": round(float((made.end_us - made.start_us)[made.count == 1].min(initial=0.0)), 2) if (made.count > 1).any() else 0,
        "deep": int((cut.depth >= DEEPEST).sum()),
        "left": cut.left_out,
    }


def shown_moment(moment: Moment, cut: Cut) -> dict[str, Any] | None:
    """Where a finding's evidence lies on the timeline: the stretch around it, and its marks by the cut's lanes; None outside of it."""
    start, end = moment.cut.start_us, moment.cut.end_us
    if end <= cut.start_us or start >= cut.end_us:
        return None
    at = {one: number for number, one in enumerate(cut.lanes)}
    marks = [
        [-1 if mark.lane < 0 else at.get(moment.cut.lanes[mark.lane], -2), round(mark.start_us - cut.start_us, 3), round(mark.end_us - mark.start_us, 3)]
        for mark in moment.marks
    ]
    return {"from": round(start - cut.start_us, 3), "to": round(end - cut.start_us, 3), "marks": [mark for mark in marks if mark[0] >= -1]}
