"""Questions asked of the trace before any advice: can it carry it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.report import Health
from advisor.timeline import Timeline
from advisor.views.launches import Launches
from advisor.views.replay import MAX_ERROR, Replay
from advisor.views.steps import Steps

CAUSALITY_SLACK_US = 5.0
"""A GPU op may seem to start this much before its launch: host and device clocks are aligned by sampling."""

STEP_SPREAD = 0.25
"""Steps that differ by more than this share of their mean have no representative."""

USELESS_ERROR = 0.5
"""A replay that is off by half reproduces nothing: no saving can be told from it."""


@dataclass(frozen=True)
class Checks:
    """Every check with its answer, in a fixed order."""

    results: tuple[Health, ...]

    @property
    def failed(self) -> tuple[Health, ...]:
        """Checks that leave nothing to trust: no rule may speak."""
        return tuple(h for h in self.results if h.status == "failed")

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, steps: Steps, replay: Replay) -> Checks:
        return cls(
            (
                _reading(timeline, "complete-file", "every event of the file was read"),
                _reading(timeline, "timestamps", "no event has a time that cannot be read"),
                _reading(timeline, "graph-trace", "no CUDA graph was recorded as a whole"),
                _reading(timeline, "durations", "no event has a negative or absurd duration"),
                _causality(timeline, launches),
                _links(timeline, launches, steps),
                _steps(steps),
                _replay(timeline, replay),
            )
        )


def _reading(timeline: Timeline, check: str, good: str) -> Health:
    issues = [i for i in timeline.source.issues if i.check == check]
    if not issues:
        return Health(check=check, status="ok", detail=good)
    failed = any(i.status == "failed" for i in issues)
    return Health(check=check, status="failed" if failed else "degraded", detail="; ".join(i.detail for i in issues))


def _causality(timeline: Timeline, launches: Launches) -> Health:
    check = "clock-causality"
    known = ~np.isnan(launches.start_us)
    if not known.any():
        return Health(check=check, status="ok", detail="no launches recorded, so nothing to compare")
    early = launches.start_us[known] - timeline.gpu_ops["start_us"].to_numpy()[known]
    bad = int((early > CAUSALITY_SLACK_US).sum())
    if not bad:
        return Health(check=check, status="ok", detail="every GPU op starts after the call that launched it")
    share = bad / int(known.sum())
    return Health(
        check=check,
        status="failed" if share > 0.05 else "degraded",
        detail=f"{bad} of {int(known.sum())} GPU ops start before their launch, by up to {early.max():.0f} µs: "
        "host and device clocks disagree, so gaps cannot be blamed on the host",
    )


def _links(timeline: Timeline, launches: Launches, steps: Steps) -> Health:
    check = "launch-links"
    start = timeline.gpu_ops["start_us"].to_numpy()
    inside = (start >= steps.start_us) & (start < steps.end_us)
    if not inside.any():
        return Health(check=check, status="ok", detail="the window holds no GPU work")
    linked = float((launches.call[inside] >= 0).mean())
    if launches.ambiguous:
        return Health(
            check=check,
            status="degraded",
            detail=f"{launches.ambiguous} GPU ops share a correlation id with several launches: is this a merge of several ranks?",
        )
    if linked < 0.7:
        return Health(
            check=check,
            status="degraded",
            detail=f"only {linked:.0%} of GPU ops have their launch in the trace; record CPU and CUDA activities together",
        )
    return Health(check=check, status="ok", detail=f"{linked:.0%} of GPU ops are tied to the call that launched them")


def _steps(steps: Steps) -> Health:
    check = "steps"
    if steps.basis == "whole":
        return Health(check=check, status="degraded", detail=f"{steps.detail}; record with a schedule and prof.step()")
    if steps.steps < 2:
        return Health(
            check=check, status="degraded", detail=f"{steps.detail}; a mean of one step may mislead: record three or more"
        )
    spread = float(np.ptp(steps.periods_us)) / max(steps.step_us, 1e-9)
    detail = f"{steps.steps} whole steps, {steps.periods_us.min() / 1000:.2f} to {steps.periods_us.max() / 1000:.2f} ms"
    if spread > STEP_SPREAD:
        return Health(check=check, status="degraded", detail=f"{detail}: they differ, so no step stands for all")
    return Health(check=check, status="ok", detail=detail)


def _replay(timeline: Timeline, replay: Replay) -> Health:
    check = "replay"
    if not len(timeline.gpu_ops):
        return Health(check=check, status="ok", detail="no GPU work to replay")
    return Health(
        check=check,
        status="ok" if replay.error <= MAX_ERROR else "degraded" if replay.error <= USELESS_ERROR else "failed",
        detail=f"the replayed step is {replay.error:.1%} off the recorded one",
    )
