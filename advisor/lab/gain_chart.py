"""Draws predicted and measured gains."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Protocol

from advisor.lab.svg import BLUE, CELL, NAMES, PLOT, RED, opened


class Interval(Protocol):
    """Shares of the step."""

    @property
    def low(self) -> float: ...
    @property
    def expected(self) -> float: ...
    @property
    def high(self) -> float: ...


class GainRow(NamedTuple):
    """The predicted gain of a fix, None without a prediction, and the measured gain."""

    name: str
    predicted: Interval | None
    measured: Interval


_ROW, _WIDTH = 2 * CELL, NAMES + PLOT + CELL
_PREDICTED, _MEASURED = RED, BLUE


def gain_chart(rows: Sequence[GainRow]) -> str:
    """A row a fix, each interval a line with its middle, as SVG; "" without rows."""
    if not rows:
        return ""
    ends = [0.0, 0.1]
    for row in rows:
        ends += [max(row.measured.low, -1.0), row.measured.high, *((row.predicted.low, row.predicted.high) if row.predicted else ())]
    low, high = min(ends), max(ends)

    def x_position(share: float) -> float:
        return round(NAMES + PLOT * (min(max(share, low), high) - low) / (high - low), 1)

    tall = _ROW * len(rows) + 40
    parts = [
        opened(_WIDTH, tall, "Predicted beside measured", font=12),
        f'<path d="M{x_position(0)} 8V{tall - 30}" stroke="#888"/>',
        f'<text x="{x_position(0)}" y="{tall - 12}" text-anchor="middle">0 %</text><text x="{NAMES + PLOT}" y="{tall - 12}" text-anchor="end">{high:.0%} of the step</text>',
    ]
    for number, row in enumerate(rows):
        y = 24 + _ROW * number
        parts.append(f'<text x="{NAMES - 10}" y="{y + 8}" text-anchor="end">{escape(row.name)}</text>')
        for colour, at, what, one in ((_PREDICTED, y, "predicted", row.predicted), (_MEASURED, y + 14, "measured", row.measured)):
            if one is not None:
                parts.append(
                    f'<path d="M{x_position(one.low)} {at}H{x_position(one.high)}" stroke="{colour}" stroke-width="3"/><circle cx="{x_position(one.expected)}" cy="{at}" r="4" fill="{colour}">'
                    f"<title>{what} {one.expected:.1%} ({one.low:.1%} to {one.high:.1%})</title></circle>"
                )
    parts.append(f'<text x="10" y="{tall - 12}" fill="{_PREDICTED}">predicted</text><text x="80" y="{tall - 12}" fill="{_MEASURED}">measured</text></svg>')
    return "".join(parts)
