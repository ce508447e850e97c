"""The true step without a profiler, and other knowledge of the program next to the trace."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import Mask
from advisor.knowledge import recording_cost
from advisor.knowledge.shares import FAR_APART, LITTLE
from advisor.recordings.timeline import Timeline
from advisor.report.recording import Prediction
from advisor.views.replay.recording_cost import HostCost
from advisor.views.replay.schedule import Schedule
from advisor.views.replay.simulate import period_us

CONTRADICT = FAR_APART
"""Steps by the two estimates alone that differ by more than this factor: the recording cannot tell which is right."""


SLOWED = LITTLE
"""Recording that takes less than a tenth of a step changes no verdict."""


CALIBRATED = LITTLE
"""The tolerated distance between a given step time and the nearest possible one."""


class Timed(msgspec.Struct, frozen=True):
    """A step timed without a profiler, compared with the trace. us: the median. reached_us: the nearest step time that the trace allows at any overhead.
    working_us, recorded_us: kernel time of a device in the trace's step, and the recorded length of that step.
    """

    us: float
    reached_us: float
    working_us: float
    recorded_us: float

    @property
    def error(self) -> float:
        """How far the trace's step stays from it."""
        return abs(self.reached_us / self.us - 1)

    @property
    def shorter(self) -> bool:
        """Whether not even the kernels fit into it: it is not the trace's step, for certain."""
        return self.us < (1 - CALIBRATED) * self.working_us

    @property
    def longer(self) -> bool:
        """Whether it is longer than the step was recorded, which recording makes no shorter: what takes that time is not in the trace."""
        return 0 < (1 + CALIBRATED) * self.recorded_us < self.us


class TrueStep(msgspec.Struct, frozen=True):
    """low_us, expected_us, high_us: the step without a profiler; a measured step has only its own spread.

    recorded_us: the step in the trace. alone_us: the step by each of the two estimates of host time alone, the trace's first. timed: the measured step, if
    any. It is not used if the trace's step cannot take so little or so much time, since their shares differ.
    """

    low_us: float
    expected_us: float
    high_us: float
    recorded_us: float
    basis: Literal["measured", "estimated", "recorded"]
    alone_us: tuple[float, ...] = ()
    timed: Timed | None = None

    @property
    def recording_us(self) -> float:
        """Profiler overhead in a step."""
        return max(self.recorded_us - self.expected_us, 0.0)

    @property
    def slowed(self) -> bool:
        """Whether the recorded step is too long to show the bottleneck of the true step."""
        return self.recording_us >= SLOWED * self.recorded_us

    @property
    def interval(self) -> Prediction:
        """As a report holds it."""
        return Prediction(self.low_us, self.expected_us, self.high_us)

    @property
    def in_trace_us(self) -> float:
        """The step that shares of the trace's own times refer to. A measured step may be longer than recorded, or shorter than its kernels, by up to
        `CALIBRATED`; shares of it would be of another step.
        """
        least_us = self.timed.working_us if self.timed and self.basis == "measured" else 0.0
        return max(min(self.expected_us, self.recorded_us), least_us)

    @property
    def unused_us(self) -> float:
        """The step time that was measured and not used, 0 if there is none."""
        return self.timed.us if self.timed and self.basis != "measured" else 0.0

    @property
    def contradictory(self) -> bool:
        """Whether the two estimates cannot both be near the truth."""
        return len(self.alone_us) > 1 and max(self.alone_us) > CONTRADICT * min(self.alone_us)

    @classmethod
    def measured(cls, steps_us: tuple[float, ...], recorded_us: float) -> TrueStep:
        """From steps that were timed without a profiler: their median, and what four of five of them lie within."""
        low, middle, high = (float(q) for q in np.percentile(steps_us, (10, 50, 90)))
        return cls(low, middle, high, recorded_us, "measured")

    @classmethod
    def estimated(
        cls,
        recorded_us: float,
        recorded: Schedule,
        fastest: Schedule,
        corrected: Schedule,
        slowest: Schedule,
        cost: HostCost,
        working_us: float,
        staged: Mask,
        spread: recording_cost.Spread,
    ) -> TrueStep:
        """From replays of the schedule with the lowest, expected and highest host time.

        working_us: kernel time of a device per step; streams of a replay overlap as if each had the device alone. staged: (n,) copies that the host moves.

        A replay shorter than the recorded step misses something, with and without the profiler. A longer replay is right: the recorded steps still used up
        queued work. The step exceeds its recorded time only by the GPU's work, since recording adds only host time.
        """
        before = period_us(recorded)
        scale = max(recorded_us / before, 1.0) if before > 0 else 1.0
        # The GPU's work, too, takes another time in another run, and what held it up for no reason may not be there.
        held_up = (fastest.after < 0) & (fastest.gap_us > spread.gap_us)
        faster = fastest.edit(dur_us=fastest.dur_us / np.where(staged, spread.staged_faster, spread.gpu_faster), gap_us=np.where(held_up, 0.0, fastest.gap_us))
        slower, warmer = (s.edit(dur_us=s.dur_us * spread.gpu_slower) for s in (slowest, recorded))
        low, high = (scale * period_us(schedule) for schedule in (faster, slower))
        most = recorded_us + scale * (period_us(warmer) - before)
        low, high = max(low, working_us / spread.gpu_faster), min(high, most)
        expected = min(max(scale * period_us(corrected), working_us), recorded_us)
        return cls(
            min(low, expected),
            expected,
            max(high, expected),
            recorded_us,
            "estimated",
            tuple(scale * period_us(cost.left_in(recorded, us)) for us in cost.estimates_us),
        )

    @classmethod
    def as_recorded(cls, recorded_us: float) -> TrueStep:
        """With unknown profiler overhead: the GPU's own variation."""
        spread = recording_cost.spread()
        return cls(recorded_us / spread.gpu_faster, recorded_us, recorded_us * spread.gpu_slower, recorded_us, "recorded")


class Calibration(msgspec.Struct, frozen=True):
    """steps_us: step times measured without a profiler; empty if nobody measured any."""

    steps_us: tuple[float, ...] = ()

    @classmethod
    def build(cls, timeline: Timeline) -> Calibration:
        """The measurement that `advisor record` wrote into the trace."""
        return cls(timeline.source.unprofiled_step_us)
