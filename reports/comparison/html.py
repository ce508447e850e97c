"""One HTML file that needs nothing else, not even a script."""

from __future__ import annotations

from advisor.compare.model import Comparison
from advisor.report.numbers import changed_by
from advisor.reports._clean import legible
from advisor.reports.comparison import _phrases as words
from advisor.reports.comparison._picture import flame, waterfall
from advisor.reports.report.html import page

NAME = "html"
SUFFIX = ".html"


def render(comparison: Comparison) -> str:
    """The comparison as one HTML document."""
    comparison = legible(comparison)
    title = f"{words.side(comparison.before)} → {words.side(comparison.after)}"
    serious = any(difference.serious for difference in comparison.differences)
    steps = comparison.kind != "kernels"  # what was measured one by one belongs to no class of time and no op
    return page(
        "comparison.html.j2", title, it=comparison, words=words, change=changed_by(comparison.change_share), advisor=comparison.advisor, serious=serious,
        bars=waterfall(comparison) if steps else [], boxes=flame(comparison) if steps else [],
    )  # fmt: skip
