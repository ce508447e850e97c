"""JSON, schema 1: the report as it stands, for programs."""

from __future__ import annotations

from advisor.report.model import Report

NAME = "json"
SUFFIX = ".json"


def render(report: Report) -> str:
    """The report as JSON; `Report.from_json` reads it back."""
    return report.to_json().decode() + "\n"
