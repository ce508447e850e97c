"""Compares predicted savings with measured savings, over pairs of traces with known unprofiled step times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from advisor.compare import measured_fixes
from advisor.compare.measured_fixes import PredictedGain
from advisor.engine.run import report_of
from advisor.errors import TraceError
from advisor.lab import ledger
from advisor.report.finding import LEVEL
from advisor.report.model import Report


@dataclass(frozen=True)
class Pair(PredictedGain):
    """A fix of a corpus or a ledger. confidence: of the finding, 0 if there is none or it is not known.

    group: its set in a corpus; else the folder with the manifest that lists it, "" for the directory itself.
    """

    confidence: float = 0.0
    group: str = ""


@dataclass(frozen=True)
class Validated:
    """The fixes of a directory. anew: how many were predicted from traces that are here; kept: how many as they are in its ledger."""

    pairs: Sequence[Pair]
    anew: int
    kept: int = 0


def validate(directory: Path, analyze: Callable[[Path], Report] = report_of) -> Validated:
    """Every fix that a corpus' ledger.csv, or else the manifests of a directory, know the gain of. Raises TraceError."""
    if not directory.is_dir():
        what = "is no directory" if directory.exists() else "does not exist"
        raise TraceError(f"{directory} {what}", "Give a directory with manifest.json and traces, or a ledger of advisor verify, a .jsonl file.")
    if (directory / ledger.FILE).exists():
        return of_ledger(ledger.predicted(directory, analyze))
    pairs = listed(directory, analyze)
    return Validated(pairs, len(pairs))


def of_ledger(made: ledger.Ledger) -> Validated:
    """Its rows with a prediction."""
    pairs = [Pair(row.program, row.rule, row.low, row.expected, row.high, max(0.0, row.measured), row.confidence, row.set) for row in made.rows if not row.way]
    return Validated(pairs, made.anew, made.kept)


def listed(directory: Path, analyze: Callable[[Path], Report] = report_of) -> list[Pair]:
    """Analyze every slow trace with step times in `directory/manifest.json`, or in a manifest of its folders. Raises TraceError.

    The manifest has `cases` by name. `rule` is an id, a list of ids, or `trap` for a rule with a fix that gains nothing. `kineto`, `nsys` or `jax` has the path
    of `slow`. `slow_ms` and `fixed_ms` are step times. `alone` has the step time with each of several fixes by rule, in addition or instead (`rule/way` for a
    further way to a fix, which is left out). A case with `saving: false` is left out."""
    manifest = directory / "manifest.json"
    try:
        folders = {"": json.loads(manifest.read_text(encoding="utf-8"))["cases"]}
        folders |= {m.parent.name: json.loads(m.read_text(encoding="utf-8")).get("cases", {}) for m in sorted(directory.glob("*/manifest.json"))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{manifest} is no list of pairs: {error}", "See samples/README.md for its shape.") from None
    pairs = [pair for folder, cases in folders.items() for pair in _pairs(directory / folder, folder, cases, analyze)]
    if not pairs:
        raise TraceError(f"{manifest} lists no pair with a measured saving", "See samples/README.md for its shape.")
    return pairs


def _pairs(directory: Path, group: str, cases: dict[str, Any], analyze: Callable[[Path], Report]) -> Iterator[Pair]:
    for name, case in cases.items():
        paths = case.get("kineto") or case.get("nsys") or case.get("jax") or {}
        if "slow" not in paths or "slow_ms" not in case or not {"fixed_ms", "alone"} & {*case} or not (case.get("saving", True) or "trap" in case):
            continue
        report = ledger.unbroken(directory / paths["slow"], analyze)
        for wanted, fixed_ms in timed_fixes(case):
            low, expected, high, confidence = ledger.of_report(report, wanted)
            yield Pair(name, wanted[0], low, expected, high, max(0.0, 1 - fixed_ms / case["slow_ms"]), confidence, group)


def timed_fixes(case: dict[str, Any]) -> Iterator[tuple[list[str], float]]:
    """The rules that may name each fix that was timed, and the step's ms with it."""
    yield from (([rule], ms) for rule, ms in case.get("alone", {}).items() if "/" not in rule)
    if "fixed_ms" in case and (wanted := case.get("trap") or case["rule"]):
        yield [wanted] if isinstance(wanted, str) else wanted, case["fixed_ms"]


def read_ledger(path: Path) -> list[Pair]:
    """The pairs that `advisor verify --finding` appended, a line of JSON each. Raises TraceError for any other line."""
    pairs = [Pair(one.name, one.rule, one.low, one.expected, one.high, one.measured) for one in measured_fixes.read(path)]
    if not pairs:
        raise TraceError(f"{path} holds no measurement", "Add a measurement with: advisor verify --finding REPORT#FINDING")
    return pairs


def rank_correlation(pairs: Sequence[Pair]) -> float:
    """Spearman's coefficient of predicted and measured savings, NaN if either never varies."""
    predicted, measured = (_ranks([getattr(p, key) for p in pairs]) for key in ("expected", "measured"))
    if not predicted.std() or not measured.std():
        return float("nan")
    return float(np.corrcoef(predicted, measured)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0, ties sharing their mean."""
    array = np.asarray(values)
    return np.array([((array < v).sum() + (array <= v).sum() - 1) / 2 for v in array])


MISS = 2 / (1 - LEVEL)
"""Winkler score's penalty for a measured gain outside the interval, per share of the step outside."""


def winkler(pair: Pair) -> float:
    """Width of the interval and the price of missing it, as a share of the step; less is better (Winkler 1972)."""
    outside = max(pair.low - pair.measured, pair.measured - pair.high, 0.0)
    return pair.high - pair.low + MISS * outside


def baseline(pair: Pair, pairs: Sequence[Pair]) -> float:
    """Mean gain of the rule's other pairs: the prediction of a table without a trace. 0 without other pairs."""
    others = [p.measured for p in pairs if p.rule == pair.rule and p.name != pair.name]
    return sum(others) / len(others) if others else 0.0
