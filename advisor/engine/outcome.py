"""What became of each rule that ran."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.engine.rule import Judged
from advisor.report.finding import Clear, Failed, Skipped


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
