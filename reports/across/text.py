"""Text for a terminal."""

from __future__ import annotations

from advisor.compare.across import ProgramComparison
from advisor.reports.across import _phrases as words

NAME = "text"
SUFFIX = ".txt"


def render(shown: ProgramComparison) -> str:
    """A line a quantity, a column a side."""
    rows = words.rows(shown)
    wide = max(len(left) for _, left, _ in rows)
    head = [f"advisor {words.name(shown.advisor)} diff --across", f"left:  {words.name(shown.left.path)}", f"right: {words.name(shown.right.path)}", ""]
    said = [words.doubt(shown), ""] if shown.doubt else []
    return "\n".join([*head, *said, *(f"{what:32} {left:{wide}}  {right}" for what, left, right in rows), "", words.NOTE]) + "\n"
