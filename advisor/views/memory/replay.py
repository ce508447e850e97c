"""A device's requests replayed through the simulated allocator, as recorded or edited: what a fix would leave reserved."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.knowledge.structs import replace
from advisor.recordings.snapshot import Action, Ints
from advisor.views.memory.allocator import Allocator, PoolKey, Settings
from advisor.views.memory.history import Bools, DeviceMemory, MemoryHistory


class Lives(NamedTuple):
    """Requests of a program: an edited row per allocation. A size of 0 is not requested.

    Events are of the history; events before the window are -1.
    """

    row: Ints
    """The recorded allocation that it is, or is a part of."""
    requested: Ints
    size: Ints
    """Bytes of its block."""
    born: Ints
    freed: Ints
    completed: Ints

    def without_rows(self, rows: Bools) -> Lives:
        """The same without those rows."""
        return Lives(*(column[~rows] for column in self))

    def resized(self, rows: Bools, requested: Ints) -> Lives:
        """The same with those rows of other sizes."""
        return self._replace(requested=np.where(rows, requested, self.requested), size=np.where(rows, requested, self.size))

    def freed_at(self, rows: Bools, event: Ints) -> Lives:
        """The same with those rows given back at other events."""
        return self._replace(freed=np.where(rows, event, self.freed), completed=np.where(rows, event, self.completed))

    def repeat_rows(self, rows: Bools, born: Ints, freed: Ints) -> Lives:
        """The same with those rows a second time, with other lives; `born` and `freed` have a value for every row."""
        again = Lives(self.row[rows], self.requested[rows], self.size[rows], born[rows], freed[rows], freed[rows])
        return Lives(*(np.concatenate(pair) for pair in zip(self, again, strict=True)))


class Peaks(NamedTuple):
    """The most bytes held at a time."""

    allocated: int
    reserved: int


class MemoryReplay(msgspec.Struct, frozen=True, dict=True):
    """Replays of the device that holds most."""

    device: DeviceMemory
    settings: Settings

    @classmethod
    def build(cls, history: MemoryHistory) -> MemoryReplay:
        return cls(history.main, history.settings)

    @property
    def recorded(self) -> Lives:
        a = self.device.allocations
        return Lives(np.arange(len(a)), a.requested, a.size, a.born, a.freed, a.completed)

    @cached_property
    def fidelity(self) -> float:
        """How far the replay of what was recorded is from the recorded peak of reserved bytes, as a share of it."""
        peak = self.device.peak_reserved
        return abs(self.run(self.recorded).reserved - peak) / peak if peak else 0.0

    @cached_property
    def expandable(self) -> Peaks:
        """The peaks of what was recorded with expandable segments. As costly as `fidelity`: asked only of what may be in pieces."""
        return self.run(self.recorded, expandable=True)

    def allocated_curve(self, lives: Lives) -> Ints:
        """Bytes allocated after each event; no allocator is needed for it."""
        return self.device.curve(lives.size, lives.born, lives.freed)

    def allocated(self, lives: Lives) -> int:
        """The peak of allocated bytes."""
        return int(self.allocated_curve(lives).max())

    def run(self, lives: Lives, *, expandable: bool | None = None) -> Peaks:
        """The peaks of a replay; `expandable`: with expandable segments, as recorded where None."""
        curve = self.reserved_curve(lives, expandable=expandable)
        return Peaks(self.allocated(lives), int(curve.max()))

    def reserved_curve(self, lives: Lives, *, expandable: bool | None = None) -> Ints:
        """Bytes reserved after each event."""
        settings = self.settings if expandable is None else replace(self.settings, expandable=expandable)
        allocator = Allocator(settings)
        where = self._start(allocator, lives)
        births, ends = _by_event(lives.born, lives.requested), _by_event(lives.completed, lives.requested)
        requested, original = lives.requested.tolist(), lives.row.tolist()
        stream = self.device.allocations.stream.tolist()
        releases = set(_releases(self.device))
        curve = np.empty(max(len(self.device.events), 1), "i8")
        for i in range(len(curve)):
            for row in ends.get(i, ()):
                if row in where:
                    allocator.free(where.pop(row))
            if i in releases:
                allocator.release_cached()
            for row in births.get(i, ()):
                where[row] = allocator.alloc(requested[row], stream[original[row]], self._private[original[row]])
            curve[i] = allocator.reserved
        return curve

    @cached_property
    def _private(self) -> list[tuple[int, int]]:
        """Private pool of each allocation's segment; (0, 0) if the segment is gone."""
        segments = [s for s in self.device.segments_end if s.pool != (0, 0)]
        pools = [(0, 0)] * len(self.device.allocations)
        for segment in segments:
            inside = (self.device.allocations.address >= segment.address) & (self.device.allocations.address < segment.address + segment.size)
            for row in np.flatnonzero(inside).tolist():
                pools[row] = segment.pool
        return pools

    def _start(self, allocator: Allocator, lives: Lives) -> dict[int, int]:
        """Fill the allocator with what was held before the window; the address of each by its place in `lives`."""
        a = self.device.allocations
        old = np.flatnonzero((lives.born < 0) & (lives.requested > 0)).tolist()
        if allocator.settings.expandable:
            stream = a.stream.tolist()
            rows = lives.row.tolist()
            return {i: allocator.alloc(int(lives.requested[i]), stream[rows[i]], self._private[rows[i]]) for i in old}
        addresses = a.address[lives.row]
        old.sort(key=lambda i: int(addresses[i]))
        where, at = {}, 0
        for segment in self.device.segments_start:
            taken = []
            reached, end = segment.address, segment.address + segment.size
            while at < len(old) and addresses[old[at]] < end:
                i = old[at]
                at += 1
                start, size = int(addresses[i]), int(lives.size[i])
                if reached <= start and start + size <= end:  # what overlaps contradicts itself
                    taken.append((start, size))
                    where[i] = start
                    reached = start + size
            allocator.adopt(segment.address, segment.size, PoolKey(segment.stream, segment.large, segment.pool), taken)
        return where


def _by_event(event: Ints, requested: Ints) -> dict[int, list[int]]:
    """Rows by the event at which something happens to them."""
    rows = defaultdict(list)
    for row in np.flatnonzero((event >= 0) & (requested > 0)).tolist():
        rows[int(event[row])].append(row)
    return rows


def _releases(device: DeviceMemory) -> list[int]:
    """Events at which cached segments went back to the driver: the first of each run of them."""
    freed = np.flatnonzero(np.isin(device.events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)))
    return freed[np.diff(freed, prepend=-2) > 1].tolist()
