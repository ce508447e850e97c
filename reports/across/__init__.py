"""Formats of one program on two devices."""

from __future__ import annotations

from advisor.compare.across import ProgramComparison
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[ProgramComparison]]:
    """Every format by its name."""
    return formats_in(__name__, __path__)
