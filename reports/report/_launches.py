"""The launches of one kernel in a timeline, drawn: when each ran and for how long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.report.charts import Picture

_LEFT, _WIDTH, _TOP, _HEIGHT = 52.0, 638.0, 10.0, 60.0
_MOST = 300
"""Launches that are drawn: more run into each other at this width."""


class Dots(NamedTuple):
    """In the units of the drawing, and what the launches took."""

    points: tuple[tuple[float, float], ...]
    launches: int
    span_us: float
    least_us: float
    median_us: float
    most_us: float


def launches_drawn(picture: Picture | None, name: str) -> Dots | None:
    """Of the kernel of that name; None if it was not found in a timeline. The longest launch is always drawn."""
    found = picture.launched.get(name) if picture else None
    if found is None or not len(found.dur_us):
        return None
    n = len(found.dur_us)
    shown = np.unique(np.r_[np.linspace(0, n - 1, min(n, _MOST)).astype(int), int(found.dur_us.argmax())])
    span, most = float((found.start_us + found.dur_us).max()), float(found.dur_us.max())
    x = _LEFT + _WIDTH * found.start_us[shown] / max(span, 1e-9)
    y = _TOP + _HEIGHT * (1 - found.dur_us[shown] / max(most, 1e-9))
    points = tuple((round(a, 1), round(b, 1)) for a, b in zip(x.tolist(), y.tolist(), strict=True))
    return Dots(points, n, span, float(found.dur_us.min()), float(np.median(found.dur_us)), most)
