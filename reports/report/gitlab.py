"""GitLab's code quality report: findings in the merge request's widget and at the changed lines."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath

from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.wording import aside, gain, whole_noun
from advisor.reports._clean import Limits, clean

NAME = "gitlab"
SUFFIX = ".gitlab.json"

_LIMITS = Limits(text=500, findings=500, evidence=1)
_ENGINE = "trace-advisor"
_NONE = f"[\n{' ' * len(_ENGINE)}\n]\n"
"""An empty list that is known for ours by its blanks: GitLab allows it no text."""
_SEVERITIES = {"high": "major", "medium": "minor", "low": "info", "info": "info"}


def render(report: Report) -> str:
    """A list of issues; a finding without a source line is at the trace itself, which is all that is known."""
    shown = clean(report, _LIMITS)
    issues = [_issue(finding, shown) for finding in shown.findings if not finding.allowed]
    return json.dumps(issues, indent=1) + "\n" if issues else _NONE


def _issue(finding: Finding, report: Report) -> dict[str, object]:
    source, saves = finding.evidence[0].source, gain(finding, report)
    gained = f"the fix gains {saves} of the {whole_noun(finding, report)}" if saves else "no gain is expected"
    path = source.file.removeprefix("./") if source else PurePosixPath(report.source.path).name
    where = f"{finding.rule}\0{path}\0{'' if source else finding.evidence[0].label}"
    return {
        "engine_name": _ENGINE,
        "description": f"{finding.title}. {finding.summary}{aside(finding)} {finding.fix.title}; {gained}.",
        "check_name": finding.rule,
        "fingerprint": hashlib.sha256(where.encode(errors="replace")).hexdigest()[:32],
        "severity": "info" if finding.folded_into else _SEVERITIES[finding.severity],
        "location": {"path": path, "lines": {"begin": max(source.line, 1) if source else 1}},
    }
