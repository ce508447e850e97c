"""A small picture that needs nothing but a fixed-width font: comments of GitHub and GitLab, mail and terminals show it alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from advisor.report.numbers import cut

WIDTH = 32
SMALLEST = 0.005
"""What is a smaller share of the picture's width is best left out: its bar would be rounded to nothing."""
_LABEL = 32
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Bar(NamedTuple):
    """A bar from `low` to `low + width`, shares of the picture's width, between its name and what it amounts to."""

    label: str
    low: float
    width: float
    told: str


def drawn(bars: Sequence[Bar]) -> list[str]:
    """A line a bar, names and amounts aligned. A bar that is at 0 is drawn to the eighth of a character."""
    labels = [cut(bar.label, _LABEL) for bar in bars]
    longest = max(map(len, labels), default=0)
    at = max((len(bar.told) for bar in bars), default=0)
    return [f"{label:<{longest}}  {_line(bar):<{WIDTH}}  {bar.told:>{at}}" for label, bar in zip(labels, bars, strict=True)]


def _line(bar: Bar) -> str:
    left = min(round(bar.low * WIDTH), WIDTH - 1)
    if left:
        return " " * left + "█" * max(round((bar.low + bar.width) * WIDTH) - left, 1)
    eighths = max(round(min(bar.width, 1.0) * WIDTH * 8), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def fenced(lines: Sequence[str], language: str = "") -> list[str]:
    """The lines as a block of Markdown, in a fence that none of them can close."""
    longest = max((len(run) for run in re.findall(r"`+", "\n".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]
