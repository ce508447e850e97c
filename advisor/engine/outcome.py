"""What became of each rule that ran."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from advisor.engine.rule import Judged
from advisor.knowledge.shares import MOST
from advisor.report.finding import Clear, Excluded, Failed, Finding, Skipped
from advisor.report.priorities import why_excluded
from advisor.report.wording import outcomes as wording
from advisor.views.replay.edits import AsGraph, Edits, changes
from advisor.views.replay.replay import Replay

OF_THE_HOST = MOST
"""A fix of which the GPU's own work gains less than this share of its saving gains by the host's time."""


class Outcomes(msgspec.Struct):
    """Every rule that ran is in one of these."""

    found: list[Judged] = msgspec.field(default_factory=list)
    clear: list[Clear] = msgspec.field(default_factory=list)
    skipped: list[Skipped] = msgspec.field(default_factory=list)
    failed: list[Failed] = msgspec.field(default_factory=list)

    @property
    def ran(self) -> frozenset[str]:
        """The rules that ran, whatever became of them."""
        others = (item.rule for rows in (self.clear, self.skipped, self.failed) for item in rows)
        return frozenset((*others, *(f.finding.rule for f in self.found)))


def excluded(item: Judged) -> Excluded:
    """Why the step predicted with every fix does not have this one; "" if it does."""
    return why_excluded(item.finding, item.counted)


def rests_on_host(replay: Replay, item: Judged) -> bool:
    """Whether the fix saves the host's time, by its changes of the schedule."""
    if item.edits is None:
        return False
    made = list(changes(replay.corrected, item.edits.expected))
    host = any(change.host_us > 0 or change.waits_removed for change in made)
    return host and sum(change.gpu_us for change in made) < OF_THE_HOST * item.finding.saving.expected


def counted(found: Iterable[Judged]) -> list[Judged]:
    """Those that the step predicted with every fix has."""
    return [item for item in found if not excluded(item)]


def as_told(found: Iterable[Judged], steps: int, step_us: float) -> tuple[Finding, ...]:
    """The findings as a report tells them: why the step predicted with every fix does not have one, and what its evidence takes a step.
    steps, step_us: how many were recorded, and how long each was."""
    rows = list(found)
    into_graphs = frozenset(f.finding.rule for f in rows if isinstance(f.edits, Edits) and any(isinstance(part, AsGraph) for part in f.edits.expected.parts))
    return tuple(_told(f, steps, step_us, into_graphs) for f in rows)


def _told(item: Judged, steps: int, step_us: float, into_graphs: frozenset[str]) -> Finding:
    why, others = excluded(item), item.instead_of if excluded(item) == "alternative" else ()
    if others and into_graphs >= {item.finding.rule, *others}:
        why = "same-graphs"
    return msgspec.structs.replace(
        item.finding,
        excluded=why,
        alternative_to=others,
        left_out=wording.left_out(why, item.finding.saving, others),
        evidence_us=_evidence_us(item.finding, steps, step_us),
    )


def _evidence_us(finding: Finding, steps: int, step_us: float) -> float | None:
    """What a finding's evidence takes a step; None if it is of memory. Places that sum to more than the step lie in one another, as an op in
    the function that calls it: then the largest is told."""
    if any(item.bytes is not None for item in finding.evidence):
        return None
    each = [item.dur_us / max(steps, 1) for item in finding.evidence]
    return sum(each) if sum(each) <= step_us else max(each)
