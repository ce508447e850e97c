"""What runs of two sides say of their difference, when a side has few runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor.knowledge.structs import replace
from advisor.lab.verify import Gain, gain

LEVEL = 0.99
"""Of Student's interval. Several fixes share the same base runs, and a fix without gain must not seem to gain in a run of twenty."""

LOWEST = -10.0
"""Intervals are cut off here: lower ends of few runs would be meaningless numbers."""

TIGHT = 0.015
"""Half an interval, as a share of the step, that is narrow enough ..."""
OF_GAIN = 0.15
"""... or as a share of the gain that it is of."""


def held(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Gain:
    """The gain as `verify` finds it, with an interval at least as wide as the spread of the runs' medians requires.

    A bootstrap of two or three runs knows only those: if they happen to agree, it takes noise for certain. Student's interval on
    the logarithms of the runs' medians, with their spread pooled over both sides, does not."""
    found = gain(before, after)
    sides = [np.log([float(np.median(run)) for run in side if len(run)]) for side in (before, after)]
    freedom = sum(len(side) - 1 for side in sides)
    if freedom < 1:
        return replace(found, low=min(found.low, -1.0), high=max(found.high, 1.0))
    spread = math.sqrt(sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / freedom)
    wide = _t(freedom) * spread * math.sqrt(sum(1 / len(side) for side in sides))
    middle = math.log(found.after / found.before)
    return replace(found, low=max(min(found.low, 1 - math.exp(min(middle + wide, 10.0))), LOWEST), high=max(found.high, 1 - math.exp(middle - wide)))


def _t(freedom: int) -> float:
    """Student's t at the level: with t = √freedom · tan(angle), its density is a power of the angle's cosine."""
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (freedom - 1)
    reached = np.r_[0, np.cumsum(density[1:] + density[:-1])]
    return math.sqrt(freedom) * math.tan(np.interp(LEVEL * reached[-1], reached, angle))


def tight(found: Gain) -> bool:
    """Whether more runs would say nothing that anybody needs."""
    half = (found.high - found.low) / 2
    return found.verdict != "cannot-tell" and half <= max(TIGHT, OF_GAIN * abs(found.expected))
