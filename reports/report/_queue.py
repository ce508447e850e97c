"""The launch queue as charts show it: over a stretch of the trace, in as many points as there is room for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.report.charts import QueueCurve
from advisor.report.numbers import counted, duration, percent


class Points(NamedTuple):
    """(n,) from each time to the next: the most ops that are in the queue, and the fewest."""

    time_us: Floats
    most: Ints
    least: Ints


def points(curve: QueueCurve, start_us: float, end_us: float, most: int) -> Points:
    """The curve from start to end; if it changes more often than `most` times, by stretches of one length."""
    inside = np.flatnonzero((curve.time_us > start_us) & (curve.time_us < end_us))
    held = np.r_[0, curve.length]  # before the first change nothing is queued
    first = int(np.searchsorted(curve.time_us, start_us, "right"))
    if len(inside) < most:
        length = held[np.r_[first, inside + 1]]
        return Points(np.r_[start_us, curve.time_us[inside]], length, length)
    edges = np.linspace(start_us, end_us, most + 1)
    begins = np.searchsorted(curve.time_us, edges[:-1], "right")  # what holds at the stretch's begin, too
    ends = np.searchsorted(curve.time_us, edges[1:], "left") + 1
    pairs, padded = np.stack([begins, ends], axis=1).ravel(), np.r_[held, 0]
    return Points(edges[:-1], np.maximum.reduceat(padded, pairs)[::2], np.minimum.reduceat(padded, pairs)[::2])


def said(curve: QueueCurve) -> str:
    """How far the host runs ahead, in a sentence or two."""
    ahead = f"An op of GPU {curve.device} is launched {duration(curve.ahead_us)} before it begins (median)."
    empty = f"is empty for {percent(curve.empty_share)} of the time" if curve.empty_share > 0 else "is never empty"
    return f"{ahead} The queue holds {counted(curve.median, 'op')} in the median of the time, {curve.most:,} at the most, and {empty}."
