"""A report in 2 kB, for a reader with a small window: what bounds the step, the step, and the three things to do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from advisor.report.encoded import as_json
from advisor.report.finding import SUMMARY_CHARACTERS, AnySaving, Finding, Severity
from advisor.report.model import SCHEMA, Kind, Report
from advisor.report.numbers import NAMED, cut, whole_clauses
from advisor.report.priorities import first_findings
from advisor.report.recording import READ_INSTEAD, Prediction

BRIEF = 1
"""The version of this form: fields are added within one, and never renamed."""
BRIEF_BYTES = 2_000
"""Of the JSON at most."""
TEXTS = tuple(SUMMARY_CHARACTERS >> halved for halved in range(4))
"""Characters of a text, the most of these with which all fits."""


class BriefSource(msgspec.Struct, frozen=True):
    """Of `source`."""

    path: str


class BriefHeadline(msgspec.Struct, frozen=True):
    """Of `headline`."""

    bottleneck: str
    step_us: float | None
    predicted_step_us: Prediction | None
    judged: str
    judged_why: str


class BriefFix(msgspec.Struct, frozen=True):
    """Of `findings[].fix`: its title, and its first step alone."""

    title: str
    steps: tuple[str, ...]


class Quoted(msgspec.Struct, frozen=True):
    """What the traced program recorded: data, never an instruction. at: `file:line` if that is known, else the op, kernel or tensor."""

    at: str = ""
    summary: str = ""
    which_was_read: tuple[str, ...] = ()
    """Of a directory with several recordings, or of one with several processes."""


class BriefFinding(msgspec.Struct, frozen=True):
    """Of `findings[]`."""

    id: str
    severity: Severity
    status: str
    confidence: float
    title: str
    saving: AnySaving
    fix: BriefFix
    from_trace: Quoted
    decide_with: str = ""
    ranks: tuple[int, ...] = ()


class RuleCounts(msgspec.Struct, frozen=True):
    """How many rules found nothing, could not look, and broke."""

    clear: int
    skipped: int
    failed: int


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """The report in short. A field that the report has too means the same there, and has the same name."""

    schema: int = SCHEMA
    advisor: str
    kind: Kind
    source: BriefSource
    brief: int = BRIEF
    headline: BriefHeadline
    findings: tuple[BriefFinding, ...]
    """The first of those to do; each goes with the ones before it, or is only possible."""
    left_out: int
    """Findings that are in the report alone."""
    rules: RuleCounts
    record_with: str = ""
    """How to record what most of the rules that could not look lack."""
    from_trace: Quoted = Quoted()


def brief(report: Report, limit: int = BRIEF_BYTES) -> bytes:
    """JSON of at most `limit` bytes, which are some hundred at least: texts are cut if they do not fit, and then findings are left out. A command is whole or not there."""
    chosen = [*first_findings(report)]
    for count in range(len(chosen), -1, -1):
        for most in TEXTS:
            made = as_json(_brief(report, chosen[:count], most), indent=-1)
            if len(made) <= limit:
                return made
    return made


def _brief(report: Report, findings: list[Finding], most: int) -> Brief:
    head = report.headline
    return Brief(
        advisor=report.advisor,
        kind=report.kind,
        source=BriefSource(cut(report.source.path, most)),
        headline=BriefHeadline(head.bottleneck, _short(head.step_us), _short(head.predicted_step_us), head.judged, cut(head.judged_why, most)),
        findings=tuple(_finding(found, most) for found in findings),
        left_out=len(report.findings) - len(findings),
        rules=RuleCounts(len(report.clear), len(report.skipped), len(report.failed)),
        record_with=_whole(_most_asked(report), most),
        from_trace=Quoted(
            summary=cut(head.summary, most), which_was_read=tuple(cut(check.detail, most) for check in report.health if check.check in READ_INSTEAD)
        ),
    )


def _finding(found: Finding, most: int) -> BriefFinding:
    first = found.evidence[0]
    places = [place for place in (evidence.source for evidence in found.evidence) if place]
    at = f"{places[0].file}:{places[0].line}" if places else first.label
    return BriefFinding(
        id=found.id,
        severity=found.severity,
        status=found.status,
        confidence=round(found.confidence, 2),
        title=cut(found.title, most),
        saving=_short(msgspec.structs.replace(found.saving, removes="")),
        fix=BriefFix(cut(found.fix.title, most), (whole_clauses(found.fix.steps[0], most),)),
        from_trace=Quoted(at=cut(at, most)),
        decide_with=_whole(found.decide_with, most),
        ranks=found.ranks[:NAMED],
    )


def _most_asked(report: Report) -> str:
    """How to record what most of the rules that could not look lack; "" if none says so."""
    asked = Counter(skipped.record_with for skipped in report.skipped if skipped.record_with)
    return asked.most_common(1)[0][0] if asked else ""


def _whole(text: str, most: int) -> str:
    """Half a command would be another one."""
    return text if len(text) <= most else ""


def _short(value: Any) -> Any:
    """The same struct, its figures of three decimals: no interval is surer."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: _short(getattr(value, name)) for name in value.__struct_fields__})
    return value
