"""A device's events laid out again, block by block: which allocations there were, and how large a block each of them got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from advisor.recordings.snapshot import Action, DeviceSnapshot, Segment
from advisor.views.memory.allocator import Settings


class Lives(msgspec.Struct):
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
        self.address.append(address)
        self.requested.append(requested)
        self.born.append(born)
        self.freed.append(end)
        self.completed.append(end)
        self.stream.append(stream)
        self.stack.append(stack)
        return len(self.address) - 1


def lives_of(device: DeviceSnapshot) -> tuple[Lives, int]:
    """Every allocation, and how many of them, which come first, are older than the window.

    Older ones show when they are freed without having been born, and as blocks of the snapshot that no event explains.
    """
    n = len(device.events)
    end = n + 1
    older, born = Lives([], [], [], [], [], [], []), Lives([], [], [], [], [], [], [])
    held: dict[int, tuple[Lives, int]] = {}
    pending: dict[int, tuple[Lives, int]] = {}
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
    for column, values in zip(msgspec.structs.astuple(older), msgspec.structs.astuple(born), strict=True):
        column.extend(values)
    return older, seeded


def sizes_of(lives: Lives, seeded: int, segments: Iterable[Segment], device: DeviceSnapshot, settings: Settings) -> list[int]:
    """Block bytes of each allocation: the rounded request, plus a remainder too small to split off.

    A free block of the large pool is never as small as the minimum remainder. So at the window's start such a small gap after a block belongs to it.
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
    return sizes


def _free_at_start(lives: Lives, seeded: int, starts: dict[int, int], sizes: list[int], settings: Settings) -> dict[int, int]:
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
    """The gap between two old blocks: free, or the remainder of the first."""
    if until <= at:
        return
    if previous >= 0 and not settings.splits(until - at + sizes[previous], sizes[previous]):
        sizes[previous] += until - at
    else:
        free[at] = until - at


class _Layout:
    """Free blocks by address, as recorded events leave them: the size of a block when it was taken.

    If the start of the history was overwritten, events may contradict and free blocks overlap; unknown blocks are left out.
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
