"""What a report shows of memory: drawings as SVG that need no script, and the tables that say the same."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from advisor.report.memory import HeldRow, Memory, MemoryCurve
from advisor.report.model import Report
from advisor.report.numbers import counted, duration, interval, percent, share, size
from advisor.reports._clean import visible

if TYPE_CHECKING:
    from markupsafe import Markup

# From the bottom of the stack: what is always there first, what comes and goes on top.
_COLORS = {
    "parameters": "--k-gemm",
    "optimizer state": "--k-optimizer",
    "gradients": "--k-conv",
    "workspaces": "--k-move",
    "older than the history": "--k-other",
    "held by the program": "--k-attention",
    "leaked": "--k-comm",
    "activations": "--k-pointwise",
    "temporaries": "--k-norm",
    "unknown": "--h-sync",
}
_STRONG = frozenset(f"var({name})" for name in ("--k-gemm", "--k-move", "--k-comm"))
"""Colours on which dark letters would not be read."""
WIDTH, HEIGHT = 960, 300
_HEAD, _FOOT = 26, 24
"""Of a curve, above it the peak's label and below it the times."""
_AXIS = 76
_SEGMENTS = 40
_LIVES = 24


class Drawn(NamedTuple):
    """The drawings of one snapshot; None if there is nothing to draw."""

    curve: Markup | None
    map: Markup
    lives: Markup | None
    segments: Markup | None
    legend: tuple[tuple[str, str, int, float], ...]
    """Category, its colour, bytes and share at the peak, most first."""


def drawn(report: Report) -> Drawn | None:
    """The drawings of a report about memory."""
    memory = report.memory
    if memory is None:
        return None
    held = by_category(memory)
    legend = tuple((name, _color(name), count, share(count, memory.peak_allocated_bytes)) for name, count in held)
    return Drawn(_curve(memory), _map(memory), _lives(memory), _segments(memory), legend)


def by_category(memory: Memory) -> list[tuple[str, int]]:
    """Bytes at the peak by category, most first."""
    held: Counter[str] = Counter()
    for row in memory.at_peak:
        held[row.category] += row.bytes
    return held.most_common()


def op_and_module(row: HeldRow) -> str:
    """Op and module of a row, in a line."""
    return " in ".join(part for part in (row.op, row.module) if part) or "not known"


def lines(report: Report) -> list[str]:
    """What a terminal says of the peak: a line a category, with its largest place."""
    memory = report.memory
    if memory is None:
        return []
    largest: dict[str, HeldRow] = {}
    for row in memory.at_peak:
        largest.setdefault(row.category, row)
    said = []
    for name, count in by_category(memory):
        part = share(count, memory.peak_allocated_bytes)
        if part >= 0.005:
            row = largest[name]
            most = f"  mostly {op_and_module(row)}{f', {row.source}' if row.source else ''}" if row.bytes < count or op_and_module(row) != "not known" else ""
            said.append(f"{percent(part):>5}  {size(count):>8}  {name}{most}")
    return said


def title(memory: Memory) -> str:
    """What the table of what is held is called."""
    return "Memory held when the snapshot was written" if memory.when_written else "What holds the peak"


def totals(report: Report, memory: Memory) -> str:
    """Both peaks and what a step adds, in a sentence."""
    rank = f"rank {memory.device}" in {device.name for device in report.devices}
    # Without events what is held now is all that is known.
    when = "when the snapshot was written," if memory.when_written else "at most"
    reserved = f" and {size(memory.peak_reserved_bytes)} reserved" if memory.reserved_known else ""
    said = f"{'Rank' if rank else 'GPU'} {memory.device}: {when} {size(memory.peak_allocated_bytes)} allocated{reserved}"
    if memory.growth_bytes:
        said += f"; each step adds {size(memory.growth_bytes)}"
    others = [d for d in memory.devices if d.device != memory.device and d.peak_allocated_bytes]
    if others:
        held = [d.peak_allocated_bytes for d in others]
        said += f"; {counted(len(others), 'other rank' if rank else 'other GPU')} hold{'s' * (len(others) == 1)} {interval(min(held), max(held), size)}"
    return f"{said}."


def _color(category: str) -> str:
    return f"var({_COLORS.get(category, '--k-other')})"


def _svg(height: float, label: str, body: Iterable[str]) -> Markup:
    from markupsafe import Markup, escape

    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" style="width:100%;min-width:48rem;height:auto;display:block;'
        f'fill:var(--ink);font:12px var(--sans)">{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = "var(--ink)") -> str:
    from markupsafe import escape

    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:{color}">{escape(visible(text))}</text>'


def _rect(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    from markupsafe import escape

    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}" fill="{color}"><title>{escape(visible(title))}</title></rect>'


def _curve(memory: Memory) -> Markup | None:
    """Memory stacked by category, the reserved bytes as a line, the peak marked. Events are at equal distances: by the clock, start-up would be most of it."""
    curve = memory.curve
    if curve is None or len(curve.time_us) < 2 or curve.time_us[-1] <= 0:
        return None
    top = max(max(curve.reserved), memory.peak_allocated_bytes, 1)
    # A reserved curve far above what is allocated would leave that a line: the scale is then its own.
    clipped = top > 4 * memory.peak_allocated_bytes
    top = min(top, 4 * memory.peak_allocated_bytes) or 1

    def x(at: int) -> float:
        return _AXIS + (WIDTH - _AXIS - 8) * at / (len(curve.time_us) - 1)

    def y(count: float) -> float:
        return _HEAD + (HEIGHT - _HEAD - _FOOT) * (1 - min(count, top) / top)

    body = []
    below = [0] * len(curve.time_us)
    for name in [n for n in _COLORS if n in curve.categories]:
        above = [low + add for low, add in zip(below, curve.categories[name], strict=True)]
        path = _steps([(x(at), y(v)) for at, v in enumerate(above)])
        back = _steps([(x(at), y(v)) for at, v in enumerate(below)])[::-1]
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in [*path, *back])
        body.append(f'<polygon points="{points}" fill="{_color(name)}"><title>{name}</title></polygon>')
        below = above
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in _steps([(x(at), y(v)) for at, v in enumerate(curve.reserved)]))
    body.append(f'<polyline points="{line}" fill="none" stroke="var(--ink)" stroke-width="1.2"><title>reserved</title></polyline>')
    at = x(curve.peak)
    body.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{HEIGHT - _FOOT}" stroke="var(--mark)" stroke-width="1.5" stroke-dasharray="4 3"/>')
    right = at > WIDTH / 2
    body.append(_text(at + (-6 if right else 6), 14, f"peak {size(memory.peak_allocated_bytes)}", "end" if right else "start", "var(--mark)"))
    for part in (0, 0.5, 1):
        body.append(_text(_AXIS - 6, y(top * part) + 4, f"{size(top * part)}{' +' if clipped and part == 1 else ''}", "end", "var(--dim)"))
        place = int((len(curve.time_us) - 1) * part)
        body.append(_text(x(place), HEIGHT - 6, duration(curve.time_us[place]), ("start", "middle", "end")[int(part * 2)], "var(--dim)"))
    return _svg(HEIGHT, "Memory over time by category; the solid line is reserved memory, the dashed line the peak", body)


def overlaid(before: MemoryCurve | None, after: MemoryCurve | None) -> Markup | None:
    """What was allocated over time on two sides, on one axis of bytes; None if either has no history."""
    if before is None or after is None or min(len(before.time_us), len(after.time_us)) < 2:
        return None
    sides = [[sum(held) for held in zip(*curve.categories.values(), strict=True)] for curve in (before, after)]
    top = max(*sides[0], *sides[1], 1)
    body = []
    for held, color, label in zip(sides, ("var(--dim)", "var(--k-gemm)"), ("before", "after"), strict=True):
        points = _steps([(_AXIS + (WIDTH - _AXIS - 8) * at / (len(held) - 1), 12 + (HEIGHT - 36) * (1 - count / top)) for at, count in enumerate(held)])
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        body.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"><title>{label}</title></polyline>')
    body += [_text(_AXIS - 6, 16 + (HEIGHT - 36) * (1 - part), size(top * part), "end", "var(--dim)") for part in (0, 0.5, 1)]
    return _svg(HEIGHT, "Memory allocated over time, before and after, on the same axes", body)


def _steps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """A curve that holds each value until the next."""
    made = points[:1]
    for (_, before), (right, value) in itertools.pairwise(points):
        made += [(right, before), (right, value)]
    return made


def _map(memory: Memory) -> Markup:
    """The peak as areas: a column a category, cut by place."""
    total = sum(row.bytes for row in memory.at_peak) or 1
    body, left = [], 0.0
    for name, count in by_category(memory):
        width = WIDTH * count / total
        top = 0.0
        ink = "var(--on-strong)" if _color(name) in _STRONG else "var(--on-box)"
        for row in (r for r in memory.at_peak if r.category == name):
            height = HEIGHT * row.bytes / count
            said = f"{name}: {op_and_module(row)}{f' at {row.source}' if row.source else ''}, {size(row.bytes)}"
            body.append(f"<g>{_rect(left + 0.5, top + 0.5, width - 1, height - 1, _color(name), said)}")
            if width > 90 and height > 18:
                room = int(width / 7)
                body.append(_text(left + 6, top + 15, f"{size(row.bytes)} {row.op or row.module.rpartition(' > ')[2] or name}"[:room], color=ink))
                if height > 34:
                    body.append(_text(left + 6, top + 30, (row.source or row.module or "")[:room], color=ink))
            body.append("</g>")
            top += height
        left += width
    return _svg(HEIGHT, f"{title(memory)}: a column a category, cut by place", body)


def _lives(memory: Memory) -> Markup | None:
    """When the largest parts of the peak were made and given back."""
    curve = memory.curve
    rows = [row for row in memory.at_peak if row.end_us > row.start_us][:_LIVES]
    if curve is None or not rows or curve.time_us[-1] <= 0:
        return None
    label = 330

    def x(time: float) -> float:
        """On the scale of events, as the curve."""
        return label + (WIDTH - label) * bisect_left(curve.time_us, time) / (len(curve.time_us) - 1)

    body = []
    for at, row in enumerate(rows):
        y = 4 + 19 * at
        body.append(_text(0, y + 12, f"{size(row.bytes)}  {row.op or row.category} {row.source}"[:50]))
        left = x(row.start_us)
        said = f"{row.category}: {op_and_module(row)}, {size(row.bytes)} in {row.count:,}, {row.lifetime}"
        body.append(_rect(left, y + 2, x(row.end_us) - left, 13, _color(row.category), said))
    peak = x(curve.time_us[curve.peak])
    height = 8 + 19 * len(rows)
    body.append(f'<line x1="{peak:.1f}" x2="{peak:.1f}" y1="0" y2="{height}" stroke="var(--mark)" stroke-width="1.5" stroke-dasharray="4 3"/>')
    return _svg(height, "From the first birth to the last end of the largest parts of the peak; the dashed line is the peak", body)


def _segments(memory: Memory) -> Markup | None:
    """The largest segments at the peak, and what of each is in use."""
    rows = memory.segments[:_SEGMENTS]
    if not rows:
        return None
    longest, label = max(row.bytes for row in rows), 90
    body = list(_segment_rows(memory, longest, label))
    return _svg(6 + 15 * len(rows), "The largest segments at the peak: the filled part is in use", body)


def _segment_rows(memory: Memory, longest: int, label: int) -> Iterator[str]:
    for at, row in enumerate(memory.segments[:_SEGMENTS]):
        y, scale = 3 + 15 * at, (WIDTH - label) / longest
        used = sum(count for _, count in row.used)
        yield _text(label - 6, y + 10, size(row.bytes), "end", "var(--dim)")
        yield _rect(label, y, row.bytes * scale, 11, "var(--track)", f"{size(row.bytes)}, stream {row.stream}, {percent(share(used, row.bytes))} in use")
        for offset, count in row.used:
            yield _rect(label + offset * scale, y, count * scale, 11, "var(--k-gemm)", f"{size(count)} in use")
