"""One HTML file that needs nothing else, not even a script: both curves on one axis, and the tables."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison
from advisor.reports._clean import legible
from advisor.reports.memory_comparison import _phrases as words
from advisor.reports.report._memory import overlaid
from advisor.reports.report.html import page

NAME = "html"
SUFFIX = ".html"


def render(comparison: MemoryComparison) -> str:
    """The comparison as one HTML document."""
    comparison = legible(comparison)
    title = f"{words.name(comparison.before.path)} → {words.name(comparison.after.path)}"
    drawing = overlaid(comparison.before.curve, comparison.after.curve)
    return page("memory_comparison.html.j2", title, it=comparison, words=words, drawing=drawing, advisor=comparison.advisor)
