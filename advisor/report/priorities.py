"""Which findings a reader should act on first."""

from __future__ import annotations

from advisor.report.finding import Excluded, Finding, Saving
from advisor.report.model import Report

MOST = 3
"""Things to do that fit a first screen."""

ANOTHER_WAY: tuple[Excluded, ...] = ("alternative", "same-graphs")
"""Reasons of findings that are ways to a gain which another finding counts."""


def first_findings(report: Report, most: int = MOST) -> tuple[Finding, ...]:
    """The findings to act on first, at most so many: those that go together, severest first; then unconfirmed ones that may gain something. None that
    the team allows, that another one covers, that is another way to the same gain, or that is no more than a note."""
    open_ = [f for f in report.findings if not (f.allowed or f.folded_into or f.excluded in ANOTHER_WAY) and f.severity != "info"]
    sure = [f for f in open_ if f.status == "found"]
    return (*sure, *(f for f in open_ if f.status != "found"))[:most]


def other_findings(report: Report, first: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings that are not among the first, in the report's order."""
    return tuple(f for f in report.findings if not any(f is one for one in first))


def why_excluded(finding: Finding, counted: bool) -> Excluded:
    """Why the step predicted with every fix leaves a finding out; "" if it does not. counted: whether its gain is its own, and no other way to another's."""
    if finding.allowed:
        return "allowed"
    if finding.status != "found":
        return "unconfirmed"
    if not isinstance(finding.saving, Saving):
        return "frees-memory"
    if finding.saving.per != "step":
        return "other-unit"
    return "" if counted else "alternative"
