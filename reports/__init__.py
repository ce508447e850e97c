"""Formats: each module here turns a `Report` into text. A new format is one new file; nothing lists them."""

from __future__ import annotations

from advisor.report import Report
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[Report]]:
    """Every format by its name."""
    return formats_in(__name__, __path__)
