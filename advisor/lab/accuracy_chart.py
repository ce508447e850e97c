"""The ledger as pictures: measured over predicted savings, and how far off sets were that nobody had seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from xml.sax.saxutils import escape

from advisor.lab.accuracy import Pair
from advisor.lab.accuracy_page import BlindSet
from advisor.lab.svg import BLUE, MARGIN, PLOT, RED, opened


def as_svg(pairs: Sequence[Pair]) -> str:
    """Measured over predicted savings as shares of the step, each with its interval; on the diagonal they agree."""
    side = PLOT + 2 * MARGIN

    def x_position(share: float) -> float:
        return round(MARGIN + share * PLOT, 1)

    def y_position(share: float) -> float:
        return round(MARGIN + (1 - share) * PLOT, 1)

    lines = [opened(side, side)]
    for tick in range(0, 101, 20):
        x, y = x_position(tick / 100), y_position(tick / 100)
        lines += [
            f'<path d="M{x} {y_position(0)}V{y_position(1)}M{x_position(0)} {y}H{x_position(1)}" stroke="#ddd"/>',
            f'<text x="{x}" y="{y_position(0) + 16}" text-anchor="middle">{tick}%</text>',
            f'<text x="{x_position(0) - 6}" y="{y + 4}" text-anchor="end">{tick}%</text>',
        ]
    lines.append(f'<path d="M{x_position(0)} {y_position(0)}L{x_position(1)} {y_position(1)}" stroke="#888" stroke-dasharray="4 4"/>')
    for pair in sorted(pairs, key=lambda p: (p.rule, p.name)):
        colour, y = BLUE if pair.in_interval else RED, y_position(pair.measured)
        said = f"{pair.rule}, {pair.name}: predicted {pair.expected:.0%}, measured {pair.measured:.0%}"
        lines += [
            f'<path d="M{x_position(pair.low)} {y}H{x_position(pair.high)}" stroke="{colour}" stroke-opacity=".35" stroke-width="3"/>',
            f'<circle cx="{x_position(pair.expected)}" cy="{y}" r="4" fill="{colour}"><title>{escape(said)}</title></circle>',
        ]
    lines += [
        f'<text x="{side / 2}" y="{side - 8}" text-anchor="middle">predicted saving, share of the step (bar: the interval)</text>',
        f'<text transform="translate(12 {side / 2}) rotate(-90)" text-anchor="middle">measured</text>',
        "</svg>",
    ]
    return "\n".join(lines)


_WIDE, _HIGH = 2 * PLOT, PLOT // 2


def by_set_as_svg(sets: Sequence[BlindSet]) -> str:
    """The mean error of each set of unseen programs, in their order, as a bar with the width of its number of fixes; the median as a line."""
    sets = [one for one in sets if one.mean_error is not None]
    per_fix = _WIDE / sum(one.fixes for one in sets)
    largest = max(max(one.mean_error or 0.0, one.median_error) for one in sets)
    ticks = range(0, 3 * max(ceil(100 * largest / 3), 1) + 1, 3)

    def y_position(share: float) -> float:
        return round(MARGIN + (1 - 100 * share / ticks[-1]) * _HIGH, 1)

    lines = [opened(_WIDE + 2 * MARGIN, _HIGH + 2 * MARGIN)]
    for percent in ticks:
        y = y_position(percent / 100)
        lines += [f'<path d="M{MARGIN} {y}H{MARGIN + _WIDE}" stroke="#ddd"/>', f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{percent}%</text>']
    left, month = float(MARGIN), ""
    for one in sets:
        width, mean = one.fixes * per_fix, one.mean_error or 0.0
        said = f"set {one.number}, {one.date}: {one.fixes} fixes, mean error {mean:.1%}, median {one.median_error:.1%}: {one.programs}"
        lines += [
            f'<rect x="{left:.1f}" y="{y_position(mean)}" width="{max(1.0, width - 1):.1f}" height="{round(y_position(0) - y_position(mean), 1)}" fill="{BLUE}" fill-opacity=".55">'
            f"<title>{escape(said)}</title></rect>",
            f'<path d="M{left:.1f} {y_position(one.median_error)}h{max(1.0, width - 1):.1f}" stroke="{RED}" stroke-width="2"/>',
        ]
        if one.date != month:
            lines.append(f'<text x="{left:.1f}" y="{y_position(0) + 14}">{one.date[5:]}</text>')
            month = one.date
        left += width
    lines += [
        f'<text x="{MARGIN}" y="{MARGIN - 16}">Error on programs that nobody had seen, shares of the step: mean (bars), median (lines); a bar is as wide as its set has fixes</text>',
        f'<text x="{MARGIN + _WIDE / 2}" y="{_HIGH + 2 * MARGIN - 8}" text-anchor="middle">sets in the order in which they were predicted</text>',
        "</svg>",
    ]
    return "\n".join(lines)
