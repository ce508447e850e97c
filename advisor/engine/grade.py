"""What a rule saw as a finding: what it gains, how much that matters, how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from advisor.engine.rule import LEAST_GAIN, Found, Judged, Rule
from advisor.knowledge.interval_margins import interval_margins
from advisor.report.model import SEVERITIES, AnySaving, Clear, Finding, Saving, severity_of

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
    weight = _widened(rule, weight)
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
    return Judged(finding, found.edits, found.counted, rule.explains, rule.part_of)


def _widened(rule: Rule, weight: Weight) -> Weight:
    """The saving with its ends moved by what the ledger's pairs of that family of rules were off by."""
    saving = weight.saving
    if not isinstance(saving, Saving):
        return weight
    below, above = interval_margins(rule.id)
    low = max(0.0, saving.low_us - below * weight.whole)
    high = max(saving.expected_us, min(weight.whole, saving.high_us + above * weight.whole))
    return replace(weight, saving=msgspec.structs.replace(saving, low_us=min(low, saving.expected_us), high_us=high))
