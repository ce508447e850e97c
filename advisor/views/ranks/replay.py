"""The job's replay: the graph of its ranks as recorded, and what edits of it would gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.report.model import Basis, Saving
from advisor.views.ranks.edits import HOST_PARTS, FasterHost, JobEdit, JobEdits
from advisor.views.ranks.graph import JobGraph
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.matching import Matched
from advisor.views.ranks.summary import RankSummary
from advisor.views.replay.true_step import TrueStep

MAX_ERROR = 0.15
"""A replay further from the recording than this is no base for a figure: savings are then called bounds."""

LEAST_WIDTH = 0.3
"""A saving's interval is at least so wide to either side: what a replay of a few steps cannot see."""


@dataclass(frozen=True)
class JobSchedule:
    """A graph and what its nodes are. Of segments (m,): nodes 0 to m - 1, segment_rank, own (m, parts), held (whether it begins
    when a collective lets the host go on), stretch (which of the rank's stretches between collectives it is in, alike on all ranks;
    0 where their collectives are not alike). Of collectives (k,): nodes m to m + k - 1; collective: number in `Matched`, -1 for one
    that a single rank has; transfer_us.
    """

    graph: JobGraph
    segment_rank: Ints
    own: Floats
    held: Mask
    stretch: Ints
    collective: Ints
    transfer_us: Floats

    def edited(self, own: Floats | None = None, transfer_us: Floats | None = None, host_us: Floats | None = None) -> JobSchedule:
        """The same job with other durations."""
        own = self.own if own is None else own
        transfer = self.transfer_us if transfer_us is None else transfer_us
        graph = replace(
            self.graph,
            dur_us=np.r_[own.sum(axis=1), transfer],
            host_us=self.graph.host_us if host_us is None else host_us,
        )
        return replace(self, graph=graph, own=own, transfer_us=transfer)

    @property
    def stretches(self) -> Floats:
        """(ranks, stretches, parts) of own time, in the window."""
        made = np.zeros((len(self.graph.closing), int(self.stretch.max(initial=0)) + 1, len(PARTS)))
        np.add.at(made, (self.segment_rank, self.stretch), self.own)
        return made

    @property
    def totals(self) -> Floats:
        """(ranks, parts) of own time, a step."""
        made = np.zeros((len(self.graph.closing), len(PARTS)))
        np.add.at(made, self.segment_rank, self.own)
        return made / max(self.graph.steps, 1)


@dataclass(frozen=True)
class JobReplay:
    """recorded: as traced. corrected: with the profiler's own cost taken off the hosts' time. error: how far the unedited replay is
    from the recorded step, as a share. true_step: of the job, as it runs when nobody records."""

    recorded: JobSchedule
    corrected: JobSchedule
    error: float
    true_step: TrueStep

    @property
    def step_us(self) -> float:
        """The recorded step of the job, in whose time savings are said; the engine turns them into parts of `true_step`."""
        return self.true_step.recorded_us

    @property
    def basis(self) -> Basis:
        return "simulated" if self.error <= MAX_ERROR else "bound"

    def share(self, schedule: JobSchedule, edit: JobEdit) -> float:
        """Share of the job's step that an edit saves."""
        before = schedule.graph.step_us()
        return max(0.0, 1 - edit.apply(schedule).graph.step_us() / before) if before > 0 else 0.0

    def saving(self, edits: JobEdits, removes: str, at_most_us: float = np.inf) -> Saving:
        """What a step of the job gains: expected on the corrected schedule, the ends over both; no more than `at_most_us`."""
        both = (self.corrected, self.recorded)
        middle = self.share(self.corrected, edits.expected)
        low = min(middle * (1 - LEAST_WIDTH), *(self.share(s, edits.low) for s in both))
        high = max(middle * (1 + LEAST_WIDTH), *(self.share(s, edits.high) for s in both))
        low, middle, high = (min(share * self.step_us, at_most_us, self.step_us) for share in (low, middle, high))
        return Saving(low if self.basis == "simulated" else 0.0, middle, high, self.basis, removes)


def replay_of(ranks: Sequence[RankSummary], matched: Matched, base_ns: int) -> JobReplay:
    """The replay of a job whose collectives are matched."""
    recorded = _schedule(ranks, matched, base_ns)
    step_us = float(np.mean([s.facts.step_us for s in ranks]))
    replayed = replace(recorded.graph, host_us=np.zeros(len(ranks))).step_us()
    corrected = _corrected(recorded, ranks)
    return JobReplay(recorded, corrected, abs(replayed / step_us - 1) if step_us else 0.0, _true_step(ranks, corrected, replayed, step_us))


def _corrected(schedule: JobSchedule, ranks: Sequence[RankSummary]) -> JobSchedule:
    """The job as it runs when nobody records: where a device idles for its host, it idles less by what recording added to the step
    of that rank. Most of what recording costs a host hides behind its device; that only lets no host be faster than it is."""
    added = np.array([max(s.facts.step_us - s.facts.true_step_us.expected, 0.0) for s in ranks])
    host_us = np.minimum([s.facts.host_us for s in ranks], schedule.graph.host_us)
    return FasterHost(tuple(added.tolist()), HOST_PARTS).apply(schedule).edited(host_us=host_us)


def _true_step(ranks: Sequence[RankSummary], corrected: JobSchedule, replayed_us: float, step_us: float) -> TrueStep:
    """The recorded step by as much shorter as the corrected replay is; as uncertain as the rank of which least is known."""
    share = min(corrected.graph.step_us() / replayed_us, 1.0) if replayed_us > 0 else 1.0
    alone = [s.facts.true_step_us for s in ranks if s.facts.true_step_us.expected > 0]
    expected = step_us * share
    low, high = (reach([getattr(t, end) / t.expected for t in alone], default=1.0) for reach, end in ((min, "low"), (max, "high")))
    return TrueStep(expected * low, expected, expected * high, step_us, "estimated")


def _schedule(ranks: Sequence[RankSummary], matched: Matched, base_ns: int) -> JobSchedule:
    shift = np.array([(s.facts.base_ns - base_ns) / 1000.0 for s in ranks]) - matched.offsets_us
    first = np.cumsum([0, *(len(s.own) for s in ranks)])
    segments = int(first[-1])
    node_of, numbers, transfer = _collective_nodes(ranks, matched, segments)
    sources: list[Ints] = []
    targets: list[Ints] = []
    lags: list[Floats] = []
    carried: list[tuple[Ints, Ints, Floats]] = []

    def edge(source: Ints, target: Ints, lag: Floats) -> None:
        sources.append(source)
        targets.append(target)
        lags.append(lag)

    for at, one in enumerate(ranks):
        base, count, nodes = int(first[at]), len(one.own), node_of[at]
        rows = np.arange(count)
        edge(base + rows[:-1], base + rows[1:], np.zeros(count - 1))
        carried.append((np.array([base + count - 1]), np.array([base]), np.zeros(1)))
        inside: Mask = nodes >= 0
        own = np.flatnonzero(inside)
        triggered = own[one.trigger[own] >= 0]
        edge(base + one.trigger[triggered], nodes[triggered], one.lag_us[triggered])
        before, lag = one.after[own], one.after_lag_us[own]
        here, last = _earlier(before, nodes, len(own))
        edge(nodes[before[here]], nodes[own[here]], lag[here])
        carried.append((nodes[last[1]], nodes[own[last[0]]], lag[last[0]]))
        waits = np.flatnonzero(one.waits_for >= 0)
        here, last = _earlier(one.waits_for[waits], nodes, len(own))
        edge(nodes[one.waits_for[waits[here]]], base + waits[here], np.zeros(int(here.sum())))
        carried.append((nodes[last[1]], base + waits[last[0]], np.zeros(len(last[1]))))
    begin = first[:-1].astype(np.int64)
    begin_us = np.array([s.facts.start_us for s in ranks]) + shift
    work = np.concatenate([s.own for s in ranks])
    graph = JobGraph.of(
        np.r_[work.sum(axis=1), transfer],
        np.r_[np.repeat(np.arange(len(ranks)), np.diff(first)), np.full(len(transfer), -1)],
        (np.concatenate(sources), np.concatenate(targets), np.concatenate(lags)),
        (np.concatenate([c[0] for c in carried]), np.concatenate([c[1] for c in carried]), np.concatenate([c[2] for c in carried])),
        (begin, begin_us),
        (first[1:] - 1).astype(np.int64),
        np.array([min(s.facts.recorded_host_us, s.facts.step_us) for s in ranks]),
        max(min(s.facts.steps for s in ranks), 1),
    )
    return JobSchedule(
        graph, np.repeat(np.arange(len(ranks)), np.diff(first)), work, np.concatenate([s.held for s in ranks]), _stretches(ranks, node_of), numbers, transfer
    )


def _earlier(rows: Ints, nodes: Ints, in_window: int) -> tuple[Mask, tuple[Ints, Ints]]:
    """Which of the collectives (rows) are in the window; of the others, those whose like is in it, a window's collectives later."""
    known: Mask = (rows >= 0) & (nodes[np.maximum(rows, 0)] >= 0) if len(nodes) else np.zeros(len(rows), bool)
    if not len(nodes):
        return known, (np.empty(0, np.int64), np.empty(0, np.int64))
    later = rows + in_window
    good = ~known & (rows >= 0) & (later < len(nodes))
    good[good] &= nodes[later[good]] >= 0
    return known, (np.flatnonzero(good), later[good])


def _collective_nodes(ranks: Sequence[RankSummary], matched: Matched, first: int) -> tuple[list[Ints], Ints, Floats]:
    """The node of each rank's rows, -1 outside the window; the number of each node in `matched`, and its transfer."""
    inside = np.ones(matched.count, bool)
    for at, one in enumerate(ranks):
        mine = matched.of == at
        outside = (one.step[matched.row[mine]] < 0) | (one.step[matched.row[mine]] >= one.facts.steps)
        inside[matched.collective[mine][outside]] = False
    numbers = np.flatnonzero(inside)
    node = np.full(matched.count, -1, np.int64)
    node[numbers] = first + np.arange(len(numbers))
    transfer = [matched.transfer_us[numbers]]
    node_of = []
    extra: list[int] = []
    following = first + len(numbers)
    for at, one in enumerate(ranks):
        nodes = np.full(len(one.kind), -1, np.int64)
        mine = matched.of == at
        nodes[matched.row[mine]] = node[matched.collective[mine]]
        alone = np.ones(len(one.kind), bool)
        alone[matched.row[mine]] = False
        alone &= (one.step >= 0) & (one.step < one.facts.steps) & one.known
        rows = np.flatnonzero(alone)
        nodes[rows] = following + np.arange(len(rows))
        following += len(rows)
        extra += [-1] * len(rows)
        transfer.append((one.end_us - one.start_us)[rows])
        node_of.append(nodes)
    return node_of, np.r_[numbers, np.array(extra, np.int64)], np.concatenate(transfer)


def _stretches(ranks: Sequence[RankSummary], node_of: Sequence[Ints]) -> Ints:
    """(m,) how many of the rank's collectives had begun before each segment; 0 for all where ranks have unequal numbers of them."""
    if len({int((nodes >= 0).sum()) for nodes in node_of}) > 1 or any(one.facts.peers != ("",) for one in ranks if len(one.kind)):
        return np.zeros(sum(len(one.own) for one in ranks), np.int64)
    made = []
    for one, nodes in zip(ranks, node_of, strict=True):
        begun = np.sort(one.trigger[(nodes >= 0) & (one.trigger >= 0)])
        made.append(np.searchsorted(begun, np.arange(len(one.own)), side="left"))
    return np.concatenate(made)
