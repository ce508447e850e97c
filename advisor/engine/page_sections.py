"""What a rule's page consists of: its sections, and the text with details of the measurement."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECTIONS = ("What", "Why", "How to fix", "When to ignore", "How it is measured", "References")
"""Of a page, in this order."""

_FORMER = {"What it is": "What", "Why it costs time": "Why", "How to fix it": "How to fix", "When to ignore it": "When to ignore"}
"""Titles that pages of teams' rules may still have."""


def with_current_titles(page: str) -> str:
    """A page with today's section titles."""
    return "\n".join(_FORMER.get(line, line) for line in page.split("\n"))


def method_beside(function: Callable[..., Any]) -> str:
    """The text of `methods/<file>.md` in the folder of a function's file; "" if there is none."""
    file = Path(inspect.getfile(function))
    path = file.parent / "methods" / f"{file.stem}.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
