"""The frame, sizes and colours that charts of the lab share."""

from __future__ import annotations

from html import escape

PLOT, MARGIN, CELL, NAMES = 400, 44, 18, 190
"""Pixels: the side of a plot, the margin for an axis, a bar with its gap, the margin for names of rules."""

BLUE, RED = "#1668b8", "#c2410c"


def opened(wide: float, high: float, described: str = "", font: int = 11) -> str:
    """The start of a chart on a white ground. described: for who cannot see it."""
    label = f'role="img" aria-label="{escape(described)}" ' if described else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" {label}font-family="sans-serif" font-size="{font}" fill="#222">'
        f'<rect width="{wide}" height="{high}" fill="#fff"/>'
    )
