"""What a step is in the profile of a TPU: as marked, else the program that runs again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.intervals import Floats
from advisor.knowledge.shares import LITTLE, MOST
from advisor.recordings.tpu import TpuCore, TpuProfile
from advisor.views.trace.repeats import FEWEST_REPEATS

MOST_OF_TIME = MOST
"""A step is made of the program that takes most of all programs' time: a small one that repeats is a helper of another."""
ALIKE = LITTLE
"""Median deviation from the median period above which steps are of several kinds."""


@dataclass(frozen=True)
class TpuSteps:
    """The window of whole steps, in µs, the same for all cores. period_us: of each step; of the whole profile if nothing repeats."""

    start_us: float
    end_us: float
    basis: Literal["profiler-step", "detected", "whole"]
    detail: str
    period_us: Floats

    @property
    def steps(self) -> int:
        return len(self.period_us)

    @property
    def spread(self) -> float:
        """How far periods are from their median, in the median, as a share of it."""
        usual = float(np.median(self.period_us))
        return float(np.median(np.abs(self.period_us - usual))) / max(usual, 1e-9)

    @classmethod
    def build(cls, profile: TpuProfile) -> TpuSteps:
        """The steps of the first core that has any."""
        return next((found for core in profile.cores for find in (_marked, _repeated) if (found := find(core, profile))), None) or _whole(profile)


def _marked(core: TpuCore, profile: TpuProfile) -> TpuSteps | None:
    marks = core.steps
    if not len(marks):
        return None
    edges = np.r_[marks.start_us, marks.end_us[-1]]
    return TpuSteps(float(edges[0]), float(edges[-1]), "profiler-step", "", np.diff(edges))


def _repeated(core: TpuCore, profile: TpuProfile) -> TpuSteps | None:
    runs = core.programs
    if not len(runs):
        return None
    spent = np.bincount(runs.what, weights=runs.end_us - runs.start_us, minlength=len(profile.programs))
    main = int(spent.argmax())
    start = runs.start_us[runs.what == main]
    if len(start) < FEWEST_REPEATS or spent[main] < MOST_OF_TIME * spent.sum():
        return None
    # The period is given, by the main program's runs: there is none to look for in the sequence of programs.
    # The last run ends the window: what follows it holds the end of the profile.
    return TpuSteps(float(start[0]), float(start[-1]), "detected", f"from each run of {profile.programs[main]} to the next", np.diff(start))


def _whole(profile: TpuProfile) -> TpuSteps:
    lines = [line for core in profile.cores for line in (core.programs, core.ops) if len(line)]
    start, end = min(float(line.start_us.min()) for line in lines), max(float(line.end_us.max()) for line in lines)
    return TpuSteps(start, end, "whole", "", np.array([end - start]))
