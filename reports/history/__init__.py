"""Formats of a history: each module here turns a `Trend` into text."""

from __future__ import annotations

from advisor.compare.history import Trend
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[Trend]]:
    """Every format by its name."""
    return formats_in(__name__, __path__)
