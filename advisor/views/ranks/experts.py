"""How evenly the ranks of a job share the GEMMs of experts, step by step."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Floats
from advisor.knowledge.collectives import Collective
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.job import Job


class Experts(msgspec.Struct, frozen=True, eq=False):
    """us: (ranks, steps) time of experts' GEMMs, no ranks if fewer than two have any. at: (ranks,) positions of the ranks in the job.

    received: (ranks,) their shares of the elements that all-to-all exchanges deliver, NaN if the traces show none.
    """

    us: Floats
    at: tuple[int, ...]
    received: Floats

    @classmethod
    def build(cls, job: Job) -> Experts:
        at = tuple(place for place, one in enumerate(job.ranks) if one.facts.experts_us)
        if len(at) < 2:
            return cls(np.empty((0, 0)), (), np.empty(0))
        steps = min(len(job.ranks[place].facts.experts_us) for place in at)
        us = np.array([job.ranks[place].facts.experts_us[:steps] for place in at])
        exchange = KINDS.index(Collective.ALL_TO_ALL)
        got = np.array([np.maximum(one.received[one.kind == exchange], 0).sum() for one in (job.ranks[place] for place in at)], float)
        return cls(us, at, got / got.sum() if got.sum() > 0 else np.full(len(at), np.nan))

    @property
    def hottest(self) -> int:
        """The rank's position in `at` with most time."""
        return int(self.us.sum(axis=1).argmax())

    @property
    def hottest_steps(self) -> float:
        """The share of steps in which it has most."""
        return float((self.us.argmax(axis=0) == self.hottest).mean())

    @property
    def balance(self) -> float:
        """The mean over ranks divided by the largest, the median of steps."""
        return float(np.median(self.us.mean(axis=0) / np.maximum(self.us.max(axis=0), 1e-9)))
