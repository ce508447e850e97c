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
    return "" if item.counted else "an alternative to other fixes"


def counted(found: Iterable[Judged]) -> list[Judged]:
    """Those that the step predicted with every fix has."""
    return [item for item in found if not left_out(item)]


def with_left_out(found: Iterable[Judged]) -> tuple[Finding, ...]:
    """The findings, each with why the step predicted with every fix does not have it."""
    return tuple(msgspec.structs.replace(item.finding, left_out=left_out(item)) for item in found)
