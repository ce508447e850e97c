"""SARIF 2.1.0: findings where code scanning shows them, at the user's lines where stacks were recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from advisor.report.finding import Evidence, Finding, SourceLine
from advisor.report.model import Report
from advisor.report.wording import aside, gain, last_line, likely, unseen, whole_noun
from advisor.report.wording.outcomes import check_failed
from advisor.reports import _pages
from advisor.reports._clean import Limits, clean

NAME = "sarif"
SUFFIX = ".sarif"

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LIMITS = Limits(text=1_000, findings=500, evidence=20, pages=60)
_LEVELS = {"high": "error", "medium": "warning", "low": "note", "info": "note"}
_PAGE = 12_000

Json = dict[str, Any]


def render(report: Report) -> str:
    """One run, a result a finding. Times are in the properties, never in fingerprints: those last from run to run."""
    shown = clean(report, _LIMITS)
    rules = list(dict.fromkeys(finding.rule for finding in shown.findings))
    driver = {
        "name": "advisor",
        "version": shown.advisor,
        "rules": [_rule(rule, shown) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"SRCROOT": {"description": {"text": "The root of the repository."}}},
        "invocations": [_invocation(shown)],
        "results": [_result(finding, rules.index(finding.rule), shown) for finding in shown.findings],
        "columnKind": "unicodeCodePoints",
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(rule: str, report: Report) -> Json:
    first = next(finding for finding in report.findings if finding.rule == rule)
    page = (_pages.page(rule) or "")[:_PAGE]
    made: Json = {
        "id": rule,
        "name": "".join(word.capitalize() for word in rule.replace("/", "-").split("-")),
        "shortDescription": {"text": first.title},
        "defaultConfiguration": {"level": _LEVELS[first.severity]},
        "properties": {"tags": ["performance"]},
    }
    if page:
        title, _, body = page.partition("\n")
        made["fullDescription"] = {"text": title}
        made["help"] = {"text": page, "markdown": f"**{title}**\n\n```text\n{body.strip().replace('```', '')}\n```"}
    if first.fix.url.startswith("https://"):
        made["helpUri"] = quote(first.fix.url, safe=":/?#[]@!$&'()*+,;=%")
    return made


def _result(finding: Finding, index: int, report: Report) -> Json:
    saving, saves = finding.saving, gain(finding, report)
    gained = f"The fix gains {saves} of the {whole_noun(finding, report)}, likely {likely(saving)}." if saves else "No gain is expected."
    steps = " ".join(f"{number}. {text}" for number, text in enumerate(finding.fix.steps, 1))
    message = f"{finding.summary}{aside(finding)} {gained} {finding.fix.title}: {steps}"
    first, *others = _places(finding.evidence)
    made: Json = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "kind": "fail",
        "level": "note" if finding.folded_into else _LEVELS[finding.severity],
        "message": {"text": message},
        "locations": [first],
        "relatedLocations": [{"id": number, **place} for number, place in enumerate(others, 1)],
        "partialFingerprints": {"advisor/v1": _fingerprint(finding)},
        "rank": round(100 * report.share(finding), 2),
        "properties": {
            "severity": finding.severity,
            "confidence": finding.confidence,
            "saving": {"unit": saving.unit, "low": saving.low, "expected": saving.expected, "high": saving.high},
            "trace": report.source.path,
        },
    }
    if finding.allowed:
        made["suppressions"] = [{"kind": "external", "status": "accepted", "justification": finding.allowed}]
    return made


def _places(evidence: Iterable[Evidence]) -> list[Json]:
    """Distinct places, in the order of the evidence: a line where one was recorded, else what ran."""
    found: dict[str, Json] = {}
    for item in evidence:
        place = _line(item.source) if item.source else {"logicalLocations": [{"fullyQualifiedName": item.label, "kind": "function"}]}
        found.setdefault(json.dumps(place, sort_keys=True), {**place, "message": {"text": item.label}})
    return list(found.values())


def _line(source: SourceLine) -> Json:
    path = source.file.replace("\\", "/")
    uri = quote(path.removeprefix("./"), safe="/~")
    absolute = PurePosixPath(path).is_absolute()
    artifact = {"uri": f"file://{uri}"} if absolute else {"uri": uri, "uriBaseId": "SRCROOT"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(source.line, 1)}}}


def _fingerprint(finding: Finding) -> str:
    """The rule and where it applies."""
    first = finding.evidence[0]
    where = first.source.file if first.source else first.label
    return hashlib.sha256(f"{finding.rule}\0{where}".encode(errors="replace")).hexdigest()[:32]


def _invocation(report: Report) -> Json:
    """Rules that broke, checks that the trace fails, and what no figure holds: what is not said must not look like good news."""
    notes = [("error", f"rule {failed.rule} failed: {last_line(failed.error)}") for failed in report.failed]
    notes += [("warning", check_failed(h.check, h.detail)) for h in report.health if h.status == "failed"]
    notes += [("note", told)] if (told := unseen(report)) else []
    return {
        "executionSuccessful": not report.failed,
        "toolExecutionNotifications": [{"level": level, "message": {"text": text}} for level, text in notes],
    }
