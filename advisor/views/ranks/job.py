"""A job of many ranks as rules read it: its ranks' summaries, their collectives matched, its replay, and who is late and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import msgspec
import numpy as np

from advisor.errors import TraceError, Unavailable
from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.collectives import Collective
from advisor.knowledge.how_to_record import RECORD_RANKS
from advisor.knowledge.shares import MOST
from advisor.report.model import Kind
from advisor.report.ranks import Matching
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.matching import Matched, match, taken
from advisor.views.ranks.replay import JobReplay, replay_of
from advisor.views.ranks.summary import RankSummary
from advisor.views.replay.true_step import TrueStep
from advisor.views.trace.stack import Framework


class UnreadRank(msgspec.Struct, frozen=True):
    """A rank's trace that could not be used: which (its rank or file name), and why."""

    label: str
    why: str


class RankSummaries(msgspec.Struct, frozen=True):
    """The part of a job's recording: a summary per rank, by rank; unreadable ranks; messages from reading; and the candidates for its traces."""

    part_of: ClassVar[Kind] = "job"
    ranks: tuple[RankSummary, ...]
    unread: tuple[UnreadRank, ...] = ()
    notes: tuple[str, ...] = ()
    chosen: str = ""


MOST_MISSING = 1000  # names of ranks that are listed: a larger job has its count

MOST_RANKS = MOST
"""What more than this share of ranks show is so: one may have lost events."""


class Job(msgspec.Struct, frozen=True, dict=True):
    """ranks: positions are what all arrays here speak of; `numbers` gives the rank of a position. base_ns: zero of the job's clock."""

    ranks: tuple[RankSummary, ...]
    matched: Matched
    base_ns: int

    @classmethod
    def build(cls, summaries: RankSummaries) -> Job:
        ranks = tuple(sorted(summaries.ranks, key=lambda s: s.rank))
        base = min(s.facts.base_ns for s in ranks)
        return cls(ranks, match(ranks, base), base)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The rank of each position."""
        return tuple(s.rank for s in self.ranks)

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as anybody says; at least those that are here."""
        said = max((s.facts.world_size or 0 for s in self.ranks), default=0)
        return max(said, len(self.ranks), max(self.numbers) + 1)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that nobody recorded, the first `MOST_MISSING`: the size of the world is a number in a file, and may be any."""
        here = set(self.numbers)
        return tuple(islice((rank for rank in range(self.world_size) if rank not in here), MOST_MISSING))

    @cached_property
    def unmatched_ranks(self) -> tuple[int, ...]:
        """Ranks that take part in none of the collectives that others share: a trace of another program, or of another time, shows of a
        rank's part in the job as little as none."""
        joined = {*self.matched.of.tolist()}
        return tuple(number for at, number in enumerate(self.numbers) if joined and at not in joined)

    @property
    def steps(self) -> int:
        """Whole steps that every rank recorded."""
        return min(s.facts.steps for s in self.ranks)

    @cached_property
    def step_us(self) -> float:
        """Mean recorded step."""
        return float(np.mean([s.facts.step_us for s in self.ranks]))

    @cached_property
    def true_step(self) -> TrueStep:
        """The step without a profiler; the mean of the ranks' own estimates if the job cannot be replayed."""
        try:
            return self.replay.true_step
        except Unavailable:
            alone = [(one.facts.true_step_us, one.facts.step_us) for one in self.ranks]
            ends = [[min(us, recorded) for us in (true.low, true.expected, true.high)] for true, recorded in alone]
            low, expected, high = np.mean(ends, axis=0).tolist()
            return TrueStep(low, expected, high, self.step_us, "estimated") if 0 < expected < self.step_us else TrueStep.as_recorded(self.step_us)

    @cached_property
    def replay(self) -> JobReplay:
        """Raises Unavailable if the collectives are not matched, or contradict each other."""
        if not self.matched.proved:
            raise Unavailable(self.matched.said.detail, *RECORD_RANKS)
        try:
            return replay_of(self.ranks, self.matched, self.base_ns)
        except TraceError as error:
            raise Unavailable(error.message, *RECORD_RANKS) from None

    @property
    def matching(self) -> Matching:
        """The result of matching, with missing ranks."""
        import msgspec

        said, missing = self.matched.said, self.missing
        detail = said.detail
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
            unseen = self.world_size - len({number for number in self.numbers if number >= 0})
            detail += f"; no trace of {unseen} of {self.world_size} ranks ({shown}): their work is unknown"
        if apart := self.unmatched_ranks:
            alone = ", or without a trace of those that it works with" if missing else ""
            detail += f"; {common(apart, self.numbers)} in none of them: no part of this job, or recorded at another time{alone}"
        status = "degraded" if (missing or apart) and said.status == "ok" else said.status
        offset = float(np.ptp(self.matched.offsets_us)) if len(self.matched.offsets_us) else 0.0
        return msgspec.structs.replace(said, detail=detail, status=status, missing=missing, clock_offset_us=offset)

    @cached_property
    def totals(self) -> Floats:
        """(ranks, parts) µs a step, what waits and transfers take of it as communication."""
        return np.array([s.steps_us.sum(axis=0) / max(s.facts.steps, 1) for s in self.ranks])

    @cached_property
    def entry_lateness_us(self) -> Floats:
        """(entries,) how much later than the median of its collective's ranks each arrived, if it was last; else 0. Of messages 0."""
        return self._lateness_us(~self.messages)

    @cached_property
    def messages(self) -> Mask:
        """(collectives,) whether it is of messages from rank to rank."""
        return np.array([KINDS[k] is Collective.POINT_TO_POINT for k in self.matched.kind.tolist()], bool)

    def _lateness_us(self, chosen: Mask) -> Floats:
        matched = self.matched
        late = np.zeros(len(matched.of))
        if not matched.count:
            return late
        last = matched.last[chosen[matched.collective[matched.last]]]
        of_last = matched.collective[last]
        order = np.lexsort((matched.arrival_us, matched.collective))
        first = np.searchsorted(matched.collective[order], np.arange(matched.count))
        middle = order[first + (matched.size - 1) // 2]
        late[last] = matched.arrival_us[last] - matched.arrival_us[middle[of_last]]
        return late

    @cached_property
    def exposed_waits_us(self) -> Floats:
        """(ranks,) a step's waits for other ranks that nothing else runs beside."""
        transfers = self.by_rank(self.matched.transfer_us[self.matched.collective])
        waiting: Floats = np.divide(self.waits_us, np.maximum(self.waits_us + transfers, 1e-9))
        return np.maximum(self.part("communication"), 0.0) * np.clip(waiting, 0.0, 1.0)

    @cached_property
    def waits_for(self) -> tuple[Ints, Ints, Floats]:
        """Who waits for whom: the rank that waits, the last to come, and µs a step. Of each rank they sum to its exposed waits."""
        matched, n = self.matched, len(self.ranks)
        if not matched.count:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        last = matched.of[matched.last][matched.collective]
        entries = self.in_window[matched.collective] & (last != matched.of) & (matched.wait_us > 0)
        pair, where = np.unique(matched.of[entries] * n + last[entries], return_inverse=True)
        rank, late = pair // n, pair % n
        us = np.bincount(where, weights=matched.wait_us[entries], minlength=len(pair))
        whole = np.bincount(rank, weights=us, minlength=n)
        return rank, late, us * np.divide(self.exposed_waits_us, whole, out=np.zeros(n), where=whole > 0)[rank]

    @cached_property
    def waited_for_us(self) -> Floats:
        """(ranks,) what each that waits for it waits for each rank, on average, a step: no more than the step itself."""
        _, late, us = self.waits_for
        n = len(self.ranks)
        return np.bincount(late, weights=us, minlength=n) / np.maximum(np.bincount(late, minlength=n), 1)

    @cached_property
    def lateness_us(self) -> Floats:
        """(ranks,) what the median rank waited for each, a step."""
        return self.by_rank(self.entry_lateness_us)

    @cached_property
    def waits_us(self) -> Floats:
        """(ranks,) a step's waits in collectives, beside other work or not."""
        return self.by_rank(self.matched.wait_us)

    @cached_property
    def in_window(self) -> Mask:
        """(collectives,) whether steps of the window launched it, on every rank."""
        inside = np.ones(self.matched.count, bool)
        step = taken(self.ranks, self.matched.of, self.matched.row, "step")
        steps = np.array([s.facts.steps for s in self.ranks])
        inside[self.matched.collective[(step < 0) | (step >= steps[self.matched.of])]] = False
        return inside

    @cached_property
    def needed(self) -> Mask:
        """(collectives,) whether most of its ranks need what comes of it at once (`NeededSums`): it can be neither merged nor overlapped."""
        of = self.matched.collective
        at_once = np.bincount(of, weights=taken(self.ranks, self.matched.of, self.matched.row, "needed"), minlength=self.matched.count)
        return np.asarray(at_once > MOST_RANKS * self.matched.size, bool)

    @property
    def trains(self) -> bool:
        """Whether most ranks' programs train."""
        return sum(s.facts.trains for s in self.ranks) > MOST_RANKS * len(self.ranks)

    @property
    def server(self) -> str:
        """The inference server that most ranks are part of, "" if none is."""
        return str(self._common("server", ""))

    @property
    def framework(self) -> str:
        """Whose functions launch the work of most ranks, as in `Program`."""
        return str(self._common("framework", "torch"))

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        """The frameworks that word the fixes on most ranks."""
        return self._common("frameworks", ())

    def _common(self, fact: str, otherwise: Any) -> Any:
        said, count = Counter(getattr(s.facts, fact) for s in self.ranks).most_common(1)[0]
        return said if count > MOST_RANKS * len(self.ranks) else otherwise

    def by_rank(self, entries: Floats) -> Floats:
        """(ranks,) sum of a quantity of entries over the window's collectives, a step."""
        inside = self.in_window[self.matched.collective]
        return np.bincount(self.matched.of[inside], weights=entries[inside], minlength=len(self.ranks)) / max(self.steps, 1)

    def part(self, name: str) -> Floats:
        """(ranks,) µs a step of one of `PARTS`."""
        return self.totals[:, PARTS.index(name)]


def common(ranks: Sequence[int], of: Sequence[int]) -> str:
    """How many of a job's ranks something holds for, as people say it."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == len(of):
        return "both ranks" if len(of) == 2 else f"all {len(of)} ranks"
    return f"{len(ranks)} of {len(of)} ranks"
