"""One HTML file: step time by commit as a line, and a table of findings."""

from __future__ import annotations

from itertools import pairwise

from advisor.compare.history import Trend
from advisor.knowledge.structs import replace
from advisor.reports._clean import visible
from advisor.reports.history import text
from advisor.reports.report.html import page

NAME = "html"
SUFFIX = ".html"


def render(trend: Trend) -> str:
    """The history as one HTML document, without scripts."""
    entries = [replace(entry, commit=visible(entry.commit)) for entry in trend.entries]
    steps = [e.report.step_us for e in entries]
    top = max(steps) or 1.0
    points = [(100 * i / max(len(steps) - 1, 1), 100 * (1 - us / top)) for i, us in enumerate(steps)]
    rows = [
        (entry, moved, text.verdict(entry), [text.gain(entry, rule) for rule in trend.rules]) for entry, moved in zip(entries, text.changes(trend), strict=True)
    ]
    begins = [0, *(at for at, found in enumerate(trend.breaks) if found), len(points)]
    lines = [points[begin:end] for begin, end in pairwise(begins)]
    return page(
        "trend.html.j2", "History of the step time", points=points, lines=lines, rows=rows, since=trend.stretch_start, over=text.stretch(trend),
        breaks=text.breaks(trend), rules=[visible(r) for r in trend.rules], top=top,
        measured=[(visible(fix.name), *text.cells(fix)) for fix in trend.measured], measured_title=text.MEASURED_TITLE,
        advisor=visible(entries[-1].report.advisor),
    )  # fmt: skip
