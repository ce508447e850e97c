"""The rank that holds a job up, and why: found by replaying the job with each candidate as fast as the others."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.knowledge.collectives import Collective
from advisor.knowledge.shares import HARDLY_ANY, MOST, NEARLY_ALL
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.edits import OWN, MedianParts
from advisor.views.ranks.job import Job
from advisor.views.ranks.lane import PARTS

CANDIDATES = 4
"""Ranks by lateness, and as many by their own work, that are replayed individually: a job rarely waits for more."""

CAUSES: dict[str, tuple[str, ...]] = {"compute": ("compute", "other"), "data-loading": ("data-loading",), "host": ("host", "launch", "sync"), "copy": ("copy",)}
"""Name of an excess, and the parts of a rank's time that it sums."""

STEADY = MOST
"""A rank holds the job up steadily where its excess in every step is at least this share of its mean excess."""

SAME_WORK = 1 + HARDLY_ANY
"""Ranks do the same work where kernels and threads they launch differ by less than this factor."""


class Culprit(msgspec.Struct, frozen=True):
    """at: position of the rank. gain: share of the job's step saved with this rank at the median of the others. by_cause: the same for each cause alone.
    excess_us: per step without a profiler, by cause. steady: in every step. late_share: of all lateness in collectives; 1 if only messages join the ranks. A
    rank that nobody waits for is no culprit. uneven_work: more work (kernels, threads or tokens), not slower work. conserved: work that the others would get
    instead: tokens of experts, pipeline layers. dispatch: the host's excess is launch overhead all over the step, which recording adds to; not CPU code at a
    certain place. guessed: the host's excess counts as waiting for input because it is between steps, and the trace has no framework ranges.
    """

    at: int
    gain: float
    by_cause: dict[str, float]
    excess_us: dict[str, float]
    steady: bool
    late_share: float
    uneven_work: bool
    conserved: bool
    dispatch: bool
    guessed: bool

    @property
    def cause(self) -> str:
        """The cause that explains most; `imbalance` where the rank has more to compute, not slower kernels."""
        most = max(self.by_cause, key=lambda c: (self.by_cause[c], self.excess_us[c]))
        if most == "host" and self.guessed:
            return "data-loading"
        return "imbalance" if most == "compute" and self.uneven_work else most

    @property
    def explained(self) -> float:
        """Share of the gain that its largest cause alone reaches."""
        return max(self.by_cause.values()) / self.gain if self.gain > 0 else 0.0

    @classmethod
    def build(cls, job: Job) -> Culprit:
        replay = job.replay
        own = job.totals[:, [PARTS.index(part) for part in OWN]].sum(axis=1)
        candidates = {*np.argsort(-job.lateness_us)[:CANDIDATES].tolist(), *np.argsort(-own)[:CANDIDATES].tolist()}
        gains = {at: replay.share(replay.corrected, MedianParts(ranks=(at,))) for at in sorted(candidates)}
        at = max(gains, key=lambda r: (gains[r], job.lateness_us[r]))
        by_cause = {c: replay.share(replay.corrected, MedianParts(ranks=(at,), parts=parts)) for c, parts in CAUSES.items()}
        uneven = _more_work(job, at)
        if uneven:
            # With less to do its host issues less too: all of its excess is of the work.
            by_cause["compute"] = gains[at]
        excess = {c: _excess(job, at, parts) for c, parts in CAUSES.items()}
        idle = {part: _excess(job, at, (part,)) for part in ("host", "launch", "sync")}
        return cls(
            at=at,
            gain=gains[at],
            by_cause=by_cause,
            excess_us={c: _excess(job, at, parts, replay.corrected.totals) for c, parts in CAUSES.items()},
            steady=_steady(job, at, CAUSES[max(by_cause, key=lambda c: (by_cause[c], excess[c]))]),
            late_share=float(job.lateness_us[at] / job.lateness_us.sum()) if job.lateness_us.sum() > 0 else 1.0,
            uneven_work=uneven,
            conserved=bool({KINDS[k] for k in job.matched.kind.tolist()} & {Collective.ALL_TO_ALL, Collective.POINT_TO_POINT}),
            guessed=_between_steps(job, at, excess["host"]),
            dispatch=idle["launch"] > max(idle["host"], 0.0) + max(idle["sync"], 0.0)
            and _in_one_place(job, at) < IN_ONE_PLACE * gains[at] * job.true_step.expected_us,
        )


def _other_ranks(values: np.ndarray, at: int) -> float:
    return float(np.median(np.delete(values, at))) if len(values) > 1 else float(values[at])


def _excess(job: Job, at: int, parts: tuple[str, ...], totals: np.ndarray | None = None) -> float:
    """Time per step that the rank spends on these parts beyond the median of the others: by (ranks, parts) totals, as recorded if None."""
    spent = (job.totals if totals is None else totals)[:, [PARTS.index(part) for part in parts]].sum(axis=1)
    return float(spent[at]) - _other_ranks(spent, at)


BETWEEN = NEARLY_ALL
"""A host that is late mostly between steps, if nothing was launched yet, is waiting for what the step begins with."""


def _between_steps(job: Job, at: int, excess_us: float) -> bool:
    """Whether the rank's host loses its time before the first op of each step, in a trace that would not say for what."""
    before = np.array([s.facts.between_steps_us for s in job.ranks])
    return not job.ranks[at].facts.shows_loader and float(before[at]) - _other_ranks(before, at) >= BETWEEN * excess_us > 0


IN_ONE_PLACE = BETWEEN
"""A host that loses so much of the gain between two collectives does something there; one that is slow at everything loses it all over."""


def _in_one_place(job: Job, at: int) -> float:
    """The most that the rank's host does beyond the median of the others between two collectives, µs, in the step if that is least."""
    schedule = job.replay.corrected
    spent = schedule.stretches[:, :, PARTS.index("host")]
    excess = spent[at] - np.median(np.delete(spent, at, axis=0), axis=0)
    mine = schedule.segment_rank == at
    most = np.zeros(job.steps)
    step = np.clip(job.ranks[at].segment_step, 0, job.steps - 1)
    np.maximum.at(most, step, excess[schedule.stretch[mine]])
    return float(most.min())


def _steady(job: Job, at: int, parts: tuple[str, ...]) -> bool:
    """Whether the excess is there in each step, not in some."""
    chosen = [PARTS.index(part) for part in parts]
    steps = min(len(s.steps_us) for s in job.ranks)
    spent = np.array([s.steps_us[:steps, chosen].sum(axis=1) for s in job.ranks])
    excess = spent[at] - np.median(np.delete(spent, at, axis=0), axis=0)
    return bool(excess.min() >= STEADY * excess.mean() > 0)


def _more_work(job: Job, at: int) -> bool:
    for of in ("kernels", "threads"):
        values = np.array([getattr(s.facts, of) for s in job.ranks])
        if values[at] > SAME_WORK * _other_ranks(values, at) > 0:
            return True
    received = received_by(job)
    return _hot_experts(job, at) or bool(received[at] > SAME_WORK * _other_ranks(received, at) > 0)


def _hot_experts(job: Job, at: int) -> bool:
    """Whether its experts' GEMMs alone take longer: a slow GPU needs longer for everything."""
    experts = np.array([np.mean(one.facts.experts_us or (0.0,)) for one in job.ranks])
    others = job.part("compute") - experts
    return bool(experts[at] > SAME_WORK * _other_ranks(experts, at) > 0 and others[at] <= SAME_WORK * _other_ranks(others, at))


def received_by(job: Job) -> np.ndarray:
    """(ranks,) elements that each gets in exchanges of all with all."""
    exchange = KINDS.index(Collective.ALL_TO_ALL)
    return np.array([float(np.maximum(s.received[s.kind == exchange], 0).sum()) for s in job.ranks])
