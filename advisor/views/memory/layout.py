"""A device's events laid out again, block by block: which allocations there were, and how large a block each of them got."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from advisor.recordings.extension import EXTENSION
from advisor.recordings.snapshot import Action, DeviceSnapshot, Events, Ints, Segment
from advisor.views.memory.allocator import Settings


class Lives(msgspec.Struct, frozen=True):
    """Allocations, a row each: those older than the window, then the others in order of birth. Columns of equal length."""

    older: int
    """How many of them are older."""
    address: Ints
    requested: Ints
    born: Ints
    """Index of the event, -1 before the window."""
    freed: Ints
    """Index of the event, beyond the last if there is none."""
    completed: Ints
    stream: Ints
    stack: Ints


def lives_of(device: DeviceSnapshot) -> Lives:
    """Every allocation. Older ones show when they are freed without having been born, and as blocks of the snapshot that no event explains."""
    events, end = device.events, len(device.events) + 1
    births = np.flatnonzero(events.action == Action.ALLOC)
    frees, born, held = _pairs(events, Action.ALLOC, Action.FREE_REQUESTED)
    completions, freed, _ = _pairs(events, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    unborn = np.sort(frees[born < 0])
    stack = events.stack.astype("i8")
    blocks = []
    held_at = dict(zip(events.address[held].tolist(), held.tolist(), strict=True))
    for block, stream in {b.address: (b, segment.stream) for segment in device.segments for b in segment.blocks if b.allocated}.values():
        if block.address in held_at:
            at = held_at[block.address]
            stack[at] = max(int(stack[at]), block.stack)
        else:
            blocks.append((block.address, block.requested, stream, block.stack))
    found = np.array(blocks, "i8").reshape(-1, 4).T
    older = len(unborn) + len(blocks)
    # Rows of events: of a birth, and of the free that ends it.
    row = np.full(len(events), -1)
    row[births], row[unborn] = older + np.arange(len(births)), np.arange(len(unborn))
    row[frees[born >= 0]] = row[born[born >= 0]]
    ended = np.full((2, older + len(births)), end)
    ended[0][row[frees]] = frees
    ended[1][row[freed[freed >= 0]]] = completions[freed >= 0]
    return Lives(
        older=older,
        address=np.concatenate([events.address[unborn], found[0], events.address[births]]),
        requested=np.concatenate([events.size[unborn], found[1], events.size[births]]),
        born=np.concatenate([np.full(older, -1), births]),
        freed=ended[0],
        completed=ended[1],
        stream=np.concatenate([events.stream[unborn], found[2], events.stream[births]]),
        stack=np.concatenate([np.full(len(unborn), -1), found[3], stack[births]]),
    )


def _pairs(events: Events, opening: Action, closing: Action) -> tuple[Ints, Ints, Ints]:
    """By address: the closing events; the event that each closes, -1 if nothing is open there; and the events open at the end.

    An opening event replaces another at its address.
    """
    at = np.flatnonzero((events.action == opening) | (events.action == closing))
    at = at[np.argsort(events.address[at], kind="stable")]
    opens, address = events.action[at] == opening, events.address[at]
    follows = address[1:] == address[:-1]
    closed = np.full(len(at), -1)
    closed[1:] = np.where(follows & opens[:-1], at[:-1], -1)
    last = np.ones(len(at), bool)
    last[:-1] = ~follows
    return at[~opens], closed[~opens], at[opens & last]


def sizes_of(lives: Lives, segments: Iterable[Segment], device: DeviceSnapshot, settings: Settings) -> Ints:
    """Block bytes of each allocation: the rounded request, plus a remainder too small to split off.

    A free block of the large pool is never as small as the minimum remainder. So at the window's start such a small gap after a block belongs to it.
    """
    starts = {s.address: s.address + s.size for s in segments}
    old, rounded = lives.address[: lives.older].tolist(), settings.all_rounded(lives.requested)
    sizes = rounded[: lives.older].tolist()
    free = _free_at_start(old, starts, sizes, settings)
    rounded[: lives.older] = sizes
    taken = _laid_out(device.events, old, rounded, free, starts, settings)
    exact = {b.address: b.size for segment in device.segments for b in segment.blocks if b.allocated}
    for row in np.flatnonzero(lives.freed > len(device.events)).tolist():
        taken[row] = exact.get(int(lives.address[row]), taken[row])
    return taken


def _laid_out(events: Events, old: list[int], rounded: Ints, free: dict[int, int], starts: dict[int, int], settings: Settings) -> Ints:
    """The size that each block of these rounded sizes gets. old: addresses of those older than the window, which come first."""
    if EXTENSION is not None:
        lists = (np.array(one, "i8").tobytes() for one in (old, list(free), list(free.values()), list(starts)))
        columns = (
            np.ascontiguousarray(one, kind).tobytes() for one, kind in ((events.action, "i1"), (events.address, "i8"), (events.size, "i8"), (rounded, "i8"))
        )
        try:
            return np.frombuffer(EXTENSION.block_sizes(*columns, *lists, settings.max_split, settings.expandable), "i8").copy()
        except (ValueError, OverflowError):
            pass  # sums beyond 64 bits
    return laid_out_in_python(events, old, rounded, free, starts, settings)


def laid_out_in_python(events: Events, old: list[int], rounded: Ints, free: dict[int, int], starts: dict[int, int], settings: Settings) -> Ints:
    """The same without the extension. Changes `free` and `starts`."""
    replay = _Layout(settings, free, starts)
    sizes = rounded.tolist()
    for place, size in zip(old, sizes, strict=False):
        replay.hold(place, size)
    row = len(old)
    columns = (events.action, events.address, events.size)
    for action, place, length in zip(*(c.tolist() for c in columns), strict=True):
        if action == Action.ALLOC:
            sizes[row] = replay.take(place, sizes[row])
            row += 1
        elif action == Action.FREE_COMPLETED:
            replay.give(place)
        elif action == Action.SEGMENT_ALLOC:
            replay.add(place, length)
        elif action == Action.SEGMENT_FREE:
            replay.remove(place)
    return np.array(sizes, "i8")


def _free_at_start(old: list[int], starts: dict[int, int], sizes: list[int], settings: Settings) -> dict[int, int]:
    """Free blocks by address at the window's start; the sizes of old blocks that fill a small rest are corrected."""
    order = sorted(range(len(old)), key=old.__getitem__)
    free: dict[int, int] = {}
    at_row = 0
    for start, end in sorted(starts.items()):
        at = start
        previous = -1
        while at_row < len(order) and old[order[at_row]] < start:
            at_row += 1
        while at_row < len(order) and old[order[at_row]] < end:
            row = order[at_row]
            _close(free, sizes, previous, at, old[row], settings)
            previous, at = row, old[row] + sizes[row]
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
