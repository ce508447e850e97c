"""Formats by what they show: a report, a comparison or a history. A new format is one new file; nothing lists them."""

from __future__ import annotations

from advisor.report.model import Report
from advisor.reports import report
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[Report]]:
    """Every format of a report by its name."""
    return formats_in(report.__name__, report.__path__)
