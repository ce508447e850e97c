"""JSON: the comparison as it stands."""

from __future__ import annotations

from advisor.compare.model import Comparison

NAME = "json"
SUFFIX = ".json"


def render(comparison: Comparison) -> str:
    """The comparison as JSON, schema 1."""
    return comparison.to_json().decode()
