"""The best set of compatible fixes: of fixes that gain the same time, the fix with the shortest step."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.engine.outcome import excluded
from advisor.engine.rule import Judged
from advisor.knowledge.shares import MOST
from advisor.report.finding import MEDIUM_SHARE
from advisor.views.replay.edits import combine
from advisor.views.replay.replay import Replay

LIKELY = MOST
"""A diagnosis no surer than this takes the place of no other."""


def best_together(replay: Replay, found: Sequence[Judged]) -> list[Judged]:
    """The findings, with the set marked that makes the step shortest. A finding with `instead_of` replaces those rules if they count, its gain is
    sure, and the step gets shorter.
    """
    counting = [f for f in found if f.edits and not excluded(f)]
    best, most, taken = counting, _gain(replay, counting), None
    for other in found:
        replaced = [f for f in counting if f.finding.rule in other.instead_of]
        if not replaced or not _stands(replay, other):
            continue
        fixes = [f for f in counting if f.finding.rule not in other.instead_of] + [other]
        gain = _gain(replay, fixes)
        if gain > most:
            best, most, taken = fixes, gain, other
    there = {f.finding.rule for f in found}

    def told(item: Judged) -> Judged:
        if item is taken:
            return item._replace(counted=True, instead_of=())
        if taken and item.finding.rule in taken.instead_of and not any(item is one for one in best):
            return item._replace(counted=False, instead_of=(taken.finding.rule,))
        return item._replace(instead_of=tuple(rule for rule in item.instead_of if rule in there))

    return [told(item) for item in found]


def _stands(replay: Replay, item: Judged) -> bool:
    """Whether an uncounted fix may replace a counted fix: its diagnosis is sure, it pays at any host speed, and needs no other change to gain anything."""
    if item.edits is None or excluded(item._replace(counted=True)) or item.finding.confidence < LIKELY or not item.edits.low.parts:
        return False
    return replay.share(replay.fastest, item.edits.expected) >= MEDIUM_SHARE


def _gain(replay: Replay, fixes: Sequence[Judged]) -> float:
    """Share of the step that fixes gain: all together, but no less than the best of them, which whoever doubts the others may take."""
    if not fixes or not replay.step_us:
        return 0.0
    together = replay.expected_share(combine(*(f.edits.expected for f in fixes)))
    return max(together, *(f.finding.saving.expected / replay.step_us for f in fixes))
