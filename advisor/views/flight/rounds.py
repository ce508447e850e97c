"""Collectives of several ranks by their numbers: who came to which, who is waited for, and which are not the same on all ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isnan

import numpy as np

from advisor.knowledge.collectives import Collective, bus_factor, kind_of
from advisor.recordings.flight import Call, FlightRecords
from advisor.report.charts import ROWS
from advisor.report.ranks import CollectiveRow

_ALIKE = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""Kinds with inputs of the same size on every rank."""


@dataclass(frozen=True)
class Round:
    """A collective of a group: the calls of the ranks that came to it, by rank. members: the group's ranks with a dump."""

    group: str
    sequence: int
    calls: dict[int, Call]
    members: tuple[int, ...]

    @property
    def done(self) -> bool:
        """Whether every rank that came to it is through."""
        return all(call.state == "completed" for call in self.calls.values())

    @property
    def name(self) -> str:
        """Its name on most ranks."""
        names = [call.name for call in self.calls.values()]
        return max(dict.fromkeys(names), key=names.count)


@dataclass(frozen=True)
class Mismatch:
    """A collective that differs between ranks. differs: "operation", or "size". told: ranks by their operation or size."""

    round: Round
    differs: str
    told: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stuck:
    """A collective in which ranks wait. waiting: these ranks; missing: members that did not come; unknown: members without a dump.
    started: waiting ranks with a started device op."""

    round: Round
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    started: tuple[int, ...]


@dataclass(frozen=True)
class Rounds:
    """All of the dumps. stuck: the first unfinished collective of each group, most waiting ranks first. descriptions: of groups."""

    rounds: tuple[Round, ...]
    mismatches: tuple[Mismatch, ...]
    stuck: tuple[Stuck, ...]
    messages: tuple[tuple[int, Call], ...]
    """Messages between two ranks that are not through, with their rank."""
    descriptions: dict[str, str]
    last: dict[tuple[int, str], Call]
    """The last call of each rank in each group."""

    @classmethod
    def build(cls, records: FlightRecords) -> Rounds:
        known = {rank.rank for rank in records.ranks}
        members: dict[str, set[int]] = defaultdict(set)
        said: dict[str, set[int]] = defaultdict(set)
        found: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
        last: dict[tuple[int, str], Call] = {}
        first: dict[tuple[int, str], int] = {}
        messages: list[tuple[int, Call]] = []
        descriptions: dict[str, str] = {}
        for one in records.ranks:
            descriptions |= one.descriptions
            for group, ranks in one.groups.items():
                said[group] |= {*ranks}
            for call in one.calls:
                if call.to_one:
                    messages += [(one.rank, call)] if call.state != "completed" else []
                    continue
                members[call.group].add(one.rank)
                found[call.group, call.sequence][one.rank] = call
                key = one.rank, call.group
                first[key] = min(first.get(key, call.sequence), call.sequence)
                if key not in last or call.sequence > last[key].sequence:
                    last[key] = call
        of_group = {group: tuple(sorted((said.get(group, set()) & known) | ranks)) for group, ranks in members.items()}
        rounds = tuple(Round(group, number, calls, of_group[group]) for (group, number), calls in sorted(found.items()))
        stuck = [_stuck(rounds, group, said.get(group, set()), known, last, first) for group in of_group]
        kept = sorted((one for one in stuck if one), key=lambda one: (-len(one.waiting), one.round.group))
        return cls(rounds, tuple(m for r in rounds if (m := _mismatch(r))), tuple(kept), tuple(messages), descriptions, last)


def _mismatch(one: Round) -> Mismatch | None:
    kinds: dict[str, list[int]] = defaultdict(list)
    sizes: dict[str, list[int]] = defaultdict(list)
    for rank, call in one.calls.items():
        kinds[call.name].append(rank)
        sizes[f"{call.elements:,} elements"].append(rank)
    if len(kinds) > 1:
        return Mismatch(one, "operation", {name: tuple(ranks) for name, ranks in kinds.items()})
    if len(sizes) > 1 and kind_of(one.name, "") in _ALIKE:
        return Mismatch(one, "size", {size: tuple(ranks) for size, ranks in sizes.items()})
    return None


def _stuck(
    rounds: tuple[Round, ...], group: str, said: set[int], known: set[int], last: dict[tuple[int, str], Call], first: dict[tuple[int, str], int]
) -> Stuck | None:
    """The group's first collective that a rank which called it is not through."""
    one = next((one for one in rounds if one.group == group and not one.done), None)
    if one is None:
        return None
    waiting = tuple(rank for rank, call in sorted(one.calls.items()) if call.state != "completed")
    # A rank whose buffer begins behind it came to it, and has forgotten.
    missing = tuple(rank for rank in one.members if rank not in one.calls and ((rank, group) not in last or first[rank, group] <= one.sequence))
    started = tuple(rank for rank in waiting if one.calls[rank].state == "started")
    return Stuck(one, waiting, missing, tuple(sorted(said - known)), started)


def rows(rounds: Rounds) -> tuple[CollectiveRow, ...]:
    """Collectives by kind, group and size that were timed on every rank: the time of the last rank to come is the transfer, the rest are waits."""
    made: dict[tuple[str, str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for one in rounds.rounds:
        took = [call.dur_us for call in one.calls.values()]
        if not took or any(map(isnan, took)) or len(one.calls) < max(len(one.members), 2):
            continue
        least = min(took)
        first = next(iter(one.calls.values()))
        made[one.name, one.group, len(one.calls), first.bytes].append((least, float(np.mean(took)) - least))
    found = []
    for (name, group, ranks, size), times in made.items():
        transfer, wait = np.array(times).T
        kind, each = kind_of(name, ""), float(np.median(transfer))
        whole = size * ranks if kind is Collective.ALL_GATHER else size
        found.append(
            CollectiveRow(
                kind=kind.value, group=rounds.descriptions.get(group, group), ranks=ranks, bytes=size, calls=float(len(times)),
                wait_us=float(wait.sum()), transfer_us=float(transfer.sum()), transfer_each_us=each,
                bus_gbps=whole * bus_factor(kind, ranks) / each / 1e3 if each > 0 else 0.0,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda row: -(row.wait_us + row.transfer_us))[:ROWS])
