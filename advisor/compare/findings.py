"""What became of each finding from one side to the other, and which fixes were applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from advisor.compare.model import Applied, FindingChange, Status
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.report.finding import LOW_SHARE, Finding, Saving
from advisor.report.model import Report

FINDING_SHARE = NO_DIFFERENCE
"""A finding whose saving moved by less of the step is the same as it was: an unprofiled step is not known better."""


def finding_changes(before: Report, after: Report) -> Iterable[FindingChange]:
    """What became of each rule's first finding."""
    old, new = _by_rule(before), _by_rule(after)
    for rule in dict.fromkeys((*old, *new)):
        a, b = _share(old.get(rule), before), _share(new.get(rule), after)
        yield FindingChange(rule, (new.get(rule) or old[rule]).title, _status(a, b), a, b)


def applied(before: Report, after: Report) -> Iterable[Applied]:
    """Findings with a fix that shortens the step by 1% or more, with less of it left after the change."""
    new = _by_rule(after)
    for rule, finding in _by_rule(before).items():
        left = _share(new.get(rule), after)
        worth = (_share(finding, before) or 0.0) >= LOW_SHARE
        if worth and (finding.shortens or not isinstance(finding.saving, Saving)) and not finding.folded_into and (left is None or left < LOW_SHARE):
            yield Applied(rule, finding.title, finding.saving)


def _by_rule(report: Report) -> Mapping[str, Finding]:
    """The first finding of each rule; of measured kernels of each rule and kernel."""
    found: dict[str, Finding] = {}
    for finding in report.findings:
        about = f"{finding.rule}: {finding.evidence[0].label}" if report.kind == "kernels" else finding.rule
        found.setdefault(about, finding)
    return found


def _share(finding: Finding | None, report: Report) -> float | None:
    return None if finding is None else report.share(finding)


def _status(before: float | None, after: float | None) -> Status:
    if before is None:
        return "new"
    if after is None:
        return "gone"
    if abs(after - before) < FINDING_SHARE:
        return "same"
    return "better" if after < before else "worse"
