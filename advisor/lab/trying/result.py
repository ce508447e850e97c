"""What came of `advisor try`, as data."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from advisor.knowledge.release import release
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.lab.trying.numerics import Compared, summary
from advisor.lab.verify import Gain

SCHEMA = 1  # of the JSON of a trial

MANY_RUNS = 40
"""Runs that nobody makes: more are not counted, and no further ones are made for them."""

NOT_RUN = Compared("not-checked", why="it was not run")

Verdict = Literal["faster", "slower", "no-difference", "cannot-tell", "did-not-apply"]


@dataclass(frozen=True)
class Predicted:
    """A finding's prediction for its fix: shares of the step."""

    finding: str
    rule: str
    low: float
    expected: float
    high: float


@dataclass(frozen=True)
class Reach:
    """The reach of an intervention.

    share: of the trained parameters, None if it does not concern modules. ops: share of the finding's ops of a step
    that are gone with it, None if they were not counted."""

    times: int = 0
    modules: Sequence[str] = ()
    share: float | None = None
    sites: Sequence[tuple[str, int, str]] = ()
    made_by: Sequence[str] = ()
    ops: float | None = None
    kernels: Mapping[str, float] = field(default_factory=dict)
    """Kernels a step that are there with it alone, the most frequent."""


@dataclass(frozen=True)
class Trial:
    """An intervention, measured. gain: of the step, None if it did not apply. runs: with it."""

    intervention: str
    what: str
    verdict: Verdict
    predicted: Predicted | None = None
    also: Sequence[str] = ()
    """Further findings with the same fix."""
    why: str = ""
    gain: Gain | None = None
    runs: int = 0
    losses: Compared = NOT_RUN
    reach: Reach = field(default_factory=Reach)
    compile_s: float = 0.0
    """Time that the first steps take longer than as they are."""
    peak_memory_bytes: float = 0.0
    more_memory_bytes: float = 0.0
    what_if: bool = False
    unseen: str = ""
    advice: str = ""
    runs_to_tell: int = 0

    @property
    def in_interval(self) -> bool | None:
        """Whether the gain is within the prediction, or the intervals' ends meet; None if either is not known."""
        if self.predicted is None or self.gain is None or self.verdict in ("cannot-tell", "did-not-apply"):
            return None
        return self.predicted.low - NO_DIFFERENCE <= self.gain.expected <= self.predicted.high + NO_DIFFERENCE

    @property
    def pays_after(self) -> int | None:
        """Number of steps that pay for the start-up cost; None if nothing is gained."""
        if self.gain is None or self.verdict != "faster":
            return None
        return math.ceil(self.compile_s * 1e6 / (self.gain.before - self.gain.after))

    def to_dict(self) -> dict[str, Any]:
        step = self.gain.before if self.gain else 0.0
        return {
            "finding": self.predicted.finding if self.predicted else None,
            "rule": self.predicted.rule if self.predicted else None,
            "also": list(self.also),
            "intervention": self.intervention,
            "what": self.what,
            "applied": self.reach.times,
            "reach": {
                "modules": list(self.reach.modules), "parameters": self.reach.share, "ops": self.reach.ops, "made_by": list(self.reach.made_by),
                "sites": [{"file": file, "line": line, "change": change} for file, line, change in self.reach.sites], "kernels": dict(self.reach.kernels),
            },
            "predicted_us": _scaled(self.predicted, step) if self.predicted and step else None,
            "predicted": _scaled(self.predicted, 1.0) if self.predicted else None,
            "measured_us": _scaled(self.gain, step) if self.gain else None,
            "measured": _scaled(self.gain, 1.0) if self.gain else None,
            "inside": self.in_interval,
            "runs": self.runs,
            "losses": self.losses.verdict,
            "numerics": summary(self.losses),
            "compile_s": round(self.compile_s, 2),
            "pays_after_steps": self.pays_after,
            "peak_memory_bytes": self.peak_memory_bytes,
            "more_memory_bytes": self.more_memory_bytes,
            "verdict": self.verdict,
            "why": self.why,
            "what_if": self.what_if,
            "unseen": self.unseen,
            "advice": self.advice,
        }  # fmt: skip


@dataclass(frozen=True)
class Elsewhere:
    """A finding with a fix that cannot be applied from outside."""

    finding: str
    rule: str
    title: str
    expected: float
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Tried:
    """The whole result. base: the unchanged step, in µs by run.

    noise: of two unchanged runs, the differences of their times (as a share) and losses; None if there are none.

    together: the gain of all kept fixes. predicted_together: the report's prediction for all its fixes."""

    command: Sequence[str]
    device: str
    torch: str
    base: Sequence[Sequence[float]]
    trials: Sequence[Trial]
    kept: Sequence[str] = ()
    together: Gain | None = None
    together_losses: Compared | None = None
    predicted_together: float | None = None
    elsewhere: Sequence[Elsewhere] = ()
    time_noise: float = 0.0
    loss_noise: float | None = None
    seed: int | None = 0
    steps: tuple[int, int] = (0, 0)
    """The steps that were timed: after that number, up to that."""
    spent_s: float = 0.0
    stopped: str = ""
    """Why not all was measured, "" if it was."""
    notes: Sequence[str] = ()

    @property
    def step_us(self) -> float:
        medians = sorted(_median(run) for run in self.base if len(run))
        return _median(medians)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, as docs/try.md says it."""
        medians = sorted(_median(run) for run in self.base if len(run))
        return {
            "schema": SCHEMA,
            "kind": "try",
            "advisor": release(),
            "command": list(self.command),
            "device": self.device,
            "torch": self.torch,
            "base": {"step_us": {"low": medians[0], "expected": self.step_us, "high": medians[-1]}, "runs": len(medians), "time_noise": self.time_noise, "loss_noise": self.loss_noise},
            "trials": [trial.to_dict() for trial in self.trials],
            "kept": list(self.kept),
            "together": {"measured": _scaled(self.together, 1.0), "step_us": self.together.after, "losses": self.together_losses.verdict if self.together_losses else "not-checked"}
            if self.together
            else None,
            "predicted_together": self.predicted_together,
            "elsewhere": [{"finding": one.finding, "rule": one.rule, "title": one.title, "expected": one.expected} for one in self.elsewhere],
            "seed": self.seed,
            "timed_steps": list(self.steps),
            "spent_s": round(self.spent_s, 1),
            "stopped": self.stopped,
            "notes": list(self.notes),
        }  # fmt: skip

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def ledger(self) -> list[dict[str, Any]]:
        """Lines of a ledger of predictions and measurements, which `advisor validate` reads: of trials that say something."""
        return [
            {
                "rule": t.predicted.rule, "name": t.predicted.finding, "low": t.predicted.low, "expected": t.predicted.expected, "high": t.predicted.high,
                "measured": t.gain.expected, "measured_low": t.gain.low, "measured_high": t.gain.high, "verdict": t.verdict, "intervention": t.intervention,
                "losses": t.losses.verdict, "device": self.device, "torch": self.torch, "seed": self.seed, "advisor": release(),
                "date": time.strftime("%Y-%m-%d"),
            }
            for t in self.trials
            if t.predicted and t.gain and t.verdict in ("faster", "slower", "no-difference") and not t.what_if
        ]  # fmt: skip


def append(ledger: Path, tried: Tried) -> int:
    """Add the lines to a ledger (`accuracy.jsonl`); returns how many."""
    lines = tried.ledger()
    if lines:
        with ledger.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return len(lines)


def _scaled(range_: Gain | Predicted, by: float) -> dict[str, float]:
    return {end: getattr(range_, end) * by for end in ("low", "expected", "high")}


def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
