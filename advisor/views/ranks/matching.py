"""Matches collectives of different ranks, with proof.

All ranks leave a collective together, so the ends of matched collectives differ only by the ranks' clocks: a matching is accepted only if that holds.
Starts of traces, with work from before, have no metadata and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.collectives import Collective
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.structs import replace
from advisor.report.numbers import duration
from advisor.report.ranks import Matching
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.summary import RankSummary, coded

LARGEST_SPREAD_US = cost("matched-spread")

LEAST_MATCHED = 0.6
"""Where fewer of the collectives than this fit, those that do may fit by chance."""

SAME_CLOCK_US = cost("same-clock")

CLOCK_PRICE = 1e-3
"""µs of spread that a µs of clock offset is worth where shifts fit alike: hosts differ by milliseconds, steps too."""

LEFT_OUT_PRICE = 10.0
"""µs of spread that leaving out a collective is worth: ranks mostly begin to record together."""

MOST_SHIFTED = 8
"""A rank that began to record late misses a few collectives, not many."""

Token = tuple[int, str, int]


class Matched(msgspec.Struct, frozen=True):
    """The collectives of a job, numbered 0 to count - 1 by their ends.

    Entries per collective and rank: of (position in the job's ranks), collective, row (of that rank's summary), arrival_us and end_us on the job's clock,
    wait_us. Of collectives: kind (position in `KINDS`), group (position in `groups`), bytes, size (ranks in it), begin_us (last arrival), transfer_us,
    first and last (entries, by arrival). offsets_us: (ranks,) each rank's clock minus the job's.
    """

    groups: tuple[str, ...]
    of: Ints
    collective: Ints
    row: Ints
    arrival_us: Floats
    end_us: Floats
    wait_us: Floats
    kind: Ints
    group: Ints
    bytes: Ints
    begin_us: Floats
    transfer_us: Floats
    last: Ints
    offsets_us: Floats
    said: Matching

    @property
    def count(self) -> int:
        return len(self.kind)

    @property
    def size(self) -> Ints:
        """(collectives,) ranks seen in each."""
        return np.bincount(self.collective, minlength=self.count)

    @property
    def proved(self) -> bool:
        return self.said.status == "ok"


def match(ranks: Sequence[RankSummary], base_ns: int) -> Matched:
    """Match the collectives of a job's ranks, times relative to `base_ns`."""
    shift = np.array([(s.facts.base_ns - base_ns) / 1000.0 for s in ranks])
    keyed, method, left = _keyed(ranks, shift)
    members = [(number, rank, row) for number, entries in enumerate(keyed) for rank, row in entries]
    if not members:
        return _no_match(len(ranks), "no collective is on two of the given ranks", method)
    collective, of, row = (np.array(column, np.int64) for column in zip(*members, strict=True))
    start, end = (taken(ranks, of, row, name) + shift[of] for name in ("start_us", "end_us"))
    offsets, spread = _offsets(of, collective, end, len(ranks), len(keyed))
    start, end = start - offsets[of], end - offsets[of]
    middle = _median_by(collective, end, len(keyed))
    order = np.argsort(middle, kind="stable")
    rank_of = np.empty(len(order), np.int64)
    rank_of[order] = np.arange(len(order))
    collective = rank_of[collective]
    by = np.lexsort((of, collective))
    collective, of, row, start, end = collective[by], of[by], row[by], start[by], end[by]
    n = len(keyed)
    begin = np.full(n, -np.inf)
    np.maximum.at(begin, collective, start)
    latest = np.lexsort((start, collective))
    last = latest[np.r_[np.flatnonzero(np.diff(collective[latest])), len(latest) - 1]]
    first_entry = np.searchsorted(collective, np.arange(n))
    groups, group = _groups(ranks, of[first_entry], row[first_entry])
    size = np.zeros(n, np.int64)
    np.maximum.at(size, collective, taken(ranks, of, row, "size_bytes"))
    total = sum(_candidates(s).sum() for s in ranks)
    share = len(of) / max(int(total), 1)
    status: Literal["ok", "failed"] = "ok" if spread <= LARGEST_SPREAD_US and share >= LEAST_MATCHED else "failed"
    detail = (
        f"{n:,} collectives matched by {method}; their ends lie {duration(spread)} apart in the median"
        if status == "ok"
        else f"by {method}, {share:.0%} of the collectives match, with ends {duration(spread)} apart in the median: the ranks cannot be matched"
    )
    if left:
        detail += f"; {left:,} on single ranks were left out"
    said = Matching(method=method, matched=n, share=min(share, 1.0), spread_us=spread, status=status, detail=detail)
    if status == "failed":
        # Waits worked out from collectives that may be different ones are nobody's.
        return replace(_no_match(len(ranks), detail, method), said=said)
    return Matched(
        groups, of, collective, row, start, end, np.maximum(begin[collective] - start, 0.0),
        taken(ranks, of[first_entry], row[first_entry], "kind"), group, size, begin, np.maximum(_median_by(collective, end, n) - begin, 0.0), last, offsets, said,
    )  # fmt: skip


def taken(ranks: Sequence[RankSummary], of: Ints, row: Ints, name: str) -> np.ndarray:
    """(entries,) one array of the collectives, of each entry's rank (position) and row there."""
    return np.array([getattr(ranks[r], name)[i] for r, i in zip(of.tolist(), row.tolist(), strict=True)])


def _no_match(ranks: int, why: str, method: str) -> Matched:
    none, ints = np.empty(0), np.empty(0, np.int64)
    said = Matching(method=method, matched=0, share=0.0, spread_us=0.0, status="failed", detail=why)
    return Matched((), ints, ints, ints, none, none, none, ints, ints, ints, none, none, ints, np.zeros(ranks), said)


def _candidates(one: RankSummary) -> np.ndarray:
    """Rows that can be matched: those with metadata, or all of them where no row has any."""
    return one.known if one.known.any() else np.ones(len(one.kind), bool)


def _keyed(ranks: Sequence[RankSummary], shift: Floats) -> tuple[list[list[tuple[int, int]]], str, int]:
    """Entries (rank, row) by collective, how they were found, and how many rows are alone."""
    found: dict[object, list[tuple[int, int]]] = defaultdict(list)
    messages: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    streams: dict[str, dict[int, list[int]]] = defaultdict(dict)
    methods: set[str] = set()
    for at, one in enumerate(ranks):
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for row in np.flatnonzero(_candidates(one)).tolist():
            facts = one.facts
            talks = facts.peers[one.peers[row]]
            if talks:
                for talk in talks.split(","):
                    to, other = talk.startswith("to "), int(talk.split(" ")[1])
                    pair = (one.rank, other) if to else (other, one.rank)
                    messages[(pair[0], pair[1], counts[pair])].append((at, row))
                    counts[pair] += 1
                continue
            name, communicator = facts.groups[one.group[row]], facts.communicators[one.communicator[row]]
            if one.sequence[row] >= 0:
                found[(communicator or name, int(one.sequence[row]))].append((at, row))
                methods.add("communicator and sequence number" if communicator else "group and sequence number")
            else:
                streams[name or KINDS[one.kind[row]].value].setdefault(at, []).append(row)
    if messages:
        methods.add("sender, receiver and order")
    collectives = list(found.values()) + _joined(messages)
    for of_group in streams.values():
        methods.add("group, kind and order" if any(ranks[a].known.any() for a in of_group) else "kernel and order")
        collectives += _aligned(ranks, of_group, shift)
    several = [c for c in collectives if len({rank for rank, _ in c}) > 1]
    alone = sum(len(c) for c in collectives) - sum(len(c) for c in several)
    return several, " and ".join(sorted(methods)) or "nothing", alone


def _joined(messages: dict[tuple[int, int, int], list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Messages as collectives: kernels that send and receive in one batch join the pairs that they serve."""
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(one: tuple[int, int]) -> tuple[int, int]:
        while parent.setdefault(one, one) != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    for ends in messages.values():
        for other in ends[1:]:
            parent[root(other)] = root(ends[0])
        root(ends[0])
    joined: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in parent:
        joined[root(one)].append(one)
    return list(joined.values())


def _aligned(ranks: Sequence[RankSummary], rows: dict[int, list[int]], shift: Floats) -> list[list[tuple[int, int]]]:
    """The same group's collectives on several ranks by order: each rank shifted so that kinds agree and ends lie closest."""
    reference = max(rows, key=lambda at: len(rows[at]))
    tokens = [_token(ranks[reference], row) for row in rows[reference]]
    ends = ranks[reference].end_us[rows[reference]] + shift[reference]
    made: list[list[tuple[int, int]]] = [[(reference, row)] for row in rows[reference]]
    for at, own in rows.items():
        if at == reference:
            continue
        mine = [_token(ranks[at], row) for row in own]
        own_ends = ranks[at].end_us[own] + shift[at]
        least = len(tokens) - len(mine)
        best: tuple[float, int] | None = None
        for by in range(-MOST_SHIFTED, least + MOST_SHIFTED + 1):
            low, high = max(0, by), min(len(tokens), by + len(mine))
            if high - low < max(1, len(mine) - MOST_SHIFTED, (len(mine) + 1) // 2):
                continue
            same = sum(a == b for a, b in zip(tokens[low:high], mine[low - by : high - by], strict=True))
            if same < high - low:
                continue
            apart = own_ends[low - by : high - by] - ends[low:high]
            # Among shifts that fit as well, the one that keeps most and needs the least of the clocks.
            spread = (
                float(np.median(np.abs(apart - np.median(apart)))) + LEFT_OUT_PRICE * (len(mine) - (high - low)) + CLOCK_PRICE * abs(float(np.median(apart)))
            )
            if best is None or spread < best[0]:
                best = (spread, by)
        if best is None:
            continue
        for i, row in enumerate(own):
            if 0 <= i + best[1] < len(made):
                made[i + best[1]].append((at, row))
    return made


def _token(one: RankSummary, row: int) -> Token:
    """Fields on which the ranks of a collective agree; not sizes if each sends its own data."""
    kind = KINDS[one.kind[row]]
    varies = kind is Collective.ALL_TO_ALL or one.facts.splits[one.split[row]] not in ("", "[]")
    return int(one.kind[row]), one.facts.dtypes[one.dtype[row]], -1 if varies else int(max(one.sent[row], one.received[row]))


def _median_by(group: Ints, values: Floats, n: int) -> Floats:
    """(n,) median of the values of each group; every group has one."""
    order = np.lexsort((values, group))
    first = np.searchsorted(group[order], np.arange(n))
    count = np.bincount(group, minlength=n)
    ordered = values[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    return (low + high) / 2


def _offsets(of: Ints, collective: Ints, end: Floats, ranks: int, n: int) -> tuple[Floats, float]:
    """Each rank's clock against the others', and how far apart the ends then lie (median over entries).

    A rank's offset is the median of its ends over its collectives' medians; settled over groups in a few rounds.
    """
    offsets = np.zeros(ranks)
    for _ in range(30):
        apart = end - offsets[of] - _median_by(collective, end - offsets[of], n)[collective]
        step = np.zeros(ranks)
        for rank in np.unique(of):
            step[rank] = np.median(apart[of == rank])
        offsets += step
        if np.abs(step).max() < 0.1:
            break
    apart = end - offsets[of] - _median_by(collective, end - offsets[of], n)[collective]
    spread = float(np.median(np.abs(apart)))
    offsets -= np.median(offsets)
    if np.abs(offsets).max() <= max(SAME_CLOCK_US, 3 * spread):
        offsets[:] = 0.0
    return offsets, spread


def _groups(ranks: Sequence[RankSummary], of: Ints, row: Ints) -> tuple[tuple[str, ...], Ints]:
    names = [
        KINDS[ranks[r].kind[i]].value if ranks[r].facts.peers[ranks[r].peers[i]] else ranks[r].facts.groups[ranks[r].group[i]]
        for r, i in zip(of.tolist(), row.tolist(), strict=True)
    ]
    return coded(names)
