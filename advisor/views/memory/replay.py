"""A device's requests replayed through the simulated allocator, as recorded or edited: what a fix would leave reserved."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.knowledge.structs import replace
from advisor.recordings.snapshot import Action, Ints
from advisor.views.memory.allocator import Settings
from advisor.views.memory.history import Bools, DeviceMemory, MemoryHistory
from advisor.views.memory.requests import Found, Requests, reserved


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
        """The same with those rows freed at other events."""
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
        pools, private = self._private
        asked = lives.requested > 0
        old = np.flatnonzero((lives.born < 0) & asked)
        requests = Requests(
            events=max(len(self.device.events), 1),
            requested=lives.requested,
            stream=self.device.allocations.stream[lives.row],
            private=private[lives.row],
            pools=pools,
            born=np.where(asked, lives.born, -1),
            completed=np.where(asked, lives.completed, -1),
            releases=_releases(self.device),
            # An expandable segment begins anew: where its blocks lay is not what decides its size.
            found=() if settings.expandable else self._found(lives, old),
            first=old if settings.expandable else old[:0],
        )
        return reserved(requests, settings)

    @cached_property
    def _private(self) -> tuple[tuple[tuple[int, int], ...], Ints]:
        """Private pools, and for each allocation the index of its segment's; the first, (0, 0), if the segment is gone."""
        a, of = self.device.allocations, np.zeros(len(self.device.allocations), "i8")
        pools = {(0, 0): 0}
        for segment in self.device.segments_end:
            if segment.pool != (0, 0):
                inside = (a.address >= segment.address) & (a.address < segment.address + segment.size)
                of[inside] = pools.setdefault(segment.pool, len(pools))
        return tuple(pools), of

    def _found(self, lives: Lives, old: Ints) -> tuple[Found, ...]:
        """The segments held before the window, with those blocks in them."""
        address = self.device.allocations.address[lives.row[old]]
        order = np.argsort(address, kind="stable")
        rows = old[order].tolist()
        blocks = list(zip(address[order].tolist(), lives.size[rows].tolist(), strict=True))
        at, made = 0, []
        for segment in self.device.segments_start:
            found = Found(segment, [], [], [])
            reached, end = segment.address, segment.address + segment.size
            while at < len(rows) and blocks[at][0] < end:
                start, size = blocks[at]
                if reached <= start and start + size <= end:  # what overlaps contradicts itself
                    found.address.append(start)
                    found.size.append(size)
                    found.row.append(rows[at])
                    reached = start + size
                at += 1
            made.append(found)
        return tuple(made)


def _releases(device: DeviceMemory) -> Ints:
    """Events at which cached segments were freed: the first of each run of them."""
    freed = np.flatnonzero(np.isin(device.events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)))
    return freed[np.diff(freed, prepend=-2) > 1]
