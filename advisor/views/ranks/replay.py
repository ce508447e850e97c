"""The job's replay: its schedule as recorded and as it runs when nobody records, and what edits of it would gain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.knowledge import recording_cost
from advisor.knowledge.structs import replace
from advisor.report.finding import Basis, Saving
from advisor.views.ranks.edits import HOST_PARTS, FasterHost, JobEdit, JobEdits
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.matching import Matched
from advisor.views.ranks.recorded import recorded_schedule
from advisor.views.ranks.schedule import JobSchedule
from advisor.views.ranks.summary import RankSummary
from advisor.views.replay.replay import MAX_ERROR
from advisor.views.replay.true_step import TrueStep

LEAST_WIDTH = 0.3
"""A saving's interval is at least so wide to either side: what a replay of a few steps cannot see."""


class JobReplay(msgspec.Struct, frozen=True):
    """recorded: as traced. corrected: with the profiler's own cost taken off the hosts' time. error: how far the unedited replay is
    from the recorded step, as a share. true_step: of the job, as it runs when nobody records."""

    recorded: JobSchedule
    corrected: JobSchedule
    error: float
    true_step: TrueStep

    @property
    def step_us(self) -> float:
        """The recorded step of the job, the time base of savings; the engine converts them to `true_step`."""
        return self.true_step.recorded_us

    @property
    def basis(self) -> Basis:
        return "simulated" if self.error <= MAX_ERROR else "bound"

    def share(self, schedule: JobSchedule, edit: JobEdit) -> float:
        """Share of the job's step that an edit saves."""
        before = schedule.graph.step_us()
        return max(0.0, 1 - edit.apply(schedule).graph.step_us() / before) if before > 0 else 0.0

    def most_saved(self, edit: JobEdit) -> float:
        """Maximum share of the job's step that an edit saves, whatever the replay's error: the device's remaining work stays."""
        before, working = self.corrected.graph.step_us(), [PARTS.index("compute"), PARTS.index("copy")]
        left = edit.apply(self.corrected).totals[:, working].sum(axis=1).max() / recording_cost.spread().gpu_faster
        return max(0.0, 1 - float(left) / before) if before > 0 else 0.0

    def saving(self, edits: JobEdits, removes: str, at_most_us: float = np.inf) -> Saving:
        """What a step of the job gains: expected on the corrected schedule, the ends over both; no more than `at_most_us`."""
        both = (self.corrected, self.recorded)
        middle = self.share(self.corrected, edits.expected)
        low = min(middle * (1 - LEAST_WIDTH), *(self.share(s, edits.low) for s in both))
        high = max(middle * (1 + LEAST_WIDTH), *(self.share(s, edits.high) for s in both))
        high = max(middle, min(high, self.most_saved(edits.high)))
        low, middle, high = (min(share * self.step_us, at_most_us, self.step_us) for share in (low, middle, high))
        return Saving(low if self.basis == "simulated" else 0.0, middle, high, self.basis, removes)


def replay_of(ranks: Sequence[RankSummary], matched: Matched, base_ns: int) -> JobReplay:
    """The replay of a job whose collectives are matched."""
    recorded = recorded_schedule(ranks, matched, base_ns)
    step_us = float(np.mean([s.facts.step_us for s in ranks]))
    replayed = replace(recorded.graph, host_us=np.zeros(len(ranks))).step_us()
    corrected = _corrected(recorded, ranks)
    return JobReplay(recorded, corrected, abs(replayed / step_us - 1) if step_us else 0.0, _true_step(ranks, corrected, replayed, step_us))


def _corrected(schedule: JobSchedule, ranks: Sequence[RankSummary]) -> JobSchedule:
    """The job without a profiler: a device's waits for its host shrink by the overhead of that rank's step. Most overhead hides behind the device; that only
    limits how fast the host can be.
    """
    added = np.array([s.facts.recording_us for s in ranks])
    host_us = np.minimum([s.facts.host_us for s in ranks], schedule.graph.host_us)
    return FasterHost(tuple(added.tolist()), HOST_PARTS).apply(schedule).edited(host_us=host_us)


def _true_step(ranks: Sequence[RankSummary], corrected: JobSchedule, replayed_us: float, step_us: float) -> TrueStep:
    """The recorded step by as much shorter as the corrected replay is; as uncertain as the rank of which least is known."""
    share = min(corrected.graph.step_us() / replayed_us, 1.0) if replayed_us > 0 else 1.0
    alone = [s.facts.true_step_us for s in ranks if s.facts.true_step_us.expected > 0]
    expected = step_us * share
    low, high = (reach([getattr(t, end) / t.expected for t in alone], default=1.0) for reach, end in ((min, "low"), (max, "high")))
    return TrueStep(expected * low, expected, expected * high, step_us, "estimated")
