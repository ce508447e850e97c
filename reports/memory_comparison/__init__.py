"""Formats of two snapshots of memory held against each other, as those of a `Comparison` are of two traces."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[MemoryComparison]]:
    """Every format by its name."""
    return formats_in(__name__, __path__)
