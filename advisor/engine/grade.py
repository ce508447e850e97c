"""What a rule saw as a finding: what it gains, how much that matters, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advisor.engine.rule import LEAST_GAIN, Found, Judged, Rule
from advisor.report.model import SEVERITIES, AnySaving, Clear, Finding, severity_of

SUMMARY = 240
"""Characters of a summary, which is one line."""


@dataclass(frozen=True)
class Weight:
    """What a finding gains, of what whole (in the saving's unit), and how sure the recording lets anybody be, 0 to 1."""

    saving: AnySaving
    whole: float
    sure: float = 1.0


def graded(rule: Rule, found: Found, weight: Weight, options: dict[str, Any]) -> Judged | Clear:
    """The finding; `Clear` where it gains less than is asked for."""
    share = weight.saving.expected / weight.whole if weight.whole > 0 else 0.0
    least = options[LEAST_GAIN] if rule.min_saving_share is not None else 0.0
    if share < least:
        return Clear(rule=rule.id, why=f"{found.quiet}; the fix would gain {share:.1%}, reported from {least:.0%}")
    severity = severity_of(weight.saving, weight.whole)
    finding = Finding(
        rule=rule.id,
        title=found.title or rule.title,
        summary=found.summary if len(found.summary) <= SUMMARY else f"{found.summary[: SUMMARY - 4]}…",
        severity=max(severity, found.at_most, key=SEVERITIES.index),
        confidence=found.confidence * weight.sure,
        saving=weight.saving,
        evidence=found.evidence,
        fix=found.fix,
        cause=found.cause,
        ranks=found.ranks,
        status=found.status,
        decide_with=found.decide_with,
    )
    return Judged(finding, found.edits, found.counted, rule.explains)
