"""The ledger of a corpus: every fix that was ever timed, with its prediction. If the trace is available, the prediction is made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.engine.run import report_of
from advisor.errors import RuleError, TraceError
from advisor.knowledge.structs import replace
from advisor.lab import tables
from advisor.report.model import Report

FILE = "ledger.csv"


@dataclass(frozen=True)
class Row:
    """A fix of a program. Shares are of the step without a profiler.

    set: origin of the program. blind: sets of blind.csv that may contain it: programs predicted before any fix's time was read. "" for others.

    rule: the rule of the fix. others: further rules that may report it. way: a further way to it, without a prediction.

    confidence: of the finding, 0 if no rule reported it. commit: version of the code that predicted.

    trace: of the slow side, next to the ledger; "" if it is no longer available."""

    program: str
    set: str
    blind: str
    rule: str
    others: str
    way: str
    device: str
    slow_ms: float
    fixed_ms: float
    measured: float
    low: float
    expected: float
    high: float
    confidence: float
    commit: str
    trace: str

    @property
    def said(self) -> tuple[float, float, float, float]:
        """The prediction: low, expected, high, and confidence."""
        return self.low, self.expected, self.high, self.confidence


@dataclass(frozen=True)
class Ledger:
    """rows: all rows. anew: number of rows with a trace. kept: number of rows with an unchanged last prediction."""

    rows: Sequence[Row]
    anew: int

    @property
    def kept(self) -> int:
        return sum(not row.way for row in self.rows) - self.anew


def read(directory: Path) -> list[Row]:
    """The rows of the file. Raises TraceError."""
    rows = tables.read(directory / FILE, Row)
    if not rows:
        raise TraceError(f"{directory / FILE} holds no row", "See corpus/README.md for its columns.")
    return rows


def standing(directory: Path) -> Ledger:
    """The ledger of the file, without an analysis. Raises TraceError."""
    rows = read(directory)
    return Ledger(rows, sum(map(_trace_is_here(directory), rows)))


def predicted(directory: Path, analyze: Callable[[Path], Report] = report_of, commit: str = "") -> Ledger:
    """The ledger, predicted again if the trace is available. commit: of the code, for rows with a changed prediction."""
    rows, here = read(directory), _trace_is_here(directory)
    reports = {path: unbroken(directory / path, analyze) for path in dict.fromkeys(row.trace for row in rows if here(row))}
    made = [_anew(row, reports[row.trace], commit) if here(row) else row for row in rows]
    return Ledger(made, sum(map(here, rows)))


def _trace_is_here(directory: Path) -> Callable[[Row], bool]:
    """Whether a row can be predicted."""
    return lambda row: bool(row.trace) and not row.way and (directory / row.trace).exists()


def _anew(row: Row, report: Report, commit: str) -> Row:
    low, expected, high, confidence = of_report(report, (row.rule, *row.others.split()))
    made = replace(row, low=low, expected=expected, high=high, confidence=confidence)
    same = all(abs(now - then) < 1e-6 for now, then in zip(made.said, row.said, strict=True))
    return row if same else replace(made, commit=commit or row.commit)


def unbroken(path: Path, analyze: Callable[[Path], Report]) -> Report:
    """The report that a ledger is made of. Raises RuleError if a rule failed on it."""
    report = analyze(path)
    if report.failed:
        raise RuleError(f"rule {report.failed[0].rule} failed on {path}: {report.failed[0].error}", "A ledger without it would be wrong.")
    return report


def of_report(report: Report, rules: Sequence[str]) -> tuple[float, float, float, float]:
    """A report's prediction for a fix that any of these rules may report: low, expected and high as shares of the step, and the confidence."""
    found = next((finding for finding in report.findings if finding.rule in rules), None)
    if found is None:
        return 0.0, 0.0, 0.0, 0.0
    step = report.step_us or 1.0
    low, expected, high = (getattr(found.saving, end) / step for end in ("low", "expected", "high"))
    return low, expected, high, found.confidence
