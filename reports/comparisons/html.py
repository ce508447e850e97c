"""One HTML file that needs nothing else, not even a script."""

from __future__ import annotations

from advisor.comparison import Comparison
from advisor.reports.comparisons import _words as words
from advisor.reports.html import page

NAME = "html"
SUFFIX = ".html"


def render(comparison: Comparison) -> str:
    """The comparison as one HTML document."""
    title = f"{words.side(comparison.before)} → {words.side(comparison.after)}"
    return page("comparison.html.j2", title, it=comparison, words=words, advisor=comparison.advisor)
