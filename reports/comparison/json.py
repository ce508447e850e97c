"""JSON: the comparison as it stands."""

from __future__ import annotations

from advisor.compare.model import Comparison
from advisor.reports._clean import encodable

NAME = "json"
SUFFIX = ".json"


def render(comparison: Comparison) -> str:
    """The comparison as JSON, schema 1."""
    return encodable(comparison).to_json().decode()
