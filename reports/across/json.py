"""JSON: both sides as they stand."""

from __future__ import annotations

from advisor.compare.across import ProgramComparison
from advisor.report.encoded import as_json

NAME = "json"
SUFFIX = ".json"


def render(shown: ProgramComparison) -> str:
    """Schema 1."""
    return as_json(shown).decode()
