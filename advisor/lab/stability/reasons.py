"""Why findings flip though nothing of the program changed, as far as that is known: a table by change and rule (reasons.toml)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from advisor.knowledge.data import read
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.report.finding import Finding, Saving
from advisor.report.model import Report


@dataclass(frozen=True)
class Told:
    """The finding of a rule that flips, in each of two reports; None in a report without it."""

    was: Finding | None
    became: Finding | None
    base: Report
    changed: Report


@dataclass(frozen=True)
class Reason:
    """changes, rules: those to which it applies, empty for all. when: a condition on the two reports, "" if there is none. why: in words."""

    why: str
    changes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    when: str = ""

    def holds(self, change: str, rule: str, told: Told) -> bool:
        """Whether it is why that rule's finding flips under that change."""
        named = (not self.changes or change in self.changes) and (not self.rules or rule in self.rules)
        return named and (not self.when or _WHEN[self.when](told))


def reason_for(change: str, rule: str, told: Told) -> str:
    """The first reason that holds, "" if none does."""
    return next((reason.why for reason in table() if reason.holds(change, rule, told)), "")


@cache
def table() -> tuple[Reason, ...]:
    """Every reason, in the order of the file."""
    found = read(Path(__file__).with_name("reasons.toml"))["reason"]
    return tuple(Reason(entry["why"], tuple(entry.get("changes", ())), tuple(entry.get("rules", ())), entry.get("when", "")) for entry in found)


def share(finding: Finding | None, report: Report) -> float | None:
    """Its saving in time; None for another unit or no finding."""
    step_us = report.headline.step_us or 0.0
    return finding.saving.expected / step_us if finding and isinstance(finding.saving, Saving) and step_us > 0 else None


def _near_threshold(told: Told) -> bool:
    was, became = share(told.was, told.base), share(told.became, told.changed)
    return was is not None and became is not None and abs(was - became) <= NO_DIFFERENCE


def _folded(told: Told) -> bool:
    return any(
        finding is not None and any(other.rule == finding.folded_into and other.loud for other in report.findings)
        for finding, report in ((told.was, told.base), (told.became, told.changed))
        if finding is not None
    )


def covered(told: Told) -> bool:
    """Whether both reports hold the finding with the same gain, and a report folds it into another finding. The fix of either gains that time."""
    return _near_threshold(told) and _folded(told)


def _one_step(told: Told) -> bool:
    return told.changed.window is not None and told.changed.window.steps == 1


_WHEN: dict[str, Callable[[Told], bool]] = {
    "near": _near_threshold,
    "folded": _folded,
    "one-step": _one_step,
}
