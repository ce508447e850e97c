"""Whether a run computes the same as the program: its losses, first gradients, first updates or outputs, compared with two unchanged runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY, LITTLE
from advisor.lab.interventions.catalogue import Numerics
from advisor.lab.trying.start import Ran

Verdict = Literal["equal", "differs", "not-checked"]

UNIT: Mapping[str, float] = {"exact": 0.0, "rounding": 2.0**-23, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""The size of a rounding, in the type that an intervention may compute in; nothing if it changes no arithmetic."""

HALF: Mapping[str, float] = {"bfloat16": UNIT["bf16"], "float16": UNIT["tf32"], "tf32": UNIT["tf32"]}
"""The same of a program that computes in such a type by itself: in it the order of a sum shows."""

OF_LOSS, OF_GRADIENT = 16, 64
"""Roundings that a loss, a mean over many, and a gradient, a long chain, may be off in relative norm. On deep models in bfloat16 gradients are some 2 to 10 % off, 5 to
25 roundings."""

NOISE = 4
"""A difference up to this multiple is no sign of a fault. The base is the difference of two unchanged runs, or the effect of a rounding."""

FLOOR = 1e-6
"""Below it numbers that were computed in single precision are equal."""

OF_UPDATE: Mapping[str, float] = {"exact": 0.01, "rounding": HARDLY_ANY, "tf32": LITTLE, "bf16": CONSIDERABLE}
"""Tolerated change in length of the first updates, as a share. A missing update changes it by a half of two, a third of three, a quarter of four."""

UNTELLING = 1.0
"""Gradients that may differ by their own length say nothing."""

CHAOTIC = HARDLY_ANY
"""If a rounding moves a program's losses by more, its first gradients and the size of that movement decide."""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison.

    difference: the largest relative difference of a loss (or output). allowed: the tolerance.

    gradients: difference of the first step's gradients, None if there are none. why: in words, if they differ or were not checked."""

    verdict: Verdict
    difference: float | None = None
    allowed: float | None = None
    gradients: float | None = None
    why: str = ""
    needs_nudge: bool = False
    """Whether a run from nudged parameters is needed to decide: the losses drift apart, and the first step does not differ."""


def compare(base: Ran, twin: Ran, trial: Ran, numerics: Numerics, nudged: Ran | None = None) -> Compared:
    """base, twin: two unchanged runs. nudged: a run with parameters moved by a rounding at the start."""
    if numerics == "other":
        return Compared("not-checked", why="it is another training")
    if failed := next((ran.said["watch_failed"] for ran in (base, twin, trial) if ran.said["watch_failed"]), ""):
        return Compared("not-checked", why=f"the losses could not be kept: {failed}")
    unit = UNIT[numerics] if numerics == "exact" else max(UNIT[numerics], HALF.get(base.said["half"], 0.0))
    if base.said["losses"] or base.said["samples"]:
        return _trained(base, twin, trial, numerics, unit, nudged)
    if base.said["outputs"]:
        return _inferred(base, twin, trial, unit)
    return Compared("not-checked", why="backward was called on no scalar, and no outermost module returned a tensor")


def nudge_of(base: Ran, numerics: Numerics) -> float:
    """The size by which a run's parameters are moved to see the effect of a rounding."""
    return max(UNIT.get(numerics, 0.0), HALF.get(base.said["half"], 0.0), UNIT["rounding"])


def _trained(base: Ran, twin: Ran, trial: Ran, numerics: Numerics, unit: float, nudged: Ran | None) -> Compared:
    gradients = _first_gradients(base, trial)
    noise = max(_first_gradients(base, twin) or 0.0, (_first_gradients(base, nudged) or 0.0) if nudged else 0.0)
    allowed = max(OF_GRADIENT * unit, NOISE * noise, FLOOR)
    drift, own = _drift(base, trial), _drift(base, twin)
    difference = float(drift[-1]) if len(drift) else None
    if not len(drift) and gradients is None:
        return Compared("not-checked", why="the two sides have no loss and no gradient in common")
    if gradients is not None and not gradients <= allowed:
        why = f"the first step's gradients differ by {gradients:.2g} in relative norm, of {allowed:.2g} allowed"
        return Compared("differs", difference, None, gradients, why, needs_nudge=nudged is None)
    if gradients is not None and allowed >= UNTELLING and nudged is not None:
        why = f"a nudge of one rounding changes this program's first gradients by {noise:.2g} in relative norm: nothing can be told from them"
        return Compared("not-checked", difference, None, gradients, why)
    if why := _updates(base, twin, trial, numerics, unit):
        return Compared("differs", difference, None, gradients, why)
    if not len(drift):
        return Compared("equal", None, None, gradients)
    bound = np.maximum(max(OF_LOSS * unit, FLOOR), NOISE * _padded(own, len(drift)))
    if nudged is not None:
        bound = np.maximum(bound, NOISE * _padded(_drift(base, nudged), len(drift)))
    most = float(bound[-1])
    over = np.flatnonzero(~(drift <= bound))
    if not len(over):
        chaotic = nudged is not None and most / NOISE > CHAOTIC
        return Compared(
            "equal",
            difference,
            most,
            gradients,
            "a nudge of one rounding moves this program's losses as far: judged by its first gradients and by that" if chaotic else "",
        )
    number = int(over[0])
    why = f"loss {number + 1} of {len(drift)} differs by {float(drift[number]):.2g}, of {float(bound[number]):.2g} allowed"
    return Compared("differs", difference, most, gradients, why, needs_nudge=nudged is None)


def _inferred(base: Ran, twin: Ran, trial: Ran, unit: float) -> Compared:
    sides = [ran.said["outputs"] for ran in (base, twin, trial)]
    apart = max((_norm(a, b) for a, b in zip(sides[0], sides[2], strict=False)), default=None)
    if apart is None:
        return Compared("not-checked", why="the outermost module returned no tensor")
    noise = max((_norm(a, b) for a, b in zip(sides[0], sides[1], strict=False)), default=0.0)
    allowed = max(OF_GRADIENT * unit, NOISE * noise, FLOOR)
    if apart <= allowed:
        return Compared("equal", apart, allowed)
    return Compared("differs", apart, allowed, why=f"outputs differ by {apart:.2g} in relative norm, of {allowed:.2g} allowed")


def _first_gradients(one: Ran, other: Ran) -> float | None:
    """The largest relative difference of the first gradients of an optimizer."""
    names = [name for name in one.said["samples"] if name.endswith("/gradients/0") and name in other.said["samples"]]
    return max((_norm(one.said["samples"][name], other.said["samples"][name]) for name in names), default=None)


def _norm(base: Sequence[float], other: Sequence[float]) -> float:
    """|other - base| / |base|; infinite if they cannot be compared, 0 if both are empty."""
    if len(base) != len(other):
        return float("inf")
    a, b = np.asarray(base, float), np.asarray(other, float)
    if not (np.isfinite(a) == np.isfinite(b)).all():
        return float("inf")
    finite = np.isfinite(a)
    a, b = a[finite], b[finite]
    size = float(np.linalg.norm(a))
    apart = float(np.linalg.norm(b - a))
    return apart / size if size else float("inf") if apart else 0.0


def _updates(base: Ran, twin: Ran, trial: Ran, numerics: Numerics, unit: float) -> str:
    """Why the first updates are not those of the program, "" if they are."""
    allowed = next(OF_UPDATE[name] for name in OF_UPDATE if unit <= UNIT[name]) if unit <= UNIT["bf16"] else OF_UPDATE["bf16"]
    for number in range(4):
        start = f"{number}/parameters/0"
        if not all(start in ran.said["samples"] for ran in (base, twin, trial)):
            break
        for step in range(1, 5):
            moved = [_moved(ran, start, f"{number}/parameters/{step}") for ran in (base, twin, trial)]
            if any(one is None for one in moved):
                break
            was, again, now = moved
            assert was is not None and again is not None and now is not None
            if not was:
                if now:
                    return f"step {step} of optimizer {number + 1} moves parameters, and as it is it moves none"
                continue
            ratio, own = now / was, abs(again / was - 1)
            if not abs(ratio - 1) <= max(allowed, NOISE * own):
                return f"after step {step} of optimizer {number + 1} the parameters have moved {ratio:.3g} times as far as they should"
    return ""


def _moved(ran: Ran, start: str, end: str) -> float | None:
    samples = ran.said["samples"]
    if end not in samples or len(samples[start]) != len(samples[end]):
        return None
    return float(np.linalg.norm(np.asarray(samples[end], float) - np.asarray(samples[start], float)))


def _drift(base: Ran, other: Ran) -> np.ndarray:
    """The largest relative difference of the losses up to each. It is relative to the loss, or to a tenth of the usual loss if it is near 0."""
    count = min(len(base.said["losses"]), len(other.said["losses"]))
    a, b = (np.asarray(ran.said["losses"][:count], float) for ran in (base, other))
    if not count:
        return np.zeros(0)
    finite = np.abs(a[np.isfinite(a)])
    usual = float(np.median(finite)) if len(finite) else 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(b - a) / np.maximum(np.abs(a), max(0.1 * usual, 1e-30))
    both = ~np.isfinite(a) & ~np.isfinite(b)
    apart[both] = 0.0
    apart[~np.isfinite(apart)] = np.inf
    return np.maximum.accumulate(apart)


def _padded(drift: np.ndarray, count: int) -> np.ndarray:
    """As long as another: from its end on it stays as it is."""
    if not len(drift):
        return np.zeros(count)
    return drift[np.minimum(np.arange(count), len(drift) - 1)]


def loss_noise(base: Ran, twin: Ran) -> float | None:
    """By how much the losses of two runs as they are differ; None if there are none."""
    drift = _drift(base, twin)
    return float(drift[-1]) if len(drift) else None


def summary(compared: Compared) -> dict[str, Any]:
    """For JSON: numbers that are not finite are left out."""
    finite = {key: value for key in ("difference", "allowed", "gradients") if (value := getattr(compared, key)) is not None and np.isfinite(value)}
    return {"verdict": compared.verdict, "why": compared.why, **finite}
