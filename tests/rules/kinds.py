"""Whether advice fits the program that it is given to."""

from __future__ import annotations

from advisor.engine.fitting import lacks
from advisor.knowledge.features import needs
from advisor.report.finding import Fix
from advisor.report.model import Report
from advisor.views.workspace import Workspace


def misfits(report: Report, workspace: Workspace) -> list[tuple[str, str]]:
    """Of each finding with a fix for programs with a feature that this program lacks, or in a framework that `holds_for` does not name: its rule, and the text."""
    without = lacks(workspace)
    texts = [(finding.rule, text, {"training", "loader", *finding.fix.holds_for}) for finding in report.findings for text in _texts(finding.fix)]
    return [(rule, text) for rule, text, has in texts if without & needs(text) or needs(text) - has]


def _texts(fix: Fix) -> tuple[str, ...]:
    return (fix.title, *fix.steps, fix.risk, *((fix.code.before, fix.code.after) if fix.code else ()))
