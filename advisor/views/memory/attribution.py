"""The purpose of each allocation, by its birth and lifetime."""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.knowledge.shares import MOST
from advisor.recordings.snapshot import Ints
from advisor.views.memory.history import Allocations, Bools, DeviceMemory, MemoryHistory
from advisor.views.memory.origins import Origin, Origins, Phase


class Category(str, Enum):
    """What memory is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    """Made going forward and kept for the backward pass."""
    TEMPORARIES = "temporaries"
    """Made and dropped within a part of a step."""
    WORKSPACES = "workspaces"
    HELD = "held by the program"
    """Allocated by the program and never freed: inputs, caches, results."""
    LEAKED = "leaked"
    """More of it with each step."""
    OLDER = "older than the history"
    """Allocated before the first event, with a size that does not show its purpose."""
    UNKNOWN = "unknown"


CATEGORIES = tuple(Category)


class Runs(msgspec.Struct, frozen=True):
    """The phases of the window in turn, as the allocations show them."""

    phase: npt.NDArray[np.int8]
    start: Ints
    """First event of each run."""
    end: Ints
    """The event at which the next run starts; beyond the last event for the last run."""

    def run_of(self, event: Ints) -> Ints:
        """The run of each event, -1 before the first."""
        return np.searchsorted(self.start, event, side="right") - 1

    def starts_of(self, phase: Phase) -> Ints:
        return self.start[self.phase == phase]


class Attribution(msgspec.Struct, frozen=True, dict=True):
    """The allocations of the device with most memory, with the purpose of each."""

    device: DeviceMemory
    origins: Origins
    category: npt.NDArray[np.int8]
    """Index into CATEGORIES."""
    phase: npt.NDArray[np.int8]
    """In which each was made; forward for those older than the window."""
    runs: Runs

    @classmethod
    def build(cls, history: MemoryHistory, origins: Origins) -> Attribution:
        device = history.main
        phase = origins.column("phase", device.allocations.stack).astype("i1")
        phase[device.allocations.born < 0] = Phase.FORWARD
        runs = _runs(device.allocations, phase, len(device.events))
        return cls(device, origins, _categories(device, origins, phase, runs), phase, runs)

    def origin(self, row: int) -> Origin:
        return self.origins.of[int(self.device.allocations.stack[row])]

    def in_categories(self, *categories: Category) -> Bools:
        """The allocations of these categories."""
        return np.isin(self.category, [CATEGORIES.index(c) for c in categories])

    @cached_property
    def backwards(self) -> int:
        """How many backward passes the window holds."""
        return int((self.runs.phase == Phase.BACKWARD).sum())

    @property
    def named_share(self) -> float:
        """Share of the bytes at the peak with a known purpose."""
        size, at_peak = self.device.allocations.size, self.device.at_peak
        total = int(size[at_peak].sum())
        return 1.0 - int(size[at_peak & self.in_categories(Category.UNKNOWN, Category.OLDER)].sum()) / total if total else 1.0


def _runs(allocations: Allocations, phase: npt.NDArray[np.int8], n_events: int) -> Runs:
    """Runs of births in a single phase."""
    rows = np.flatnonzero(allocations.born >= 0)
    if not len(rows):
        return Runs(np.zeros(1, "i1"), np.zeros(1, "i8"), np.array([n_events + 1]))
    order = rows[np.argsort(allocations.born[rows], kind="stable")]
    phases = phase[order]
    first = np.flatnonzero(np.diff(phases, prepend=-1) != 0)
    start = allocations.born[order[first]].copy()
    start[0] = 0
    return Runs(phases[first], start, np.r_[start[1:], n_events + 1])


def _categories(device: DeviceMemory, origins: Origins, phase: npt.NDArray[np.int8], runs: Runs) -> npt.NDArray[np.int8]:
    a = device.allocations
    n = len(device.events)
    in_window = a.born >= 0
    born = np.maximum(a.born, 0)
    # What outlives the last birth is given back only as the program ends, or by the function that recorded.
    last_birth = int(a.born.max(initial=-1))
    kept = a.freed > last_birth
    long = (a.freed - born) > LONG_LIFE * (n - born)
    outlives_run = a.freed >= runs.end[np.maximum(runs.run_of(born), 0)]
    backward_starts = runs.starts_of(Phase.BACKWARD)
    passes = np.searchsorted(backward_starts, a.freed) - np.searchsorted(backward_starts, born, side="right")
    sets_up = origins.column("sets_up", a.stack).astype(bool)
    recomputed = origins.column("recomputes", a.stack).astype(bool)
    known = origins.column("known", a.stack).astype(bool)
    chosen = np.full(len(a), CATEGORIES.index(Category.TEMPORARIES), "i1")

    def put(where: Bools, category: Category) -> None:
        chosen[where] = CATEGORIES.index(category)

    forward = in_window & (phase == Phase.FORWARD)
    put(forward & (kept | long), Category.HELD)
    put(forward & (passes == 1), Category.ACTIVATIONS)
    put(forward & (passes > 1), Category.HELD)
    # What is held when the window ends within a step is an activation where its like were.
    put(forward & kept & ~sets_up & (a.born >= _last_start(runs)) & _alike(a, chosen, Category.ACTIVATIONS), Category.ACTIVATIONS)
    put(forward & sets_up & (kept | long | (passes > 0)), Category.PARAMETERS)
    backward = in_window & (phase == Phase.BACKWARD)
    parameters = np.unique(a.requested[(chosen == CATEGORIES.index(Category.PARAMETERS)) | ((a.born < 0) & kept)])
    put(backward & recomputed & ~kept, Category.ACTIVATIONS)
    collected = a.freed > _last_birth_of_run(a, runs)[np.maximum(runs.run_of(born), 0)]
    put(backward & ~recomputed & (outlives_run | (collected & np.isin(a.requested, parameters))), Category.GRADIENTS)
    put(in_window & (phase == Phase.OPTIMIZER) & outlives_run, Category.OPTIMIZER_STATE)
    put(in_window & ~known & (len(origins.of) == 1), Category.UNKNOWN)
    _name_older(a, chosen, sets_up, known, kept, _replaced(a, runs))
    put(origins.column("workspace", a.stack).astype(bool) & (a.size <= LARGEST_WORKSPACE), Category.WORKSPACES)
    return chosen


LONG_LIFE = MOST
"""Share of the remaining window from which an allocation outlives a step, since a window holds several."""
LARGEST_WORKSPACE = 64 << 20
"""cuBLAS keeps 32 MiB on the largest devices; larger blocks are results that its call allocates."""


def _last_birth_of_run(a: Allocations, runs: Runs) -> Ints:
    """The last event of each run at which something was allocated."""
    last = runs.start.copy()
    born = a.born[a.born >= 0]
    np.maximum.at(last, np.maximum(runs.run_of(born), 0), born)
    return last


def _alike(a: Allocations, chosen: npt.NDArray[np.int8], category: Category) -> Bools:
    """Allocations of a stack and size that some of that category have."""
    kind = kinds(a)
    return np.isin(kind, kind[chosen == CATEGORIES.index(category)])


def kinds(a: Allocations) -> Ints:
    """A number for each stack and size: allocations with the same number are alike."""
    sizes, of_size = np.unique(a.requested, return_inverse=True)
    _, kind = np.unique(a.stack.astype("i8") * len(sizes) + of_size.reshape(-1), return_inverse=True)
    return kind.reshape(-1).astype("i8")


def by_stack(a: Allocations, rows: Ints) -> list[Ints]:
    """Those rows of each stack, stacks in order of their first row. rows: ascending."""
    grouped = rows[np.argsort(a.stack[rows], kind="stable")]
    parts = np.split(grouped, np.flatnonzero(np.diff(a.stack[grouped])) + 1) if len(rows) else []
    return sorted(parts, key=lambda part: int(part[0]))


def _last_start(runs: Runs) -> int:
    """Where the last unfinished step starts: after the last backward pass."""
    done = np.flatnonzero(runs.phase != Phase.FORWARD)
    return int(runs.end[done[-1]]) if len(done) else 0


def _replaced(a: Allocations, runs: Runs) -> Bools:
    """Memory that is freed in the middle of an optimizer's step: an update that is not in place makes its state anew."""
    run = np.maximum(runs.run_of(a.freed), 0)
    return (runs.phase[run] == Phase.OPTIMIZER) & (a.freed < _last_birth_of_run(a, runs)[run])


def _name_older(a: Allocations, chosen: npt.NDArray[np.int8], sets_up: Bools, known: Bools, kept: Bools, replaced: Bools) -> None:
    """Names allocations older than the window. A gradient's size identifies its parameter. Other blocks of that size belong to the optimizer (Adam has two per
    parameter): kept, or replaced by its step.
    """
    left = held_at_once(a, chosen == CATEGORIES.index(Category.GRADIENTS))
    sized = set(left)
    for row in np.flatnonzero(a.born < 0).tolist():
        size = int(a.requested[row])
        if sets_up[row]:
            category = Category.PARAMETERS
        elif left.get(size, 0) > 0 and kept[row]:
            left[size] -= 1
            category = Category.PARAMETERS
        elif size in sized:
            category = Category.OPTIMIZER_STATE if kept[row] or replaced[row] else Category.GRADIENTS
        else:
            category = Category.HELD if known[row] else Category.OLDER
        chosen[row] = CATEGORIES.index(category)


def held_at_once(a: Allocations, rows: Bools) -> dict[int, int]:
    """The most allocations of each requested size among rows that live at the same time."""
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in np.flatnonzero(rows).tolist():
        changes[int(a.requested[row])] += [(int(a.born[row]), 1), (int(a.freed[row]), -1)]
    return {size: max(np.cumsum([change for _, change in sorted(events)]).tolist()) for size, events in changes.items()}
