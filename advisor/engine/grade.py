"""Grades a rule's result: its gain, its severity, and its confidence."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import msgspec

from advisor.engine.rule import LEAST_GAIN, Found, Judged, Rule
from advisor.knowledge.interval_margins import interval_margins
from advisor.knowledge.structs import replace
from advisor.report.finding import MEDIUM_SHARE, SEVERITIES, SUMMARY_CHARACTERS, AnySaving, Clear, Finding, Saving, Severity, severity_of
from advisor.report.numbers import whole_clauses
from advisor.report.wording import outcomes
from advisor.views.replay.true_step import TrueStep


class Open(NamedTuple):
    """most: the gain of the expected fix if open facts turn out in its favour, in the saving's unit; why they are open; how to decide."""

    most: float
    why: str
    decide_with: str


class Weight(msgspec.Struct, frozen=True):
    """A finding's gain, and how much of it to believe.

    whole: the saving is a part of it, in the saving's unit. sure: 0 to 1, as far as the recording allows. lost: the loss that was seen; no error of
    a prediction makes it larger. amiss: why there is no fix, "" if there may be. open: facts that the recording leaves open.
    removable: the whole without the work that the fix leaves.
    """

    saving: AnySaving
    whole: float
    sure: float = 1.0
    lost: float = inf
    amiss: str = ""
    open: Open | None = None
    removable: float = inf


def graded(rule: Rule, found: Found, weight: Weight, options: dict[str, Any]) -> Judged | Clear:
    """The finding; `Clear` if it gains less than the threshold. Raises ValueError if no fix has the stated effect."""
    widened = _widened(rule, weight)
    weight = _without_work(widened)
    share = weight.saving.expected / weight.whole if weight.whole > 0 else 0.0
    least = options[LEAST_GAIN] if rule.min_saving_share is not None else 0.0
    least = least if found.least_share is None else min(least, found.least_share)
    if share < least:
        if weight.open is None or weight.amiss or weight.open.most < max(least, MEDIUM_SHARE) * weight.whole:
            return Clear(rule=rule.id, why=outcomes.small_gain(found.quiet, share, least), reason="small-gain", measured=share, threshold=least, unit="share")
        # One time of the host stands between a fix and all that it gains: that decides nothing.
        found = replace(found, status="possible", at_least=min(found.at_least, "low", key=SEVERITIES.index))
        weight = replace(weight, saving=widened.saving)  # of a step that may take longer than is expected
    if found.status == "possible" and not found.possible_why and weight.open:
        found = replace(found, possible_why=weight.open.why, decide_with=weight.open.decide_with)
    if weight.amiss:
        raise ValueError(weight.amiss)
    severity = severity_of(weight.saving, weight.whole)
    capped: Severity = "low" if found.status == "possible" else "high"
    at_most = max(found.at_most, capped, key=SEVERITIES.index)
    finding = Finding(
        rule=rule.id,
        title=found.title or rule.title,
        summary=whole_clauses(found.summary, SUMMARY_CHARACTERS),
        severity=min(max(severity, at_most, key=SEVERITIES.index), found.at_least, key=SEVERITIES.index),
        confidence=found.confidence * weight.sure,
        saving=weight.saving,
        evidence=found.evidence,
        fix=found.fix,
        cause=found.cause,
        ranks=found.ranks,
        status=found.status,
        possible_why=found.possible_why,
        decide_with=found.decide_with,
    )
    return Judged(finding, found.edits, found.counted, rule.explains, rule.part_of, found.paces, found.instead_of)


def in_true_time(found: Judged, step: TrueStep) -> Judged:
    """The saving as a part of the step without a profiler."""
    saving = found.finding.saving
    if not step.recorded_us or not isinstance(saving, Saving):
        return found
    ratio = step.expected_us / step.recorded_us
    scaled = msgspec.structs.replace(saving, low_us=saving.low_us * ratio, expected_us=saving.expected_us * ratio, high_us=saving.high_us * ratio)
    return found._replace(finding=msgspec.structs.replace(found.finding, saving=scaled))


def _widened(rule: Rule, weight: Weight) -> Weight:
    """The saving with its ends moved by what the ledger's pairs of that family of rules were off by."""
    saving = weight.saving
    if not isinstance(saving, Saving):
        return weight
    below, above = interval_margins(rule.id)
    low = max(0.0, saving.low_us - below * weight.whole)
    # What the host alone is seen to lose is an estimate too, since recording stretches it.
    lost = weight.lost if {"kernels", "ranks"} & {*rule.relies_on} else inf
    # A margin that is a share of the step says little of a step that is hardly there any more: it takes no more than half of what is left.
    wider = min(above * weight.whole, max(weight.whole - saving.high_us, 0.0) / 2)
    high = max(saving.high_us, min(lost, saving.high_us + wider))
    return replace(weight, saving=msgspec.structs.replace(saving, low_us=min(low, saving.expected_us), high_us=high))


def _without_work(weight: Weight) -> Weight:
    """The saving without the work that the fix leaves, which no step is shorter than."""
    saving, most = weight.saving, weight.removable
    if not isinstance(saving, Saving) or saving.high_us <= most:
        return weight
    low, expected = min(saving.low_us, most), min(saving.expected_us, most)
    return replace(weight, saving=msgspec.structs.replace(saving, low_us=low, expected_us=expected, high_us=most))
