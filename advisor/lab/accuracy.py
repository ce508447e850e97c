"""Holds predicted savings against measured ones, over pairs of traces whose unprofiled step times are known."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from advisor.engine.run import analyze
from advisor.errors import RuleError, TraceError
from advisor.report.finding import NO_DIFFERENCE
from advisor.report.model import Report


@dataclass(frozen=True)
class Pair:
    """One fix: shares of the step that were predicted and measured. `rule` is "" for a rule that did not speak. confidence: of the
    finding, 0 where there is none or it is not known. group: the folder whose manifest lists it, "" for the directory itself."""

    name: str
    rule: str
    low: float
    expected: float
    high: float
    measured: float
    confidence: float = 0.0
    group: str = ""

    @property
    def inside(self) -> bool:
        """Whether the measured saving lies in the predicted interval."""
        return self.low - NO_DIFFERENCE <= self.measured <= self.high + NO_DIFFERENCE


def validate(directory: Path, analyze: Callable[[Path], Report] = analyze) -> list[Pair]:
    """Analyse every slow trace that `directory/manifest.json`, and those of its folders, list with its step times. Raises TraceError.

    The manifest holds `cases`: by name `rule` (an id or a list of them; or `trap`, a rule whose fix gains nothing),
    `slow_ms`, `fixed_ms`, and `kineto`, `nsys` or `jax` with the path of `slow`; beside or in place of `fixed_ms` `alone`, the step time with each
    of several fixes by rule (`rule/way` for a further way to one, which is left out). A case with `saving: false` is left out.
    """
    manifest = directory / "manifest.json"
    if not directory.is_dir():
        what = "is no directory" if directory.exists() else "does not exist"
        raise TraceError(f"{directory} {what}", "Give a directory with manifest.json and traces, or a ledger of advisor verify, a .jsonl file.")
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
        report = analyze(directory / paths["slow"])
        if report.failed:
            raise RuleError(f"rule {report.failed[0].rule} failed on {name}: {report.failed[0].error}", "A ledger without it would be wrong.")
        yield from (_pair(name, wanted, report, 1 - fixed_ms / case["slow_ms"], group) for wanted, fixed_ms in _fixes(case))


def _fixes(case: dict[str, Any]) -> Iterator[tuple[list[str], float]]:
    """The rules that may name each fix that was timed, and the step's ms with it."""
    yield from (([rule], ms) for rule, ms in case.get("alone", {}).items() if "/" not in rule)
    if "fixed_ms" in case and (wanted := case.get("trap") or case["rule"]):
        yield [wanted] if isinstance(wanted, str) else wanted, case["fixed_ms"]


def _pair(name: str, wanted: Sequence[str], report: Report, measured: float, group: str) -> Pair:
    """What the report predicts of a fix that one of these rules may name."""
    found = next((f for f in report.findings if f.rule in wanted), None)
    if found is None:
        return Pair(name, wanted[0], 0.0, 0.0, 0.0, max(0.0, measured), group=group)
    step = report.step_us or 1.0
    low, expected, high = (getattr(found.saving, end) / step for end in ("low", "expected", "high"))
    return Pair(name, wanted[0], low, expected, high, max(0.0, measured), found.confidence, group)


def read_ledger(path: Path) -> list[Pair]:
    """The pairs that `advisor verify --finding` appended, a line of JSON each. Raises TraceError where one is none."""
    try:
        pairs = msgspec.json.Decoder(Pair).decode_lines(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise TraceError(f"{path} is no ledger: {error}", "Its lines are written by: advisor verify --finding REPORT#FINDING") from None
    if not pairs:
        raise TraceError(f"{path} holds no measurement", "Add one with: advisor verify --finding REPORT#FINDING")
    return pairs


def rank_correlation(pairs: Sequence[Pair]) -> float:
    """Spearman's coefficient of predicted and measured savings, NaN where either never varies."""
    predicted, measured = (_ranks([getattr(p, key) for p in pairs]) for key in ("expected", "measured"))
    if not predicted.std() or not measured.std():
        return float("nan")
    return float(np.corrcoef(predicted, measured)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0, ties sharing their mean."""
    array = np.asarray(values)
    return np.array([((array < v).sum() + (array <= v).sum() - 1) / 2 for v in array])


def as_markdown(pairs: Sequence[Pair], directory: str) -> str:
    """The ledger as a document: in all, by rule, and every pair."""
    rules = sorted({p.rule for p in pairs})
    lines = [
        "# Accuracy",
        "",
        f"Generated by `advisor validate {directory} --markdown > docs/accuracy.md`.",
        "",
        "Each pair is a slow program and the same program fixed, both timed without a profiler. The saving was predicted from",
        "the slow program's trace alone. Shares are of the step; an interval holds the measured value if it comes within",
        f"{NO_DIFFERENCE:.0%} of it. Errors are shares of the step. The rule's mean is what the rule's other pairs gained on average. The",
        "Winkler score is an interval's width and ten times what it missed by. Programs of its own were written with the rules; `spellings` say",
        "eight patterns in ten ways each; `public` are models as their libraries have them, several fixes of each timed alone; `written` were written by hand",
        "by an author who had not read the rules; `advised` have the fixes that their reports told, written in by readers who saw no figure of what they gain.",
        "",
        "![Predicted against measured savings](accuracy.svg)",
        "",
        *_table(pairs, rules),
        "",
        *_reliability(pairs),
        "",
        *_blind(Path(directory)),
        "| Program | Rule | Predicted | Interval | Measured | Inside |",
        "|---|---|--:|--:|--:|:-:|",
        *(
            f"| {p.name} | `{p.rule}` | {p.expected:.0%} | {p.low:.0%} to {p.high:.0%} | {p.measured:.0%} | {'yes' if p.inside else 'no'} |"
            for p in sorted(pairs, key=lambda p: (p.rule, p.name))
        ),
    ]
    return "\n".join(lines)


def _blind(directory: Path) -> list[str]:
    """The directory's blind.md, if it has one: what was predicted before anything was measured, which no later run can compute."""
    told = directory / "blind.md"
    return [told.read_text(encoding="utf-8").rstrip(), ""] if told.is_file() else []


NOTHING, SATURATED = 0.03, 0.93
"""Measured shares of the step below and above which a pair says little: any guess of nothing, or of nearly all, is right there."""

FEW = 5
"""Pairs of a rule, fewer than which say little of it."""

MISS = 2 / (1 - 0.8)
"""What lying outside an interval of level 0.8 costs in the Winkler score, per share of the step that it lies outside."""


def winkler(pair: Pair) -> float:
    """Width of the interval and the price of missing it, as a share of the step; less is better (Winkler 1972)."""
    outside = max(pair.low - pair.measured, pair.measured - pair.high, 0.0)
    return pair.high - pair.low + MISS * outside


def baseline(pair: Pair, pairs: Sequence[Pair]) -> float:
    """What the rule's other pairs gained on average: what a table without a trace would say. 0 without any other."""
    others = [p.measured for p in pairs if p.rule == pair.rule and p.name != pair.name]
    return sum(others) / len(others) if others else 0.0


def _table(pairs: Sequence[Pair], rules: Sequence[str]) -> list[str]:
    kinds: tuple[tuple[str, list[Pair]], ...] = (
        (f"that gain less than {NOTHING:.0%}", [p for p in pairs if p.measured < NOTHING]),
        (f"informative, {NOTHING:.0%} to {SATURATED:.0%}", [p for p in pairs if NOTHING <= p.measured <= SATURATED]),
        (f"saturated, above {SATURATED:.0%}", [p for p in pairs if p.measured > SATURATED]),
        ("all", list(pairs)),
    )
    groups = [(g or "programs of its own", [p for p in pairs if p.group == g]) for g in sorted({p.group for p in pairs})]
    kinds += tuple((f"of these: {name}", some) for name, some in groups if len(groups) > 1)
    head = ["Pairs", "Median error", "Mean error", "The rule's mean instead", "Inside the interval", "Winkler score", "Rank correlation"]
    rows = [f"| Kind | {' | '.join(head)} |", "|---|" + "--:|" * len(head)]
    rows += [f"| {name} | {' | '.join(_figures(some, pairs))} |" for name, some in kinds if some]
    rows += ["", f"| Rule | {' | '.join(head[:-1])} |", "|---|" + "--:|" * (len(head) - 1)]
    for rule in rules:
        some = [p for p in pairs if p.rule == rule]
        note = f" (fewer than {FEW} pairs)" if len(some) < FEW else ""
        rows.append(f"| `{rule}`{note} | {' | '.join(_figures(some, pairs)[:-1])} |")
    return rows


GRADES = (0.0, 0.6, 0.75, 0.88, 1.01)
"""Between which confidences are taken together."""


def _reliability(pairs: Sequence[Pair]) -> list[str]:
    """How often findings that were so sure were right: their fix gained a hundredth of the step, and half of what was expected."""
    rows = ["| Confidence | Findings | Their fix gained something | and half of what was expected |", "|---|--:|--:|--:|"]
    for low, high in itertools.pairwise(GRADES):
        some = [p for p in pairs if p.confidence and low <= p.confidence < high]
        if some:
            gained = sum(p.measured >= 0.01 for p in some) / len(some)
            half = sum(p.measured >= 0.5 * p.expected for p in some) / len(some)
            rows.append(f"| {low:.2f} to {min(high, 1):.2f} | {len(some)} | {gained:.0%} | {half:.0%} |")
    return rows


def _figures(some: Sequence[Pair], pairs: Sequence[Pair]) -> list[str]:
    errors = [abs(p.expected - p.measured) for p in some]
    without = [abs(baseline(p, pairs) - p.measured) for p in some]
    rank = rank_correlation(some)
    return [
        str(len(some)),
        f"{median(errors):.1%}",
        f"{sum(errors) / len(errors):.1%}",
        f"{median(without):.1%}",
        f"{sum(p.inside for p in some)} of {len(some)}",
        f"{sum(map(winkler, some)) / len(some):.2f}",
        "" if np.isnan(rank) else f"{rank:.2f}",
    ]
