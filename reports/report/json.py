"""JSON, schema 1: the report as it stands, for programs."""

from __future__ import annotations

from advisor.report.model import Report
from advisor.reports._clean import encodable

NAME = "json"
SUFFIX = ".json"


def render(report: Report) -> str:
    """The report as JSON; `Report.from_json` reads it back."""
    try:
        data = report.to_json()
    except UnicodeEncodeError:
        data = encodable(report).to_json()
    return data.decode() + "\n"
