"""Analyses traces as they are and changed, and says which findings flip and which savings move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from advisor.engine.run import analyze
from advisor.errors import AdvisorError, TraceError
from advisor.knowledge.shares import HARDLY_ANY
from advisor.lab.stability import reasons, slower
from advisor.lab.stability.changes import CHANGES, Change
from advisor.lab.stability.events import Recorded, read, traces_below
from advisor.lab.stability.reasons import Told, share
from advisor.recordings.garbage import uncollected
from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.numbers import percent

MOVED = HARDLY_ANY
"""A saving that moves by more than five points of the step is another saving."""


@dataclass(frozen=True)
class Difference:
    """A changed finding. was, became: its texts in the two reports. why: the reason, if it is known."""

    trace: str
    rule: str
    was: str
    became: str
    why: str = ""


@dataclass
class Held:
    """The effect of a change, over all traces to which it applies.

    findings: of medium or above in either report. flips: medium or above in only a single report.

    abstained: no flips, because the changed trace lacks the data and its report says so.

    covered: no flips, because both reports have the finding with the same gain, and a report folds it into a finding that covers that time.

    savings: of findings in both. moved: savings that differ by more than `MOVED` of the step.

    reasons, movements: each flip, and each saving that moved."""

    change: str
    traces: int = 0
    findings: int = 0
    flips: int = 0
    abstained: int = 0
    covered: int = 0
    savings: int = 0
    moved: int = 0
    reasons: list[Difference] = field(default_factory=list)
    movements: list[Difference] = field(default_factory=list)

    def add(self, other: Held) -> None:
        """Count the other's too."""
        for name in (f.name for f in fields(self) if f.name != "change"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def drawn(directory: Path, sample: int | None, seed: int) -> list[Path]:
    """The traces below a directory, or so many of them by lot. Raises TraceError if there is none."""
    found = traces_below(directory)
    if not found:
        raise TraceError(f"{directory} holds no trace of torch.profiler (*.json, .json.gz or .json.zst)", "Give a directory with traces, as samples/ is.")
    return found if sample is None or sample >= len(found) else sorted(Random(seed).sample(found, sample))


def held(
    directory: Path,
    paths: Sequence[Path],
    changes: Sequence[Change] = CHANGES,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[object], None] = lambda what: None,
) -> tuple[list[Held], list[str]]:
    """Each change over these traces of a directory, and the traces that were left out, with reasons: an unreadable trace cannot be changed."""
    total, left = {change.name: Held(change.name) for change in changes}, []
    one = partial(_of_trace, directory, [change.name for change in changes], seed)
    for path, found in zip(paths, _mapped(one, paths, workers), strict=True):
        progress(path.name)
        if isinstance(found, str):
            left.append(f"{path.relative_to(directory)}: {found}")
            continue
        for made in found:
            total[made.change].add(made)
    return list(total.values()), left


def _mapped(one: Callable[[Path], list[Held] | str], paths: Sequence[Path], workers: int) -> Iterator[list[Held] | str]:
    if workers < 2:
        yield from map(one, paths)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, paths)


@uncollected()
def _of_trace(directory: Path, names: Sequence[str], seed: int, path: Path) -> list[Held] | str:
    """The effect of each change on a trace; the reason in words if the trace is left out."""
    trace = read(path)
    if trace is None:
        return "it is damaged, or its events are not as PyTorch writes them"
    name, found = str(path.relative_to(directory)), []
    with TemporaryDirectory(prefix="advisor-stability-") as folder:
        try:
            base = _analysed(trace, Path(folder, "before.json"))
        except AdvisorError as error:
            return error.message
        for change in (c for c in CHANGES if c.name in names):
            made = change.apply(trace, Random(f"{seed} {change.name} {name}"))
            if made is None:
                continue
            try:
                found.append(compared(name, change, base, _analysed(made, Path(folder, "trace.json"), change.slower)))
            except AdvisorError as error:
                found.append(compared(name, change, base, None, error.message))
    return found


def _analysed(trace: Recorded, path: Path, times: float = 1.0) -> Report:
    """The report of a trace, which is written to the path. times: the slowdown of its machines against known machines."""
    trace.write(path)
    if times == 1.0:
        return analyze(path).report
    with slower.machines(times):
        return analyze(path, options=slower.thresholds(times), devices=slower.rates(times)).report


def compared(trace: str, change: Change, base: Report, changed: Report | None, failed: str = "") -> Held:
    """The effect of a change on a report. changed: None if the changed trace gives no report; `failed` has the reason."""
    made = Held(change.name, traces=1)
    before, after = _loud(base), _loud(changed)
    for rule in sorted({*before, *after}):
        was, became = before.get(rule, []), after.get(rule, [])
        made.findings += max(len(was), len(became))
        for one, other in zip(was, became, strict=False):
            _add_saving(made, trace, rule, share(one, base), share(other, changed) if changed else 0.0)
        for number in range(*sorted((len(was), len(became)))):
            if change.takes and len(became) < len(was) and _abstains(changed, rule):
                made.abstained += 1
                continue
            told = Told(_told(base, rule, number), _told(changed, rule, number), base, changed) if changed else None
            if told and reasons.covered(told):
                made.covered += 1
                continue
            why = reasons.reason_for(change.name, rule, told) if told else ""
            made.flips += 1
            made.reasons.append(Difference(trace, rule, _said(base, rule), _said(changed, rule) if changed else f"not read: {failed}", why))
    return made


def _add_saving(made: Held, trace: str, rule: str, was: float | None, became: float | None) -> None:
    if was is None or became is None:
        return
    made.savings += 1
    if abs(was - became) > MOVED:
        made.moved += 1
        made.movements.append(Difference(trace, rule, percent(was), percent(became)))


def _loud(report: Report | None) -> dict[str, list[Finding]]:
    """The findings that ask for something, by rule, in the report's order."""
    found: dict[str, list[Finding]] = {}
    for finding in report.findings if report else ():
        if finding.loud:
            found.setdefault(finding.rule, []).append(finding)
    return found


def _told(report: Report, rule: str, number: int) -> Finding | None:
    """The finding at this position of a rule's findings, severest first, from 0; None if there are fewer."""
    found = [finding for finding in report.findings if finding.rule == rule]
    return found[number] if number < len(found) else None


def _abstains(report: Report | None, rule: str) -> bool:
    """Whether a report abstains: the rule could not look, or its finding is unconfirmed."""
    if report is None:
        return False
    return any(s.rule == rule for s in report.skipped) or any(f.rule == rule and f.status == "possible" for f in report.findings)


def _said(report: Report, rule: str) -> str:
    """The outcome of a rule in a report, in a line."""
    found = [f for f in report.findings if f.rule == rule]
    if found:
        return "; ".join(_finding(f, report) for f in found)
    for kind, items in (("clear", report.clear), ("skipped", report.skipped)):
        for item in items:
            if item.rule == rule:
                return f"{kind}: {item.why}"
    return next((f"failed: {item.error}" for item in report.failed if item.rule == rule), "not run")


def _finding(finding: Finding, report: Report) -> str:
    saved = share(finding, report)
    marks = [
        finding.severity,
        *(["possible"] if finding.status == "possible" else []),
        *([f"folded into {finding.folded_into}"] if finding.folded_into else []),
    ]
    return f"{', '.join(marks)}{'' if saved is None else f', {100 * saved:.1f} %'}"


def rules_of(found: Iterable[Held]) -> Counter[str]:
    """Flips by rule."""
    return Counter(flip.rule for one in found for flip in one.reasons)
