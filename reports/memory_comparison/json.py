"""JSON: the comparison as it stands."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison

NAME = "json"
SUFFIX = ".json"


def render(comparison: MemoryComparison) -> str:
    """The comparison as JSON, schema 1."""
    return comparison.to_json().decode()
