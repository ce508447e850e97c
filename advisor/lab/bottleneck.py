"""What holds a program up: of times by name, of attention's components, of a report or a recording."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from advisor.engine.analysis import Analysis, report_in
from advisor.errors import UsageError
from advisor.knowledge.idle import IDLE_CAUSES
from advisor.lab.attention.components import FLASH_REMOVES, AttentionProfile
from advisor.report.model import Report
from advisor.report.numbers import share
from advisor.report.recording import DeviceTime

_FUSED = " A fused kernel keeps the scores on the chip."


@dataclass(frozen=True)
class Bottleneck:
    """The slowest component, or the bound of a report's step.

    percent: of the time; NaN if the bound of a report is no share of its time.

    limit: "memory" or "compute". For a report, the bound that its headline names ("launch", "sync", …). "unknown" if it was not measured.

    intensity, ridge: FLOP per byte, of the component and of the device if its rates are known."""

    component: str
    percent: float
    limit: str
    intensity: float
    ridge: float | None
    why: str

    def __str__(self) -> str:
        takes = "" if math.isnan(self.percent) else f": {self.percent:.1f}% of the time"
        limit = "" if self.limit == "unknown" or self.component.startswith(self.limit) else f", {self.limit}-bound"
        return f"{self.component}{takes}{limit}. {self.why}".rstrip()


def identify_bottleneck(profile_results: AttentionProfile | Mapping[str, float] | Analysis | Report | str | os.PathLike[str]) -> Bottleneck:
    """The slowest component, its share, its bound, and why.

    profile_results: the result of `profile_attention_components`, or times in ms by name, or a report, or the path of a recording. A recording is analyzed. For
    a report the result is the bound of its step, with the first fix. Raises UsageError if there is no time to compare."""
    if isinstance(profile_results, AttentionProfile):
        return _of_attention(profile_results)
    if isinstance(profile_results, (Analysis, Report)):
        return _of_report(report_in(profile_results))
    if isinstance(profile_results, Mapping):
        return _of_times(profile_results)
    if isinstance(profile_results, (str, os.PathLike)):
        from advisor.engine.run import report_of

        return _of_report(report_of(profile_results))
    raise UsageError(
        f"this {type(profile_results).__name__} holds no times", "Give times in ms by name, an AttentionProfile, a Report or the path of a recording."
    )


def _of_attention(profile: AttentionProfile) -> Bottleneck:
    worst = profile.bottleneck
    percent, known = profile.share(worst), worst.bound
    intensity = worst.flops / worst.moved_bytes if worst.moved_bytes else 0.0
    fused = _FUSED if _goes_with_fusing(worst.name) else ""
    if known is None:
        why = f"It does {intensity:.3g} FLOP for each byte; the peak rates of {profile.device or 'this device'} are not known."
        return Bottleneck(worst.name, percent, "unknown", intensity, None, why + fused)
    side, most = ("below", "moving data") if known.limit == "memory" else ("above", "arithmetic")
    why = f"It does {intensity:.3g} FLOP for each byte, {side} the device's ridge point of {known.ridge:.3g}: {most} takes longest."
    return Bottleneck(worst.name, percent, known.limit, intensity, known.ridge, why + fused)


def _of_times(times: Mapping[str, float]) -> Bottleneck:
    for name, ms in times.items():
        if not isinstance(ms, Real) or not 0 <= ms < math.inf:
            raise UsageError(f"the time of {name} is {ms!r}", "Give each time in ms, 0 or more.")
    parts = {name: float(ms) for name, ms in times.items() if not _is_sum(name, times)}
    whole = sum(parts.values())
    if not whole:
        raise UsageError("none of the times is above 0" if parts else "there is no time to compare", "Give times in ms by name.")
    worst = max(parts, key=parts.__getitem__)
    fused = _FUSED if _goes_with_fusing(worst) else ""
    return Bottleneck(worst, 100 * parts[worst] / whole, "unknown", math.nan, None, f"Times alone do not tell whether memory or compute bounds it.{fused}")


def _is_sum(name: str, times: Mapping[str, float]) -> bool:
    """Whether an entry is the sum of the others, as profiles often end with: half of all, by its name and by its time."""
    return name.casefold() in ("total", "sum", "all") and len(times) > 1 and math.isclose(2 * times[name], sum(times.values()), rel_tol=0.01)


def _goes_with_fusing(name: str) -> bool:
    return name.replace("_", " ").casefold() in {removed.casefold() for removed in FLASH_REMOVES}


_CLASSES = {
    "compute-bound": "compute_us", "memory-bound": "compute_us", "gpu-bound": "compute_us", "communication-bound": "exposed_comm_us",
    "copy-bound": "exposed_copy_us",
}  # fmt: skip
"""The class of a device's time that a headline names, next to the causes of idle time."""


def _of_report(report: Report) -> Bottleneck:
    head = report.headline
    limit = head.bottleneck.removesuffix("-bound") if head.bottleneck.endswith("-bound") else "unknown"
    first = next((f for f in report.findings if f.status == "found" and not (f.folded_into or f.allowed)), None)
    why = head.summary if first is None else f"{head.summary} To begin with: {first.fix.title}."
    return Bottleneck(head.bottleneck, _percent(report), limit, math.nan, None, why)


def _percent(report: Report) -> float:
    """The part of the busiest device's time that the headline names."""
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    name = report.headline.bottleneck
    us = None if time is None else _sum_us(time, name)
    return math.nan if time is None or us is None else 100 * share(us, time.window_us - report.added_us(time))


def _sum_us(time: DeviceTime, bottleneck: str) -> float | None:
    if bottleneck in _CLASSES:
        return float(getattr(time, _CLASSES[bottleneck]))
    causes = [cause.name for cause in IDLE_CAUSES if cause.bound == bottleneck]
    return float(sum(getattr(time.idle, cause) for cause in causes)) if causes else None
