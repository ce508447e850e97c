"""Limits that a team sets on a trace, and which of them it crosses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from advisor.compare.model import Comparison
from advisor.compare.shares import share
from advisor.errors import UsageError, unknown_name
from advisor.knowledge.structs import replace
from advisor.report.finding import SEVERITIES, Finding
from advisor.report.model import Report
from advisor.report.numbers import changed_by, counted, duration, percent, points, size

EXAMPLE = """
[tool.advisor.budgets]
step_ms = 25.0
idle_share = 0.10
exposed_copy_share = 0.05
kernel_count = 800
regression_percent = 5
findings = { high = 0, sync-stall = 0, launch-gap = "low" }
"""


@dataclass(frozen=True)
class Verdict:
    """A budget compared with a trace. `unknown`: the trace does not show it, which is no success. value: the compared value; higher is worse."""

    budget: str
    status: Literal["kept", "crossed", "unknown", "not checked"]
    detail: str
    value: float = 0.0

    @property
    def passes(self) -> bool:
        """Whether it lets the check succeed."""
        return self.status in ("kept", "not checked")


def _share(field: str) -> Callable[[Report], float | None]:
    return lambda report: share(report, field)


def _waiting(report: Report) -> float | None:
    """What ranks wait for each other, of a job."""
    return share(report, "wait_us") if report.kind == "job" else None


def _peak(name: str) -> Callable[[Report], float | None]:
    """The peak of the snapshot, else the largest that a trace's own memory events say of a device."""

    def budget_value(report: Report) -> float | None:
        if report.memory and name == "peak_reserved_bytes" and not report.memory.reserved_known:
            return None
        seen = (report.memory,) if report.memory else report.traced_memory
        return max((peak for one in seen if (peak := getattr(one, name)) is not None), default=None)

    return budget_value


def _ms(value: float) -> str:
    return duration(1000 * value)


def _kernels(value: float) -> str:
    return counted(value, "kernel")


_MEASURES: Mapping[str, tuple[Callable[[Report], float | None], Callable[[float], str], str]] = {
    "step_ms": (lambda r: None if r.headline.step_us is None else r.headline.step_us / 1000, _ms, ""),
    "idle_share": (_share("idle_us"), percent, " of the step"),
    "exposed_copy_share": (_share("exposed_copy_us"), percent, " of the step"),
    "exposed_comm_share": (_share("exposed_comm_us"), percent, " of the step"),
    "wait_share": (_waiting, percent, " of the step"),
    "kernel_count": (lambda r: r.work.kernels if r.devices and r.kind in ("trace", "job") else None, _kernels, " a step"),
    "peak_bytes": (_peak("peak_allocated_bytes"), size, ""),
    "reserved_bytes": (_peak("peak_reserved_bytes"), size, ""),
    "kernel_ms": (lambda r: r.work.kernel_us / 1000 if r.devices and r.kind == "trace" else None, _ms, " a step"),
}
"""Per budget: its field, the format of its values, and their base."""

_SHARES = [name for name, (_, write, _) in _MEASURES.items() if write is percent]
REGRESSION = "regression_percent"
FINDINGS = "findings"
_ORDER: list[str] = [*SEVERITIES]


def parse(table: Mapping[str, Any], rules: Collection[str], where: object) -> dict[str, Any]:
    """The budgets of a settings table. Raises UsageError for one that does not exist or is no number."""
    if not table:
        raise UsageError(f"{where} sets no budgets" if where else "no budgets are set: no pyproject.toml here or above has any", f"Set some:{EXAMPLE}")
    for name, limit in table.items():
        if name == FINDINGS:
            _check_findings(limit, rules, where)
        elif name not in (*_MEASURES, REGRESSION):
            raise unknown_name("budget", name, (*_MEASURES, REGRESSION, FINDINGS), where=f"{where}: ")
        elif isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < inf:
            raise UsageError(f"{where}: {name} = {limit!r} is no limit", "Give a number from 0 on.")
        elif name in _SHARES and limit > 1:
            raise UsageError(f"{where}: {name} = {limit!r} is no share, and would be kept by every trace", "Give 0 to 1: 0.10 is 10%.")
    return dict(table)


def _check_findings(table: Any, rules: Collection[str], where: object) -> None:
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f"{where}: budgets.findings is {'an empty' if table == {} else 'no'} table", f"It looks like this:{EXAMPLE}")
    for name, limit in table.items():
        if name not in SEVERITIES and name not in rules:
            raise UsageError(f"{where}: budgets.findings names {name!r}, no severity and no rule", f"Rules are: {', '.join(sorted(rules))}.")
        number = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
        if not number and (limit not in SEVERITIES or name in SEVERITIES):
            raise UsageError(f"{where}: budgets.findings.{name} = {limit!r} is no limit", "Give how many are allowed, or for a rule the worst severity.")


def check(budgets: Mapping[str, Any], report: Report, against: Comparison | None = None) -> list[Verdict]:
    """Every budget with its verdict; `against` is the comparison with a baseline."""
    verdicts: list[Verdict] = []
    for name, limit in budgets.items():
        if name == FINDINGS:
            verdicts += _findings(limit, report)
        elif name == REGRESSION:
            verdicts.append(_regression(float(limit), report, against))
        else:
            verdicts.append(_measure(name, float(limit), report))
    return verdicts


_WORST = ("crossed", "unknown", "not checked", "kept")


def check_all(budgets: Mapping[str, Any], reports: Mapping[str, Report], against: Comparison | None = None) -> list[Verdict]:
    """The same for several captures of a program, by name: each must keep the budget. The verdict is that of the worst, named if they differ."""
    of_each = [check(budgets, report, against) for report in reports.values()]
    return [_worst(dict(zip(reports, verdicts, strict=True))) for verdicts in zip(*of_each, strict=True)]


def _worst(verdicts: Mapping[str, Verdict]) -> Verdict:
    name, verdict = min(verdicts.items(), key=lambda item: (_WORST.index(item[1].status), -item[1].value))
    if len({*verdicts.values()}) == 1:  # as of a regression, which is of all of them together
        return verdict
    return replace(verdict, detail=f"{verdict.detail} ({name}, the worst of {len(verdicts)} captures)")


def _measure(name: str, limit: float, report: Report) -> Verdict:
    budget_value, write, per = _MEASURES[name]
    value = budget_value(report)
    if value is None:
        return Verdict(name, "unknown", f"a recording of kind {report.kind} holds nothing to tell it from")
    if value <= limit:
        return Verdict(name, "kept", f"{write(value)}{per}, {write(limit)} allowed", value)
    over = points if write is percent else write
    return Verdict(name, "crossed", f"{write(value)}{per}, {over(value - limit)} over the limit of {write(limit)}", value)


def _regression(limit: float, report: Report, against: Comparison | None) -> Verdict:
    if against is None:
        return Verdict(REGRESSION, "not checked", "a snapshot of memory has no step" if report.kind == "memory" else "no --baseline was given")
    if against.verdict == "unknown":
        return Verdict(REGRESSION, "unknown", against.summary.rstrip("."))
    told = f"the step changed by {changed_by(against.change_share)}"
    if 100 * against.change_share <= limit:
        return Verdict(REGRESSION, "kept", f"{told}, {limit:g}% allowed")
    crossed = f"{told}, {points(against.change_share - limit / 100)} over the limit of {limit:g}%"
    if against.noise is None:
        return Verdict(REGRESSION, "crossed", f"{crossed}; a side of fewer than three captures does not show the noise")
    if against.noise.low_us <= 0:
        return Verdict(REGRESSION, "kept", f"{told}, which is within the noise of the captures")
    return Verdict(REGRESSION, "crossed", f"{crossed}, and it is beyond the noise")


def _findings(limits: Mapping[str, int | str], report: Report) -> Iterable[Verdict]:
    counted = [f for f in report.findings if not f.allowed]
    for name, limit in limits.items():
        budget = f"{FINDINGS}.{name}"
        if name in SEVERITIES:
            severe = _ORDER[: _ORDER.index(name) + 1]
            yield _count(budget, [f for f in counted if f.severity in severe], int(limit), f"at least {name}")
            continue
        silent = next((s.why for s in (*report.skipped,) if s.rule == name), None) or next((f.error for f in report.failed if f.rule == name), None)
        if silent is not None:
            yield Verdict(budget, "unknown", f"the rule could not look: {silent}")
            continue
        found = [f for f in counted if f.rule == name]
        if name not in {f.rule for f in report.findings} | {c.rule for c in report.clear}:
            yield Verdict(budget, "unknown", f"the rule was not run: it is turned off, or not for a recording of kind {report.kind}")
            continue
        if isinstance(limit, str):
            worse = [f for f in found if f.severity in _ORDER[: _ORDER.index(limit)]]
            yield _count(budget, worse, 0, f"worse than {limit}")
        else:
            yield _count(budget, found, limit, "of this rule")


def _count(budget: str, found: list[Finding], limit: int, what: str) -> Verdict:
    told = f"{len(found)} {what}, {limit} allowed"
    if len(found) <= limit:
        return Verdict(budget, "kept", told, len(found))
    return Verdict(budget, "crossed", f"{told}: {', '.join(dict.fromkeys(f'{f.rule} ({f.severity})' for f in found))}", len(found))
