"""The timeline of memory: every allocation with its life, and the curves of allocated and reserved bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from advisor.recordings.snapshot import Action, DeviceSnapshot, Events, Ints, MemorySnapshot, Segment
from advisor.views.memory.allocator import SMALL_REQUEST, Settings

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Allocations:
    """One row an allocation, those older than the window first, then in order of birth. Columns of one length."""

    address: Ints
    requested: Ints
    size: Ints
    """Bytes of the block: rounded, and with what was too little to split off."""
    born: Ints
    """Index of the event, -1 before the window."""
    freed: Ints
    """Index of the event that gave it back; the number of events where it is still held."""
    completed: Ints
    """Index of the event after which it could be used again."""
    stream: Ints
    stack: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.size)

    def alive(self, event: int) -> Bools:
        """Those held just after that event."""
        alive: Bools = (self.born <= event) & (self.freed > event)
        return alive


@dataclass(frozen=True)
class DeviceMemory:
    """One device's memory over its events."""

    device: int
    events: Events
    allocations: Allocations
    reserved_start: int
    """Bytes reserved before the first event."""
    segments_start: tuple[Segment, ...]
    """Segments held before the first event, their blocks left out."""
    segments_end: tuple[Segment, ...]
    """As the snapshot found them."""
    truncated: bool
    """Whether blocks are held whose stack is known and whose event is not: the history began, or was cut, later."""

    @cached_property
    def allocated(self) -> Ints:
        """Bytes allocated after each event."""
        return self.curve(self.allocations.size)

    def curve(self, size: Ints, born: Ints | None = None, freed: Ints | None = None) -> Ints:
        """Bytes held after each event by allocations of these sizes and lives, as recorded where not given."""
        n = len(self.events)
        change = np.zeros(n + 2, "i8")
        np.add.at(change, np.maximum(self.allocations.born if born is None else born, 0), size)
        np.subtract.at(change, np.maximum(self.allocations.freed if freed is None else freed, 0), size)
        held: Ints = np.cumsum(change)[: max(n, 1)]
        return held

    @cached_property
    def reserved(self) -> Ints:
        """Bytes reserved after each event."""
        return self.reserved_start + np.cumsum(_growth(self.events)) if len(self.events) else np.array([self.reserved_start])

    @cached_property
    def peak(self) -> int:
        """The event after which most was allocated."""
        return int(np.argmax(self.allocated))

    @property
    def span_us(self) -> float:
        """Time that the events cover."""
        return float(self.events.time_us[-1] - self.events.time_us[0]) if len(self.events) else 0.0

    @property
    def peak_allocated(self) -> int:
        return int(self.allocated[self.peak])

    @property
    def peak_reserved(self) -> int:
        return max(int(self.reserved.max()), self.reserved_start)

    @property
    def idle_start(self) -> int:
        """Bytes reserved before the first event that nothing held then."""
        return max(self.reserved_start - int(self.allocations.size[self.allocations.born < 0].sum()), 0)

    @cached_property
    def at_peak(self) -> Bools:
        """The allocations held at the peak."""
        return self.allocations.alive(self.peak)


@dataclass(frozen=True)
class MemoryHistory:
    """The memory of each device; `main` is the one that holds most."""

    devices: tuple[DeviceMemory, ...]
    settings: Settings

    @property
    def main(self) -> DeviceMemory:
        return max(self.devices, key=lambda d: d.peak_allocated)

    @classmethod
    def build(cls, snapshot: MemorySnapshot) -> MemoryHistory:
        settings = Settings.recorded(snapshot.settings)
        return cls(tuple(_device(device, settings) for device in snapshot.devices), settings)


def _growth(events: Events) -> Ints:
    """What each event adds to the reserved bytes."""
    sign = np.zeros(len(Action), "i8")
    sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
    sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
    return sign[events.action] * events.size


def _device(device: DeviceSnapshot, settings: Settings) -> DeviceMemory:
    reserved_start = device.reserved_bytes - int(_growth(device.events).sum())
    lives, seeded = _lives(device)
    segments = _segments_at_start(device)
    allocations = _sized(lives, seeded, segments, device, settings)
    known = {block.address for segment in device.segments for block in segment.blocks if block.stack >= 0 and block.allocated}
    old = allocations.address[:seeded]
    return DeviceMemory(
        device=device.device,
        events=device.events,
        allocations=allocations,
        reserved_start=max(reserved_start, 0),
        segments_start=segments,
        segments_end=device.segments,
        truncated=len(device.events) > 0 and any(int(address) in known for address in old),
    )


@dataclass
class _Lives:
    """Allocations under way, one entry each."""

    address: list[int]
    requested: list[int]
    born: list[int]
    freed: list[int]
    completed: list[int]
    stream: list[int]
    stack: list[int]

    def add(self, address: int, requested: int, born: int, stream: int, stack: int, end: int) -> int:
        """Its row."""
        for column, value in zip(vars(self).values(), (address, requested, born, end, end, stream, stack), strict=True):
            column.append(value)
        return len(self.address) - 1


def _lives(device: DeviceSnapshot) -> tuple[_Lives, int]:
    """Every allocation, and how many of them, which come first, are older than the window.

    Older ones show when they are freed without having been born, and as blocks of the snapshot that no event explains.
    """
    n = len(device.events)
    end = n + 1
    older, born = _Lives([], [], [], [], [], [], []), _Lives([], [], [], [], [], [], [])
    held: dict[int, tuple[_Lives, int]] = {}
    pending: dict[int, tuple[_Lives, int]] = {}
    columns = (device.events.action, device.events.address, device.events.size, device.events.stream, device.events.stack)
    for i, (action, address, size, stream, stack) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if action == Action.ALLOC:
            held[address] = born, born.add(address, size, i, stream, stack, end)
        elif action == Action.FREE_REQUESTED:
            lives, row = held.pop(address) if address in held else (older, older.add(address, size, -1, stream, -1, end))
            lives.freed[row] = i
            pending[address] = lives, row
        elif action == Action.FREE_COMPLETED and address in pending:
            lives, row = pending.pop(address)
            lives.completed[row] = i
    blocks = {b.address: (b, segment) for segment in device.segments for b in segment.blocks if b.allocated}
    for address, (block, segment) in blocks.items():
        if address in held:
            held[address][0].stack[held[address][1]] = max(held[address][0].stack[held[address][1]], block.stack)
        else:
            older.add(address, block.requested, -1, segment.stream, block.stack, end)
    seeded = len(older.address)
    for column, values in zip(vars(older).values(), vars(born).values(), strict=True):
        column.extend(values)
    return older, seeded


def _segments_at_start(device: DeviceSnapshot) -> tuple[Segment, ...]:
    """Segments held before the window: those found at its end that it did not get, and those that it gave back."""
    got: set[int] = set()
    lost: list[Segment] = []
    events = device.events
    marked = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for i in np.flatnonzero(marked).tolist():
        address, size = int(events.address[i]), int(events.size[i])
        if events.action[i] == Action.SEGMENT_ALLOC:
            got.add(address)
        elif address in got:
            got.discard(address)
        else:
            lost.append(Segment(address, size, int(events.stream[i]), size > 2 * SMALL_REQUEST, (0, 0), False, ()))
    kept = [s._replace(blocks=()) for s in device.segments if s.address not in got and not s.expandable]
    apart: list[Segment] = []
    for segment in sorted(kept + lost):
        if not apart or segment.address >= apart[-1].address + apart[-1].size:  # what overlaps contradicts itself
            apart.append(segment)
    return tuple(apart)


def _sized(lives: _Lives, seeded: int, segments: Iterable[Segment], device: DeviceSnapshot, settings: Settings) -> Allocations:
    """The allocations with the bytes of their blocks: requests rounded, and what could not be split off added.

    A free block of the large pool is never as small as what splitting must leave, so in a segment laid out at the
    window's start what lies between a block and the next is its own where it is that small.
    """
    exact = {b.address: b.size for segment in device.segments for b in segment.blocks if b.allocated}
    sizes = [settings.rounded(r) for r in lives.requested]
    starts = {s.address: s.address + s.size for s in segments}
    free = _free_at_start(lives, seeded, starts, sizes, settings)
    replay = _Layout(settings, free, starts)
    ends: dict[int, list[int]] = defaultdict(list)
    for row in range(seeded):
        replay.hold(lives.address[row], sizes[row])
    births = {born: row for row, born in enumerate(lives.born) if born >= 0}
    for row, done in enumerate(lives.completed):
        ends[done].append(row)
    columns = (device.events.action, device.events.address, device.events.size)
    for i, (action, place, length) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if action == Action.ALLOC:
            sizes[births[i]] = replay.take(place, sizes[births[i]])
        elif action == Action.FREE_COMPLETED:
            replay.give(place)
        elif action == Action.SEGMENT_ALLOC:
            replay.add(place, length)
        elif action == Action.SEGMENT_FREE:
            replay.remove(place)
    for row in range(len(sizes)):
        if lives.freed[row] > len(device.events):
            sizes[row] = exact.get(lives.address[row], sizes[row])
    columns_of = (lives.address, lives.requested, sizes, lives.born, lives.freed, lives.completed, lives.stream)
    address, requested, size, born, freed, completed, stream = (np.array(column, "i8") for column in columns_of)
    return Allocations(address, requested, size, born, freed, completed, stream, np.array(lives.stack, "i4"))


def _free_at_start(lives: _Lives, seeded: int, starts: dict[int, int], sizes: list[int], settings: Settings) -> dict[int, int]:
    """Free blocks by address at the window's start; the sizes of old blocks that fill a small rest are corrected."""
    order = sorted(range(seeded), key=lives.address.__getitem__)
    free: dict[int, int] = {}
    at_row = 0
    for start, end in sorted(starts.items()):
        at = start
        previous = -1
        while at_row < len(order) and lives.address[order[at_row]] < start:
            at_row += 1
        while at_row < len(order) and lives.address[order[at_row]] < end:
            row = order[at_row]
            _close(free, sizes, previous, at, lives.address[row], settings)
            previous, at = row, lives.address[row] + sizes[row]
            at_row += 1
        _close(free, sizes, previous, at, end, settings)
    return free


def _close(free: dict[int, int], sizes: list[int], previous: int, at: int, until: int, settings: Settings) -> None:
    """What lies between two old blocks: free, or the rest of the one before."""
    if until <= at:
        return
    if previous >= 0 and not settings.splits(until - at + sizes[previous], sizes[previous]):
        sizes[previous] += until - at
    else:
        free[at] = until - at


class _Layout:
    """Free blocks by address as the recorded events leave them: how large a block was when it was taken.

    Where the history's start was overwritten events may contradict each other, and free blocks overlap: what is not found is left out.
    """

    def __init__(self, settings: Settings, free: dict[int, int], segments: dict[int, int]) -> None:
        self._settings = settings
        self._free = free
        self._by_end = {address + size: address for address, size in free.items()}
        self._segments = segments
        self._held: dict[int, int] = {}

    def hold(self, address: int, size: int) -> None:
        self._held[address] = size

    def take(self, address: int, size: int) -> int:
        """The bytes that an allocation at this address takes."""
        have = self._free.pop(address, None)
        if have is None:
            self._held[address] = size
            return size
        self._by_end.pop(address + have, None)
        if have > size and self._settings.splits(have, size):
            self._add(address + size, have - size)
            have = size
        self._held[address] = max(have, size)
        return max(have, size)

    def give(self, address: int) -> None:
        size = self._held.pop(address, None)
        if size is None:
            return
        if address + size in self._free and address + size not in self._segments:
            following = self._free.pop(address + size)
            self._by_end.pop(address + size + following, None)
            size += following
        before = self._by_end.get(address)
        if before is not None and before in self._free and address not in self._segments:
            self._by_end.pop(address, None)
            size += self._free.pop(before)
            address = before
        self._add(address, size)

    def add(self, address: int, size: int) -> None:
        self._segments[address] = address + size
        self._add(address, size)

    def remove(self, address: int) -> None:
        self._segments.pop(address, None)
        size = self._free.pop(address, None)
        if size is not None:
            self._by_end.pop(address + size, None)

    def _add(self, address: int, size: int) -> None:
        self._free[address] = size
        self._by_end[address + size] = address
