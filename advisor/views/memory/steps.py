"""Steps of the window, as marks, backward passes or what repeats tell them."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from advisor.knowledge.shares import MOST
from advisor.recordings.snapshot import Ints, MemorySnapshot
from advisor.views.memory.attribution import Attribution, by_stack
from advisor.views.memory.history import DeviceMemory
from advisor.views.memory.origins import Phase
from advisor.views.trace.repeats import FEWEST_REPEATS

Basis = Literal["optimizer", "backward", "repeats", "whole"]
EVEN = MOST
"""How much the distances between repeats may differ from their median, as a share of it: steps are alike."""
COVERS = MOST
"""Share of the window that repeats must span: what happens only while a program starts is no step."""


class MemorySteps(msgspec.Struct, frozen=True):
    """start: first event of each step; a step ends at the next start, the last one with the window."""

    start: Ints
    basis: Basis
    n_events: int
    span_us: float
    """Time from the second step on: the first holds what happens once. All of it if there is no second."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Ints:
        return np.r_[self.start[1:], self.n_events + 1]

    def step_of(self, event: Ints) -> Ints:
        """The step of each event; 0 also before the first."""
        return np.maximum(np.searchsorted(self.start, event, side="right") - 1, 0)

    @classmethod
    def build(cls, snapshot: MemorySnapshot, attribution: Attribution) -> MemorySteps:
        device = attribution.device
        ends = [m.end_us for m in snapshot.marks if m.name.startswith("Optimizer.step#") and m.device in (device.device, -1)]
        if len(ends) > 1:
            return cls.made(device, _starts(np.searchsorted(device.events.time_us, sorted(ends), side="right")), "optimizer")
        backward = attribution.runs.end[attribution.runs.phase == Phase.BACKWARD]
        if len(backward) > 1:
            return cls.made(device, _starts(backward), "backward")
        repeats = _repeats(attribution)
        if repeats is not None:
            return cls.made(device, repeats, "repeats")
        return cls.made(device, np.zeros(1, "i8"), "whole")

    @classmethod
    def made(cls, device: DeviceMemory, start: Ints, basis: Basis) -> MemorySteps:
        """Steps that start at these events."""
        time, n = device.events.time_us, len(device.events)
        second = int(start[1]) if len(start) > 1 and start[1] < n else 0
        return cls(start, basis, n, float(time[-1] - time[second]) if n else 0.0)


def _starts(ends: Ints) -> Ints:
    """Each step starts at the end of the one before."""
    return np.unique(np.r_[0, ends[:-1]]).astype("i8")


def _repeats(attribution: Attribution) -> Ints | None:
    """Births of the allocation that returns the fewest times, evenly through the window: once a step.

    Only what is made outside of any module's forward counts: inside, layers repeat as steps do. `repeats` is of no use here: what repeats least often is
    mostly what sets the program up, and events between steps vary with the cache.
    """
    a = attribution.device.allocations
    rows = np.flatnonzero(a.born >= 0)
    if len(rows) < FEWEST_REPEATS or not (a.stack[rows] >= 0).any():
        return None
    inside = np.array([bool(origin.module) for origin in attribution.origins.of])
    first, last = int(a.born[rows].min()), int(a.born[rows].max())
    best: Ints | None = None
    for found in by_stack(a, rows[~inside[a.stack[rows]]]):
        at = a.born[found]
        if len(at) < FEWEST_REPEATS or (best is not None and len(at) >= len(best)):
            continue
        gaps = np.diff(at)
        even = np.abs(gaps - np.median(gaps)).max() <= EVEN * np.median(gaps)
        if even and at[-1] - at[0] >= COVERS * (last - first):
            best = at
    return best
