"""The ledger as a picture: measured over predicted savings."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from advisor.lab.accuracy import Pair

_PLOT, _MARGIN = 400, 44


def as_svg(pairs: Sequence[Pair]) -> str:
    """Measured over predicted savings as shares of the step, each with its interval; on the diagonal they agree."""
    side = _PLOT + 2 * _MARGIN

    def at(share: float) -> float:
        return round(_MARGIN + share * _PLOT, 1)

    def up(share: float) -> float:
        return round(_MARGIN + (1 - share) * _PLOT, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" width="{side}" height="{side}" '
        'font-family="sans-serif" font-size="11" fill="#222">',
        f'<rect width="{side}" height="{side}" fill="#fff"/>',
    ]
    for tick in range(0, 101, 20):
        x, y = at(tick / 100), up(tick / 100)
        lines += [
            f'<path d="M{x} {up(0)}V{up(1)}M{at(0)} {y}H{at(1)}" stroke="#ddd"/>',
            f'<text x="{x}" y="{up(0) + 16}" text-anchor="middle">{tick}%</text>',
            f'<text x="{at(0) - 6}" y="{y + 4}" text-anchor="end">{tick}%</text>',
        ]
    lines.append(f'<path d="M{at(0)} {up(0)}L{at(1)} {up(1)}" stroke="#888" stroke-dasharray="4 4"/>')
    for pair in sorted(pairs, key=lambda p: (p.rule, p.name)):
        colour, y = "#1668b8" if pair.inside else "#c2410c", up(pair.measured)
        said = f"{pair.rule}, {pair.name}: predicted {pair.expected:.0%}, measured {pair.measured:.0%}"
        lines += [
            f'<path d="M{at(pair.low)} {y}H{at(pair.high)}" stroke="{colour}" stroke-opacity=".35" stroke-width="3"/>',
            f'<circle cx="{at(pair.expected)}" cy="{y}" r="4" fill="{colour}"><title>{escape(said)}</title></circle>',
        ]
    lines += [
        f'<text x="{side / 2}" y="{side - 8}" text-anchor="middle">predicted saving, share of the step (bar: the interval)</text>',
        f'<text transform="translate(12 {side / 2}) rotate(-90)" text-anchor="middle">measured</text>',
        "</svg>",
    ]
    return "\n".join(lines)
