"""Whether the steps keep the pace of something outside the program, as of a video's frames."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats
from advisor.knowledge.shares import MOST
from advisor.views.replay.replay import Replay
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

FEWEST_STEPS = 8
"""Fewer tell no spread."""


class OutsideClock(msgspec.Struct, frozen=True):
    """paces: the host pauses for most of each step, in which nothing of it was recorded, and for as much longer as the rest of a step is shorter."""

    paces: bool

    @classmethod
    def build(cls, steps: Steps, replay: Replay, program: Program) -> OutsideClock:
        if program.framework != "cuda" or not steps.repeats or steps.steps < FEWEST_STEPS:
            return cls(False)
        of_step = steps.of_host_time(replay.call_start_us)
        replayed = np.unique(of_step[(of_step >= 0) & (of_step < steps.steps)])[1:-1]  # those at the ends may be cut
        own = replay.recorded.host_us - replay.recorded.dispatch_us
        pause = np.array([own[of_step == step].sum() for step in replayed.tolist()])
        period = np.diff(steps.host_edges_us)[replayed]
        if len(replayed) < FEWEST_STEPS - 2 or np.median(pause) < MOST * np.median(period):
            return cls(False)
        return cls(bool(_spread(period) < MOST * _spread(period - pause)))


def _spread(values: Floats) -> float:
    low, high = np.percentile(values, (25, 75))
    return float(high - low)
