"""Patterns over steps: memory kept from every step, buffers that grow by copies, and short peaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY, MOST, NEARLY_ALL
from advisor.recordings.snapshot import Action, Ints
from advisor.views.memory.attribution import Attribution, Category, by_stack
from advisor.views.memory.history import Allocations, Bools, DeviceMemory
from advisor.views.memory.steps import MemorySteps
from advisor.views.trace.repeats import FEWEST_REPEATS

LEAKING_STEPS = MOST
"""Share of the steps since it began in which a leak adds something: some are conditional, as logging each tenth step is."""


class Leaks(msgspec.Struct, frozen=True):
    """What is kept from step after step until the window ends."""

    rows: Bools
    step: Ints
    """In which step each allocation was born."""
    steps: MemorySteps
    unplaced: Bools
    """Memory kept in the same way without a stack: growth, possibly of several places."""

    @classmethod
    def build(cls, attribution: Attribution, steps: MemorySteps) -> Leaks:
        a = attribution.device.allocations
        step = steps.step_of(np.maximum(a.born, 0))
        settled = attribution.in_categories(Category.PARAMETERS, Category.OPTIMIZER_STATE, Category.WORKSPACES, Category.GRADIENTS)
        kept = (a.born >= 0) & (a.freed > a.born.max(initial=-1)) & ~settled
        lived = steps.step_of(np.minimum(a.freed, steps.n_events)) - step
        rows = np.zeros(len(a), bool)
        if len(steps) >= FEWEST_REPEATS:
            for stack in np.unique(a.stack[kept]).tolist():
                same = a.stack == stack
                if _leaks(np.unique(step[kept & same]), bool((same & ~kept & (a.born >= 0) & (lived > 1)).any()), len(steps)):
                    rows |= kept & same
        return cls(rows & (a.stack >= 0), step, steps, rows & (a.stack < 0))

    def growth(self, size: Ints, rows: Bools | None = None) -> int:
        """Bytes that a step adds; of `rows`, or of what leaks."""
        chosen = self.rows if rows is None else rows
        grown = np.bincount(self.step[chosen], weights=size[chosen])
        return int(np.median(grown[grown > 0])) if grown.any() else 0


def _leaks(born_in: Ints, some_given_back: bool, steps: int) -> bool:
    """Whether a place leaks, with survivors born in these steps: in enough steps, up to the end, and none freed late (a bounded queue keeps the last few)."""
    if len(born_in) < FEWEST_REPEATS or some_given_back:
        return False
    return born_in[-1] >= steps - 2 and len(born_in) >= LEAKING_STEPS * (steps - 1 - int(born_in[0]))


class Chain(msgspec.Struct, frozen=True):
    """A buffer that grew: its allocations by size, each a copy of the previous and a little larger. The first may be of another place, the source of the first
    copy.
    """

    rows: Ints


MOST_GROWTH = CONSIDERABLE
"""By how much of itself such a buffer grows at a time; batches of other lengths differ by more."""


class Growth(msgspec.Struct, frozen=True):
    """Buffers that grow by being copied, as `torch.cat` does to a cache."""

    chains: tuple[Chain, ...]

    @classmethod
    def build(cls, attribution: Attribution) -> Growth:
        a = attribution.device.allocations
        chains: list[Ints] = []
        for rows in by_stack(a, np.flatnonzero(a.born >= 0)):
            origin = attribution.origin(int(rows[0]))
            if origin.op in ("cat", "concat", "concatenate", "hstack", "vstack", "") or (not attribution.origins.native and origin.known):
                chains.extend(_chains(a, rows))
        return cls(_with_first(a, chains))


def _with_first(a: Allocations, chains: list[Ints]) -> tuple[Chain, ...]:
    """The chains, each with the allocation that it was first copied from: a little smaller, and freed before the next copy."""
    taken: set[int] = set()
    made = []
    for rows in chains:
        first, second = rows[0], rows[1]
        size = a.requested[first]
        near = (a.born < a.born[first]) & (a.freed > a.born[first]) & (a.freed < a.born[second])
        near &= (a.requested < size) & (a.requested >= (1 - MOST_GROWTH) * size)
        found = [row for row in np.flatnonzero(near).tolist() if row not in taken]
        taken.update(found[:1])
        made.append(Chain(np.r_[found[:1], rows].astype("i8")))
    return tuple(made)


def _chains(a: Allocations, rows: Ints) -> Iterator[Ints]:
    """Allocations of one place as buffers side by side: the first of each size belongs to the first, and so on."""
    sizes = np.unique(a.requested[rows])
    if len(sizes) < FEWEST_REPEATS + 1 or np.median(np.diff(sizes) / sizes[:-1]) > MOST_GROWTH:
        return
    side_by_side: dict[int, list[int]] = defaultdict(list)
    for size in sizes:
        for turn, row in enumerate(rows[a.requested[rows] == size].tolist()):
            side_by_side[turn].append(row)
    for chain in side_by_side.values():
        at = np.array(chain)
        # Each is made from the one before, so that one is still there.
        follows = (np.diff(a.born[at]) > 0) & (a.freed[at[:-1]] > a.born[at[1:]])
        if len(at) > FEWEST_REPEATS and follows.mean() > NEARLY_ALL:
            yield at


class Returned(NamedTuple):
    """Cached segments returned to the driver: release events, request events, the first of each run of releases, and the number of runs of which at least half
    was requested again before the next.
    """

    given: Ints
    asked: Ints
    starts: Ints
    rounds: int


def returned(device: DeviceMemory) -> Returned:
    """How often a device's cache went back to the driver and was asked for again."""
    events = device.events
    given = np.flatnonzero(np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)))
    asked = np.flatnonzero(np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
    starts = given[np.diff(given, prepend=-2) > 1]
    rounds = 0
    for start, end in zip(starts, np.r_[starts, len(events)][1:], strict=True):
        back = int(events.size[given[(given >= start) & (given < end)]].sum())
        rounds += int(events.size[asked[(asked >= start) & (asked < end)]].sum()) >= back / 2 > 0
    return Returned(given, asked, starts, rounds)


MOMENT = 0.34
"""Share of a step's events for which memory may be above what it would be without a transient: longer, and it is no spike."""


APART = HARDLY_ANY
"""Share of a step's events between two rises; closer rises count as one."""


class Excursion(NamedTuple):
    """How the step with the peak rises above a level: for which share of its events, and how often."""

    share: float
    times: int


def excursion_above(attribution: Attribution, level: int, steps: MemorySteps) -> Excursion:
    """How the step with the peak rises above `level` bytes."""
    device = attribution.device
    step = int(steps.step_of(np.array([device.peak]))[0])
    start, end = int(steps.start[step]) if step else 0, int(min(steps.end[step], len(device.events)))
    high = np.flatnonzero(device.allocated[start:end] > level)
    apart = np.diff(high) > APART * (end - start)
    return Excursion(len(high) / max(end - start, 1), int(apart.sum()) + 1)
