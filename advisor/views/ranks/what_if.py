"""The time of a job with usual op times: the cost of slow ranks, stages and kinds of op.

Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025). The ideal is the job replayed with every op at the
usual time of its kind. The slowdown S is the replayed job over the ideal. S of some ops: only these keep their times. M of some ops: the share of the
lost time that returns when only these take their usual times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.counts import SHOWN
from advisor.knowledge.structs import replace
from advisor.report.ranks import RankCost, Slowdown
from advisor.views.ranks.edits import Evened
from advisor.views.ranks.job import Job
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.schedule import JobSchedule

WORST_SHARE = 0.03
"""Of the ranks, the slowest that count as stragglers together; one at least."""

Keep: TypeAlias = Mask
"""(n,) of ops."""


def usual_us(took_us: Floats, kind: Ints, moves: Mask) -> Floats:
    """(n,) what ops of each kind usually take: the mean, and of those that move data the median, since a few transfers hang."""
    made = np.empty(len(took_us))
    for one in np.unique(kind):
        of = kind == one
        made[of] = np.median(took_us[of]) if moves[of].all() else took_us[of].mean()
    return made


@dataclass(frozen=True)
class ChangedDurations:
    """took_us, usual_us: (n,) of ops. time_us: the job's time for given op times."""

    took_us: Floats
    usual_us: Floats
    time_us: Callable[[Floats], float]

    @cached_property
    def original_us(self) -> float:
        return self.time_us(self.took_us)

    @cached_property
    def ideal_us(self) -> float:
        return self.time_us(self.usual_us)

    @property
    def slowdown(self) -> float:
        """S of all ops."""
        return self.original_us / self.ideal_us if self.ideal_us > 0 else 1.0

    def slowdown_of(self, ops: Keep) -> float:
        """S where only these ops keep their times."""
        return self.time_us(np.where(ops, self.took_us, self.usual_us)) / self.ideal_us if self.ideal_us > 0 else 1.0

    def explained_by(self, ops: Keep) -> float:
        """M: of what the job loses against the ideal, the share that returns when only these ops take their usual times."""
        lost = self.original_us - self.ideal_us
        fixed = self.time_us(np.where(ops, self.usual_us, self.took_us))
        return (self.original_us - fixed) / lost if lost > 0 else 0.0


def of_job(job: Job) -> Slowdown:
    """The slowdown of a recorded job: by part of the ranks' time and by rank. Raises Unavailable if it cannot be replayed."""
    replay = job.replay
    if replay.basis != "simulated":
        raise Unavailable(f"the unedited replay is {replay.error:.0%} from the recorded step", "record more steps")
    schedule = replay.corrected
    even = Evened().apply(schedule)
    transfer = _usual_transfers(job, schedule)
    segments = len(schedule.own)

    def time_us(took: Floats) -> float:
        return replace(schedule.graph, dur_us=took).step_us()

    # Hosts' own bounds are those of the even job: whose host is slower shows in its segments.
    schedule = schedule.edited(host_us=even.graph.host_us)
    usual = np.r_[even.own.sum(axis=1), transfer]
    took = schedule.graph.dur_us
    made = ChangedDurations(took, usual, time_us)
    by_rank = _by_rank(made, schedule, job)
    worst = [row.rank for row in by_rank[: max(1, round(WORST_SHARE * len(job.ranks)))]]
    positions = [job.numbers.index(rank) for rank in worst]
    return Slowdown(
        slowdown=made.slowdown,
        by_part={
            **{part: _of_parts(made, schedule, even.own, parts) for part, parts in _PARTS.items()},
            "transfer": made.slowdown_of(np.r_[np.zeros(segments, bool), np.ones(len(transfer), bool)]),
        },
        by_rank=tuple(by_rank[:SHOWN]),
        worst_ranks=tuple(worst),
        explained_by_worst=made.explained_by(np.r_[np.isin(schedule.segment_rank, positions), np.zeros(len(transfer), bool)]),
    )


_PARTS = {"compute": ("compute",), "input": ("data-loading",), "host": ("host", "launch", "sync"), "copy": ("copy",)}


def _of_parts(made: ChangedDurations, schedule: JobSchedule, even: Floats, parts: tuple[str, ...]) -> float:
    """S where only these parts of the ranks' own time are as they were."""
    own = even.copy()
    chosen = [PARTS.index(part) for part in parts]
    own[:, chosen] = schedule.own[:, chosen]
    return made.time_us(np.r_[own.sum(axis=1), made.usual_us[len(own) :]]) / made.ideal_us if made.ideal_us > 0 else 1.0


def _by_rank(made: ChangedDurations, schedule: JobSchedule, job: Job) -> list[RankCost]:
    """The ranks with most own time, each with the slowdown that it alone makes; largest first."""
    nodes = len(made.took_us)
    order = np.argsort(-np.bincount(schedule.segment_rank, weights=made.took_us[: len(schedule.own)], minlength=len(job.ranks)), kind="stable")
    rows = []
    for at in order[: 2 * SHOWN].tolist():
        mine = np.zeros(nodes, bool)
        mine[: len(schedule.own)] = schedule.segment_rank == at
        rows.append(RankCost(rank=job.numbers[at], slowdown=made.slowdown_of(mine)))
    return sorted(rows, key=lambda row: (-row.slowdown, row.rank))


def _usual_transfers(job: Job, schedule: JobSchedule) -> Floats:
    """(k,) the median transfer of collectives of the same kind, group and size."""
    matched, number = job.matched, schedule.collective
    known = number >= 0
    usual = schedule.transfer_us.copy()
    if known.any():
        keys = np.column_stack([matched.kind, matched.group, matched.bytes])[number[known]]
        _, kind = np.unique(keys, axis=0, return_inverse=True)
        usual[known] = usual_us(schedule.transfer_us[known], kind.reshape(-1), np.ones(int(known.sum()), bool))
    return usual
