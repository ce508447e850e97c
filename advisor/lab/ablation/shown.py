"""What mechanisms are worth out of sample, as text, as JSON and as a page of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from advisor.knowledge.counts import ENOUGH, RESAMPLES
from advisor.lab.ablation.mechanisms import Mechanism
from advisor.lab.ablation.run import MOST_TRACES, Effect, Prediction, Tried
from advisor.lab.ablation.traces import seen_by
from advisor.report.numbers import counted

MOVED = 0.005
"""A prediction that moves by half a point of the step or less is the same: less is not shown."""

FEWEST = ENOUGH
"""Traces and predictions that move, below which no interval is worth its name: the bootstrap of fewer knows hardly more than their signs."""

FEWEST_STILL = 12
"""Number of traces below which a lack of effects proves little: with twelve, the true rate may be a quarter (rule of three)."""

NOTHING = 0.1
"""Points of mean error. A mechanism has no effect if its interval is within this on either side, however many predictions change."""

LEVEL, DRAWS = 0.9, RESAMPLES
"""Of the bootstrap's interval, and how often it draws."""

FITTED_TO = FEWEST_STILL
"""A constant fitted to fewer programs must show out of sample that it is worth something."""

Verdict = Literal["pays", "harms", "moves nothing", "too few to tell"]


@dataclass(frozen=True)
class Row:
    """A mechanism over the traces that it had not seen.

    watched: their number. traces: those on which it has an effect. All other fields are about these.

    predictions: timed fixes. moved: predictions that change by more than `MOVED`.

    closer, further: moved predictions that are closer to the measured gain with the mechanism, or further from it.

    gain: points of the step by which it lowers the mean error of `predictions`, with the interval's ends.

    flips: findings that are medium or above only with it or only without it.

    changed: findings of changed traces, and how many flip with it and without."""

    mechanism: str
    what: str
    written_on: str
    fitted_to: int
    watched: int
    traces: int
    predictions: int
    moved: int
    closer: int
    further: int
    gain: float | None
    low: float | None
    high: float | None
    flips: int
    changed: int
    flips_on: int
    flips_off: int
    verdict: Verdict

    @property
    def goes(self) -> bool:
        """Whether it should go: it harms, or was fitted to few programs and moves nothing."""
        return self.verdict == "harms" or (self.verdict == "moves nothing" and 0 < self.fitted_to < FITTED_TO)


@dataclass(frozen=True)
class Ablation:
    """where: the command that made it. seed: of the lot. traces: number of analyzed traces. left: the others, each with its reason."""

    where: str
    seed: int
    traces: int
    left: Sequence[str]
    rows: Sequence[Row]

    def as_data(self) -> list[dict[str, Any]]:
        """A record a mechanism."""
        return [asdict(row) for row in self.rows]


def summed(mechanisms: Sequence[Mechanism], tried: Sequence[Tried], where: str, seed: int) -> Ablation:
    """The rows, what pays most first and what harms last."""
    rows = [_row(one, tried, seed) for one in mechanisms]
    order = ("pays", "too few to tell", "moves nothing", "harms")
    rows.sort(key=lambda row: (order.index(row.verdict), -(row.gain or 0.0), row.mechanism))
    left = [f"{one.trace}: {one.left}" for one in tried if one.left]
    return Ablation(where, seed, sum(bool(one.tried) and not one.left for one in tried), left, rows)


def _row(mechanism: Mechanism, tried: Sequence[Tried], seed: int) -> Row:
    effects = [effect for trace in tried for effect in trace.effects if effect.mechanism == mechanism.name]
    several = [one for effect in effects for one in effect.predictions]
    moved = [one for one in several if abs(one.on - one.off) > MOVED]
    closer = sum(_gain(one) > 0 for one in moved)
    gain, low, high = _interval([[_gain(one) for one in effect.predictions] for effect in effects if effect.predictions], seed)
    return Row(
        mechanism=mechanism.name,
        what=mechanism.what,
        written_on=written_on(mechanism),
        fitted_to=mechanism.programs,
        watched=sum(mechanism.name in trace.tried and not trace.left for trace in tried),
        traces=len(effects),
        predictions=len(several),
        moved=len(moved),
        closer=closer,
        further=sum(_gain(one) < 0 for one in moved),
        gain=gain,
        low=low,
        high=high,
        flips=sum(len(effect.flips) for effect in effects),
        changed=sum(effect.changed for effect in effects),
        flips_on=sum(effect.flips_on for effect in effects),
        flips_off=sum(effect.flips_off for effect in effects),
        verdict=_verdict(effects, len(moved), low, high),
    )


def written_on(mechanism: Mechanism) -> str:
    """The programs that a mechanism was written on, in a line."""
    at_hand = f"{counted(seen_by(mechanism), 'program')} to {mechanism.until[:10]}"
    return f"{mechanism.written_on}; {at_hand}" if mechanism.written_on else at_hand


def _gain(one: Prediction) -> float:
    """By how much the prediction is closer with the mechanism, as a share of the step."""
    return abs(one.off - one.measured) - abs(one.on - one.measured)


def _interval(by_trace: Sequence[Sequence[float]], seed: int) -> tuple[float | None, float | None, float | None]:
    """The mean in points, and its interval by drawing traces again: fixes of the same program are not independent."""
    if not by_trace:
        return None, None, None
    sums, counts = np.array([sum(one) for one in by_trace]), np.array([len(one) for one in by_trace])
    drawn = np.random.default_rng(seed).integers(0, len(sums), (DRAWS, len(sums)))
    means = 100 * sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return 100 * float(sums.sum() / counts.sum()), float(low), float(high)


def _verdict(effects: Sequence[Effect], moved: int, low: float | None, high: float | None) -> Verdict:
    several = [effect for effect in effects if effect.predictions]
    if low is None or high is None or len(several) < FEWEST:
        return "too few to tell"
    if low >= -NOTHING and high <= NOTHING:
        still = len(several) >= FEWEST_STILL and not any(effect.flips for effect in effects)
        return "moves nothing" if still else "too few to tell"
    movers = sum(any(abs(one.on - one.off) > MOVED for one in effect.predictions) for effect in several)
    if movers < FEWEST or moved < FEWEST or low <= 0 <= high:
        return "too few to tell"
    return "pays" if low > 0 else "harms"


def as_text(found: Ablation) -> str:
    """A line each mechanism that has an effect anywhere, then the others."""
    lines = [
        f"{'mechanism':24} {'unseen':>6} {'traces':>6} {'fixes':>5} {'closer':>6} {'further':>7} {'points gained':>20} {'flips':>5} {'changed':>7}  verdict"
    ]
    lines += [
        f"{row.mechanism:24} {row.watched:6} {row.traces:6} {row.predictions:5} {row.closer:6} {row.further:7} {_points(row):>20} {row.flips:5} {_changed(row):>7}  "
        f"{row.verdict}"
        for row in found.rows
        if row.traces
    ]
    lines += ["", *_going(found, str), *_without_effect(found, str), *(f"left out: {one}" for one in found.left)]
    lines.append(f"{counted(found.traces, 'trace')}, drawn with seed {found.seed}; {_COLUMNS}")
    return "\n".join(lines)


def _without_effect(found: Ablation, quoted: Callable[[str], str]) -> list[str]:
    """The mechanisms without an effect on any trace that they had not seen."""
    fewest = {True: "no effect on any of {} unseen traces: ", False: "no unseen trace: "}
    rows = [row for row in found.rows if not row.traces]
    told = []
    for watched in sorted({row.watched for row in rows}, reverse=True):
        names = ", ".join(quoted(row.mechanism) for row in rows if row.watched == watched)
        told.append(fewest[watched > 0].format(watched) + names)
    return told


_COLUMNS = (
    "unseen: of programs recorded after it was written; traces: those of them that it has an effect on; closer, further: predictions with the mechanism that are closer to what the fix gained, or further from it, than without; points gained: by which it lowers "
    f"the mean error, with the {100 * LEVEL:.0f} % interval; flips: findings that are loud with it or without it alone; changed: flips by harmless changes, with -> without"
)


def _points(row: Row) -> str:
    return "" if row.gain is None else f"{row.gain:+.2f} [{row.low:+.2f}, {row.high:+.2f}]"


def _changed(row: Row) -> str:
    return f"{row.flips_on} -> {row.flips_off}" if row.changed else ""


def _going(found: Ablation, quoted: Callable[[str], str]) -> list[str]:
    """What should go, and why."""
    return [f"should go: {quoted(row.mechanism)}: {_reason_in_words(row)}" for row in found.rows if row.goes]


def _reason_in_words(row: Row) -> str:
    return "it harms" if row.verdict == "harms" else f"fitted to {counted(row.fitted_to, 'program')}, it moves nothing"


def as_markdown(found: Ablation) -> str:
    """A page: the method, a row per mechanism, and the mechanisms to remove."""
    went = [*_going(found, lambda name: f"`{name}`")]
    lines = [
        "# Ablation", "", f"Generated by `{found.where}`.", "",
        "What is each recogniser and fitted constant worth on programs that it was not written on? Each is **switched off**, one at a time,",
        "on traces of programs that were recorded after it was written. The set of programs that came next was at hand while it was written, so",
        "it does not count either. A trace on which a mechanism changes nothing is skipped.", "",
        "- **Unseen**: traces of such programs. **Traces**: those of them that the mechanism has an effect on.",
        "- **Closer, further**: predictions of timed fixes that move by more than half a point of the step. Closer are those that are nearer to the",
        "  measured gain with the mechanism than without it.",
        f"- **Points gained**: by how much the mechanism lowers the mean error of all fixes on these traces, with a {100 * LEVEL:.0f} % interval. The",
        "  bootstrap draws traces, as fixes of one program are not independent.",
        "- **Flips**: findings that are medium or above with the mechanism alone, or without it alone.",
        f"- **Changed**: flips by {CHANGES_TOLD}: with the mechanism → without it.", "",
        f"A mechanism **pays** or **harms** where the interval leaves 0 out and {FEWEST} predictions or more move on as many traces. It **moves nothing** where the interval lies",
        f"within {NOTHING} points on {FEWEST_STILL} traces or more and nothing flips. Else there are **too few to tell**.",
        "Of so many mechanisms a few leave 0 out by chance. One that sets severities alone moves no prediction: its flips speak.", "",
        f"**{counted(found.traces, 'trace')}, drawn with seed {found.seed}**; of each mechanism the first {MOST_TRACES} that it has an effect on. Traces that most mechanisms",
        "had seen come last in the lot, as they tell least for what they cost.", "",
        "| Mechanism | What it does | Unseen | Traces | Fixes | Closer | Further | Points gained | Flips | Changed | Verdict |", "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
        *(
            f"| `{row.mechanism}` | {row.what} | {row.watched} | {row.traces} | {row.predictions} | {row.closer} | {row.further} | {_points(row)} | {row.flips} | {_changed(row)} | {row.verdict} |"
            for row in found.rows
            if row.traces
        ),
        "", "## Without an effect", "", *(f"- {line[0].upper()}{line[1:]}" for line in _without_effect(found, lambda name: f"`{name}`")),
        "", "## What should go", "",
        f"A mechanism goes where it harms, or where it was fitted to fewer than {FITTED_TO} programs and moves nothing.", "",
        *([f"- {line.removeprefix('should go: ')}" for line in went] or ["Nothing."]),
        "", "## What each was written on", "", "| Mechanism | Written on |", "|---|---|",
        *(f"| `{row.mechanism}` | {row.written_on} |" for row in sorted(found.rows, key=lambda row: row.mechanism)),
    ]  # fmt: skip
    return "\n".join([*lines, *(["", "Left out:", "", *(f"- {one}" for one in found.left)] if found.left else [])])


CHANGES_TOLD = "one change of each trace that does not change the truth ([stability](stability.md)), drawn by lot"
