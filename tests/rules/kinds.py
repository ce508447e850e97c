"""Whether advice fits the program that it is given to."""

from __future__ import annotations

from advisor.engine.fitting import lacks
from advisor.knowledge.program_words import needs
from advisor.report.model import Report
from advisor.views.workspace import Workspace


def misfits(report: Report, workspace: Workspace) -> list[tuple[str, str]]:
    """Of each finding whose fix asks for what the program is without: its rule, and the text that does."""
    without = lacks(workspace)
    texts = [
        (finding.rule, text)
        for finding in report.findings
        for text in (finding.fix.title, *finding.fix.steps, finding.fix.risk, *((finding.fix.code.before, finding.fix.code.after) if finding.fix.code else ()))
    ]
    return [(rule, text) for rule, text in texts if without & needs(text)]
