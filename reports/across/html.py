"""One HTML file that needs nothing else."""

from __future__ import annotations

from advisor.compare.across import ProgramComparison
from advisor.reports.across import _phrases as words
from advisor.reports.report.html import page

NAME = "html"
SUFFIX = ".html"


def render(shown: ProgramComparison) -> str:
    """One table."""
    title = f"{words.name(shown.left.path)} and {words.name(shown.right.path)}"
    return page("across.html.j2", title, it=shown, words=words, advisor=words.name(shown.advisor))
