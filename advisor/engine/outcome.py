"""What became of each rule that ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from advisor.engine.rule import Judged
from advisor.report.finding import Clear, Failed, Finding, Saving, Skipped


@dataclass
class Outcomes:
    """Every rule that ran stands in one of these."""

    found: list[Judged] = field(default_factory=list)
    clear: list[Clear] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    @property
    def ran(self) -> frozenset[str]:
        """The rules that ran, whatever became of them."""
        others = (item.rule for rows in (self.clear, self.skipped, self.failed) for item in rows)
        return frozenset((*others, *(f.finding.rule for f in self.found)))


def left_out(item: Judged) -> str:
    """Why the step predicted with every fix does not have this one; "" where it does."""
    finding, saving = item.finding, item.finding.saving
    if finding.allowed:
        return "allowed"
    if finding.status != "found":
        return "only possible"
    if not isinstance(saving, Saving):
        return "frees memory, not time"
    if saving.per != "step":
        return f"makes a {saving.per} shorter, not the step"
    return "" if item.counted else f"an alternative to {' and '.join(item.instead_of) or 'other fixes'}"


def counted(found: Iterable[Judged]) -> list[Judged]:
    """Those that the step predicted with every fix has."""
    return [item for item in found if not left_out(item)]


def as_told(found: Iterable[Judged], steps: int) -> tuple[Finding, ...]:
    """The findings as a report tells them: why the step predicted with every fix does not have one, and what its evidence takes a step."""
    return tuple(msgspec.structs.replace(item.finding, left_out=left_out(item), evidence_us=_evidence_us(item.finding, steps)) for item in found)


def _evidence_us(finding: Finding, steps: int) -> float | None:
    """What a finding's evidence takes in one of so many steps; None where it is of memory."""
    if any(item.bytes is not None for item in finding.evidence):
        return None
    return sum(item.dur_us for item in finding.evidence) / max(steps, 1)
