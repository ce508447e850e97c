"""How the ranks' summaries become one schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.views.ranks.graph import JobGraph
from advisor.views.ranks.matching import Matched
from advisor.views.ranks.schedule import JobSchedule
from advisor.views.ranks.summary import RankSummary


def recorded_schedule(ranks: Sequence[RankSummary], matched: Matched, base_ns: int) -> JobSchedule:
    """The job as its ranks recorded it, on one clock."""
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
    graph = JobGraph.create(
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
