"""Formats by what they show: a report, a comparison or a history. A new format is one new file; nothing lists them."""

from __future__ import annotations

from types import ModuleType

from advisor.engine.analysis import Analysis, report_in
from advisor.report.model import Report
from advisor.reports import report
from advisor.reports._discover import Format, formats_in


def formats() -> dict[str, Format[Report | Analysis]]:
    """Every format of a report by its name. Each takes an analysis too: one that draws (`DRAWS = True`) all of it, any other its report."""
    return formats_in(report.__name__, report.__path__, _drawn_or_not)


def _drawn_or_not(module: ModuleType, shown: Report | Analysis) -> Report | Analysis:
    return shown if getattr(module, "DRAWS", False) else report_in(shown)
