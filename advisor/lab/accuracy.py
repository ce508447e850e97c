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
from advisor.lab.verify import NO_DIFFERENCE
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
        "by an author who had not read the rules.",
        "",
        "![Predicted against measured savings](accuracy.svg)",
        "",
        *_table(pairs, rules),
        "",
        *_reliability(pairs),
        "",
        "Where it is weak: the host's part of an eager loop is predicted to within some 30 % of the step only, since how much of the",
        "issuing a compiler leaves, and what recording cost, differ from program to program; removing a wait that also changes what",
        "runs (`masked_tokens`) gains more than the wait; and where a fix lets other kernels work on half the bytes too, the",
        "measured gain lies above the interval.",
        "",
        "The rules have seen all of these programs. Unseen ones are predicted worse. What was predicted before any fix's time was read:",
        "",
        "| Programs never seen before | Fixes timed alone | Rank correlation | Median error | Mean error | Inside | of those gaining 3% to 93% |",
        "|---|--:|--:|--:|--:|--:|---|",
        "| a third of 26 public models | 27 | .56 | 9% | | 15 | |",
        "| three further ones | 9 | .90 | 9% | | 6 | |",
        "| 22 further ones of torchvision, timm, transformers, torch_geometric | 59 | .74 | 9.0% | 10.8% | 47 | 42: .72, 11.1%, 12.5%, 33 inside |",
        "| 14 of these 22 again, after the other 8 had been learned from | 41 | .73 | 5.0% | 10.1% | 32 | 28: .79, 9.3%, 11.4%, 21 inside |",
        "| 13 further ones of the same libraries, after all of those | 37 | .80 | 5.9% | 8.3% | 30 | 26: .86, 8.0%, 9.6%, 20 inside |",
        "| 13 of speech, recommendation, detection, diffusion and language, 14 written by hand | 60 | .74 | 3.1% | 6.7% | 49 | 37: .90, 4.8%, 6.7%, 29 inside |",
        "| 15 of these kinds and 22 written by hand, after those | 71 | .74 | 4.8% | 9.5% | 52 | 47: .72, 7.7%, 13.0%, 29 inside |",
        "| 22 further ones written by hand, after all of those | 61 | .69 | 5.6% | 12.5% | 46 | 40: .69, 7.8%, 14.0%, 30 inside |",
        "| 15 of speech, detection, pictures, films and language, 31 written by hand, after those | 160 | .45 | 3.0% | 13.3% | 115 | 99: .39, 6.9%, 16.3%, 65 inside |",
        "| 9 of proteins, vision, graphs and control, 10 written by hand, after those; each fix what the rule advises | 54 | .66 | 2.2% | 6.3% | 43 | 31: .61, 4.3%, 10.0%, 21 inside |",
        "| 20 of speech, vision, proteins, detection, graphs and language, 20 written by hand, after those; each fix what the rule advises | 112 | .71 | 4.0% | 8.2% | 88 | 66: .77, 6.0%, 9.8%, 49 inside |",
        "| 8 of public architectures, 9 written by hand, after those; likewise | 47 | .74 | 2.2% | 7.2% | 37 | 29: .68, 4.2%, 10.1%, 23 inside |",
        "| 16 of language, vision, sound and graphs, 16 written by hand, after those; likewise | 90 | .73 | 3.8% | 8.7% | 66 | 58: .75, 4.2%, 8.7%, 43 inside |",
        "| 6 of public architectures, 7 written by hand, after those; likewise | 37 | .72 | 4.6% | 10.1% | 27 | 26: .61, 6.3%, 13.8%, 16 inside |",
        "| 8 of public architectures, 10 written by hand, after those; likewise | 50 | .91 | 2.9% | 5.8% | 43 | 33: .88, 4.9%, 8.2%, 27 inside |",
        "| 9 of public architectures, 11 written by hand, after those; likewise | 57 | .35 | 4.0% | 15.6% | 39 | 35: .08, 9.2%, 21.8%, 22 inside |",
        "| 9 of public architectures, 10 written by hand, beside those; likewise | 63 | .29 | 6.8% | 16.3% | 47 | 45: .35, 11.3%, 16.8%, 32 inside |",
        "| 7 of public architectures, 8 written by hand, after those; likewise | 51 | .72 | 4.0% | 9.6% | 40 | 32: .48, 6.9%, 12.2%, 24 inside |",
        "| 6 of public architectures, 7 written by hand, after those; likewise | 46 | .73 | 4.6% | 10.3% | 41 | 28: .65, 7.2%, 14.6%, 24 inside |",
        "| 15 of public architectures, 8 written by hand, after those; likewise | 79 | .68 | 3.3% | 7.9% | 58 | 52: .69, 5.2%, 9.8%, 36 inside |",
        "| 16 of public architectures, 8 written by hand, after those; likewise | 93 | .79 | 2.5% | 6.4% | 80 | 56: .76, 4.4%, 8.1%, 48 inside |",
        "| 2 of public architectures, 3 written by hand, after those; likewise | 19 | .67 | 1.9% | 4.2% | 13 | 12: .73, 2.5%, 5.7%, 8 inside |",
        "",
        "The last seventeen rows are of authors who had not read the rules: public models with the fixes that people try, and programs written",
        "by hand; a third of their fixes gained nothing. In the first of them the rules were as they had been before; from each was learned before",
        "the next was predicted, and from the last since, so that none is a test any more. Public architectures are predicted better than what is written by",
        "hand: of the four sets before those of 57 and 63 they alone came to .90, .84, .86 and .95, 2.1%, 3.8%, 1.0% and 2.1%, 3.4%, 6.3%, 3.6% and 4.0% over 22, 44, 17 and 22 fixes, those of them",
        "that gained something to .90, .83, .93 and .90, 4.9%, 3.9%, 3.4% and 3.6%, 5.5%, 7.5%, 5.5% and 5.1%. Where a rule was silent it counts as 0, which is most of what is outside. In the row of 160 nearly half of the silences are of fixes that",
        "are not what the rule advises: eight larger batches, mostly where launches bound the step, and three graphs of a step rewritten for it. So the authors of",
        "the sets after it were told, of each rule, what it advises, and nothing else. In those of 57 and 63, predicted beside each other, most of the error is of fifteen",
        "fixes of which nothing was said: eight larger batches, mostly where launches bind the step (such a step now has a low finding, which would have told six of",
        "them), five loops that were turned into tensors or made one kernel, a loop rewritten so that a graph can hold it, 16 bits for a network of sines. Without these",
        "they come to .79 and .62, 2.9% and 4.6%, 6.4% and 9.6%, 39 of 49 and 47 of 56 inside: a set says as much of its author's habits as of the rules.",
        "In the sets of 51 and 46 a third of the error of what gained something is of four fixes: a step of 15,000 launches of which it was not seen that a graph",
        "can replay it (90%; mended since, and predicted at 90%), a loop of samplers compiled (93% for 41%), experts that are all computed instead of looked for (83%, of",
        "which a wait's removal was told), 128 filters in one call (87%, told as launches). In that of 79 nearly half of the error of what gained something is of five fixes",
        "of which nothing was said, or too much: a graph of each word's pass (78%; told since, at 84%), eight requests of a dictation in one step (70%; told since, at 58%), a small",
        "graph network compiled (45%), eight requests that took three times as long (60% for 92%), channels_last in a step whose host is as slow (6% for 26%). In that of 93 two fifths are of five:",
        "four tiles in one call (52%, told as requests that share a step), 16 bits in a network of speech whose host was as slow (40 to 46% for 6%), a chain compiled of which only one function was (44% for 7%),",
        "TF32 of which nothing was said where the host had been taken for slower (31%), sixteen requests of which each has work of its own (64% for 34%). Twelve programs of that set, drawn by lot, were learned",
        "from before the other twelve were predicted once more: 46 fixes .86, 2.7%, 5.5%, 40 inside (29: .84, 3.8%, 6.3%, 26 inside) and 47 fixes .71, 1.6%, 7.0%, 40 inside (27: .66, 4.4%, 9.5%, 22 inside). Of the fixes that gained nothing these were recommended at medium",
        "or above: three of the 17 among the 59, one of the 10 among the 37, three of 23 among the 60 (SDPA in a BART that trains in TF32,",
        "compiling the policy of a rollout, a removed wait whose `if` had spared work), two of 21 among the 71 (16 bits in a Conv-TasNet,",
        "compiling a small wide-and-deep network), three of 18 among the 61 (workers and pinning for a loader that was no slower than them, a",
        "check for NaN removed), six of 60 among the 160 (channels_last for a norm over channels, compiling a spiking loop's body, a translator, a renderer whose cumprod is",
        "trained through, and filters with an inverse in each pass; a cache in one piece), two of 23 among the 54 (pinning where the host decodes, SDPA in FP32), five of 42",
        "among the 112 (compiling a loop of solves and complex numbers, SDPA on tensors of five axes and with two biases in FP32, pinning by the thread that",
        "copies), two of 18 among the 47 (waits beside copies to the host), five of 30 among the 90 (SDPA in FP32 on heads of 30 channels, which no fused",
        "kernel takes, workers for batches of 2 ms, compiling a function that is not the one with most of the work, a small network that is replayed in each pass of a",
        "loop, BF16 instead of a GradScaler for convolutions in groups), one of 11 among the 37 (compiling RepVGG in training), one of 17 among",
        "the 50 (16 bits for convolutions of eight channels), one of 21 among the 57 (16 bits for a decoder of pictures whose norms stay in FP32), one of 16 among the",
        "63 (a question for how many rays are left, which spares the work on the others), two of 18 among the 51 (a loss that is read, gradients filled with zeros: 3",
        "and -4% for 21 and 6), two of 18 among the 46 (compiling one function of a search engine's, peaks read one by one: 2 and -18% for 27 and 9), two",
        "of 27 among the 79 (SDPA in the windows of a reader of pages, pinned pictures: -2 and -4% for 11 and 6), four of 36 among the 93 (a dictation's loop compiled, a detector's loss that is read,",
        "a translator whose layers are dropped at random compiled, the ears of a network of speech compiled: -54, -1, 3 and 2% for 49, 10, 35 and 6), none of the seven among the 19.",
        "",
        "| Program | Rule | Predicted | Interval | Measured | Inside |",
        "|---|---|--:|--:|--:|:-:|",
        *(
            f"| {p.name} | `{p.rule}` | {p.expected:.0%} | {p.low:.0%} to {p.high:.0%} | {p.measured:.0%} | {'yes' if p.inside else 'no'} |"
            for p in sorted(pairs, key=lambda p: (p.rule, p.name))
        ),
    ]
    return "\n".join(lines)


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
