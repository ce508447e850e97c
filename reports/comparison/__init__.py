"""Formats of a comparison: each module here turns a `Comparison` into text, as those around do with a `Report`."""

from __future__ import annotations

from advisor.compare.model import Comparison
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[Comparison]]:
    """Every format by its name."""
    return formats_in(__name__, __path__)
