"""JSON: the comparison as it stands."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison
from advisor.reports._clean import encodable

NAME = "json"
SUFFIX = ".json"


def render(comparison: MemoryComparison) -> str:
    """The comparison as JSON, schema 1."""
    return encodable(comparison).to_json().decode()
