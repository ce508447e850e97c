"""How measurements look: HTML tables, plots as SVG, and a page that opens offline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from advisor.lab.svg import CELL, MARGIN, NAMES, PLOT, opened

Points = Sequence[tuple[float, float]]

_COLOURS = ("#1668b8", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be123c")
_STYLE = (
    ":root{color-scheme:light dark;--bg:#fff;--ink:#1a1a1a;--sunk:#f3f3f3}"
    "@media screen and (prefers-color-scheme:dark){:root{--bg:#0f1216;--ink:#e7ebf0;--sunk:#171b21}}"
    "body{color:var(--ink);background:var(--bg);font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:1rem 0;overflow-wrap:break-word}caption{text-align:left}"
    "th,td{padding:.3rem .7rem;border-bottom:1px solid #8886;text-align:right}"
    "th:first-child,td:first-child{text-align:left}pre{white-space:pre-wrap;background:var(--sunk);padding:1rem}svg{max-width:100%;height:auto}"
)


def table(rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """An HTML table; the first row is its header. A table that is too wide scrolls, by keys too."""
    head, *body = [[escape(cell) for cell in row] for row in rows]
    parts = [f'<div style="overflow-x:auto" tabindex="0" role="group" aria-label="{escape(caption) or "Measurements"}"><table>']
    parts += [f"<caption>{escape(caption)}</caption>"] if caption else []
    parts += ["<tr>" + "".join(f'<th scope="col">{cell}</th>' for cell in head) + "</tr>"]
    parts += [f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for first, *row in body]
    return "".join([*parts, "</table></div>"])


def page(title: str, *parts: str) -> str:
    """A single HTML file that loads nothing. `parts` are HTML."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="trace-advisor">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>{''.join(parts)}</main></body></html>\n"
    )


def preformatted(text: str) -> str:
    """Text without changes."""
    return f"<pre>{escape(text)}</pre>"


def lines(series: Mapping[str, Points], x: str, y: str) -> str:
    """A line a series over a logarithmic plane, as SVG. Values must be positive; an empty series is in the legend alone."""
    points = [point for some in series.values() for point in some]
    if not points:
        return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 40"><text x="8" y="24">nothing was measured</text></svg>'
    xs, ys = [math.log10(px) for px, _ in points], [math.log10(py) for _, py in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), math.floor(min(ys)), math.ceil(max(ys))
    wide, high = PLOT, PLOT // 2
    width, height = MARGIN + wide + NAMES, CELL + high + MARGIN

    def x_position(value: float) -> float:
        return round(MARGIN + wide * (math.log10(value) - low_x) / ((high_x - low_x) or 1.0), 1)

    def y_position(value: float) -> float:
        return round(CELL + high * (1 - (math.log10(value) - low_y) / ((high_y - low_y) or 1)), 1)

    parts = [
        opened(width, height, f"{y} by {x}", font=12),
    ]
    for power in range(low_y, high_y + 1):
        at = y_position(10.0**power)
        parts.append(f'<path d="M{MARGIN} {at}H{MARGIN + wide}" stroke="#ddd"/><text x="{MARGIN - 6}" y="{at + 4}" text-anchor="end">{10.0**power:g}</text>')
    values = sorted({px for px, _ in points})
    parts += [f'<text x="{x_position(value)}" y="{CELL + high + 16}" text-anchor="middle">{value:g}</text>' for value in values]
    for i, (name, some) in enumerate(series.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        path = "M" + "L".join(f"{x_position(px)} {y_position(py)}" for px, py in some) if some else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_position(px)}" cy="{y_position(py)}" r="3" fill="{colour}"><title>{escape(name)}: {px:g}, {py:.4g}</title></circle>'
            for px, py in some
        ]
        parts.append(f'<text x="{MARGIN + wide + 12}" y="{2 * CELL + CELL * i}" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{MARGIN + wide / 2}" y="{height - 6}" text-anchor="middle">{escape(x)}</text>')
    parts.append(f'<text transform="translate(14 {CELL + high / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text></svg>')
    return "".join(parts)
