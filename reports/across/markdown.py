"""Markdown for a comment."""

from __future__ import annotations

from advisor.compare.across import ProgramComparison
from advisor.reports.across import _phrases as words
from advisor.reports.report.markdown import code, escape

NAME = "markdown"
SUFFIX = ".md"


def render(shown: ProgramComparison) -> str:
    """One table."""
    lines = ["<!-- trace-advisor: across -->", f"Left: {code(words.name(shown.left.path))}, right: {code(words.name(shown.right.path))}.", ""]
    lines += [f"**{escape(words.doubt(shown))}**", ""] if shown.doubt else []
    lines += ["| | Left | Right |", "|---|---|---|"]
    lines += [f"| {' | '.join(escape(cell) for cell in row)} |" for row in words.rows(shown)]
    return "\n".join([*lines, "", escape(words.NOTE), ""])
