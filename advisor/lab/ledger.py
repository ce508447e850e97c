"""The ledger of a corpus: every fix that was ever timed, with what was predicted of it. If the trace is still here, it is predicted anew."""

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
    """One fix of one program. Shares are of the step without a profiler.

    set: where the program comes from. blind: the sets of blind.csv that it may be of, whose programs were predicted before any fix's time was
    read; "" for the others. rule: whose fix it is; others: further rules that may name it; way: which further way to it, of which nothing is
    predicted. confidence: of the finding, 0 if no rule spoke. commit: whose code predicted. trace: of the slow side, next to the ledger;
    "" if it is here no more.
    """

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
        """What was predicted: low, expected, high, and how sure."""
        return self.low, self.expected, self.high, self.confidence


@dataclass(frozen=True)
class Ledger:
    """rows: all of them. anew: of how many the trace is here; kept: of how many the last prediction stands."""

    rows: Sequence[Row]
    anew: int

    @property
    def kept(self) -> int:
        return sum(not row.way for row in self.rows) - self.anew


def read(directory: Path) -> list[Row]:
    """The rows as they stand. Raises TraceError."""
    rows = tables.read(directory / FILE, Row)
    if not rows:
        raise TraceError(f"{directory / FILE} holds no row", "See corpus/README.md for its columns.")
    return rows


def standing(directory: Path) -> Ledger:
    """The ledger as it stands, without an analysis. Raises TraceError."""
    rows = read(directory)
    return Ledger(rows, sum(map(_trace_is_here(directory), rows)))


def predicted(directory: Path, analyze: Callable[[Path], Report] = report_of, commit: str = "") -> Ledger:
    """The ledger, predicted anew where the trace is here. commit: of the code, for rows whose prediction is another than it was."""
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
    """What a report predicts of a fix that one of these rules may name: low, expected and high as shares of the step, and how sure it is."""
    found = next((finding for finding in report.findings if finding.rule in rules), None)
    if found is None:
        return 0.0, 0.0, 0.0, 0.0
    step = report.step_us or 1.0
    low, expected, high = (getattr(found.saving, end) / step for end in ("low", "expected", "high"))
    return low, expected, high, found.confidence
