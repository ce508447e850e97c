"""Symptoms folded into their causes, so that no gain is told twice."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.engine.outcome import rests_on_host
from advisor.engine.rule import Judged
from advisor.knowledge.shares import CONSIDERABLE
from advisor.report.finding import LOW_SHARE, MEDIUM_SHARE, Finding, Saving, Severity
from advisor.views.replay.edits import Edit, combine
from advisor.views.replay.replay import Replay

SURE = 0.4
"""A finding less sure than this explains no other: withdrawn, it would take that one with it."""

FOLDED_SHARE = CONSIDERABLE
"""A finding that keeps less than this share of its saving after larger fixes is a symptom of theirs."""


def folded(replay: Replay, found: Sequence[Judged]) -> list[Judged]:
    """Findings, most saving first; those that larger or more exact findings explain are marked and lowered.

    A finding without a counted gain is never folded.
    """
    done: list[Judged] = []
    fixed: list[Judged] = []
    for item in _exact_first(replay, found):
        finding, edits = item.finding, item.edits
        own = finding.saving.expected / replay.step_us if replay.step_us else 0.0
        if finding.allowed or own < LOW_SHARE or edits is None or not item.counted or not finding.shortens:
            done.append(item)
            continue
        before = [f for f in fixed if f.finding.rule not in item.part_of]
        causes = [f for f in before if not f.finding.folded_into and f.finding.rule != finding.rule]
        added = _gained(replay, combine(*(f.edits.expected for f in before)), edits.expected) if causes else own
        if added < FOLDED_SHARE * own:
            cause = min(causes, key=lambda f: _gained(replay, f.edits.expected, edits.expected))
            item = item._replace(finding=msgspec.structs.replace(finding, folded_into=cause.finding.rule, severity=at_most_low(finding)))
        elif added < MEDIUM_SHARE:
            # It gains something of its own, but no more than a note would.
            item = item._replace(finding=msgspec.structs.replace(finding, severity=at_most_low(finding)))
        if _explains(item.finding) or item.finding.folded_into:
            fixed.append(item)
        done.append(item)
    return [_with_overlap(replay, item, fixed) for item in done]


def _with_overlap(replay: Replay, item: Judged, fixed: Sequence[Judged]) -> Judged:
    """An unconfirmed finding, marked with the rule that gains most of the same time. It keeps its severity and its place."""
    finding, edits = item.finding, item.edits
    own = finding.saving.expected / replay.step_us if replay.step_us else 0.0
    causes = [f for f in fixed if not f.finding.folded_into and f.finding.rule != finding.rule and f.finding.rule not in item.part_of]
    shortens = isinstance(finding.saving, Saving) and finding.saving.per == "step"
    if finding.status != "possible" or finding.allowed or not shortens or own < LOW_SHARE or edits is None or not causes:
        return item
    if _gained(replay, combine(*(f.edits.expected for f in causes if f.edits)), edits.expected) >= FOLDED_SHARE * own:
        return item
    cause = min(causes, key=lambda f: _gained(replay, f.edits.expected, edits.expected) if f.edits else own)
    return item._replace(finding=msgspec.structs.replace(finding, covered_by=cause.finding.rule))


def _exact_first(replay: Replay, found: Sequence[Judged]) -> list[Judged]:
    """The order in which findings explain each other. A more exact account comes directly before the general finding if it gains about as much.

    An account of the host's time leads only if the general finding gains the host's time too. If fusion gains by fewer launches, waiting for launches
    is its cause, whichever of the two gains a percent more.
    """
    order = list(found)
    for item in found:
        for general in [f for f in order if f.finding.rule in item.explains]:
            alike = item.finding.saving.expected >= (1 - FOLDED_SHARE) * general.finding.saving.expected
            if alike and (rests_on_host(replay, general) or not rests_on_host(replay, item)):
                order.remove(item)
                order.insert(order.index(general), item)
    return order


def at_most_low(finding: Finding) -> Severity:
    """Its severity once it asks for nothing any more."""
    return "low" if finding.loud else finding.severity


def _explains(finding: Finding) -> bool:
    """Whether others may be symptoms of it: it is sure of itself, and about the time of the step."""
    return finding.shortens and finding.status == "found" and finding.confidence >= SURE and not (finding.allowed or finding.folded_into)


def _gained(replay: Replay, fixed: Edit, more: Edit) -> float:
    """Share of the step that one fix adds to others."""
    return replay.expected_share(combine(fixed, more)) - replay.expected_share(fixed)
