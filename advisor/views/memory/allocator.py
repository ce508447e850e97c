"""A simulation of PyTorch's caching allocator (`c10/cuda/CUDACachingAllocator.cpp`): reserved memory for a sequence of requests.

Requests are rounded and served from the smallest fitting free block of their stream and pool, else from a new segment. Free neighbours merge.
With expandable segments each stream and pool has a single segment that grows at its end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from advisor.recordings.snapshot import Ints

MIN_BLOCK = 512  # c10/cuda/CUDACachingAllocator: kMinBlockSize, as the sizes below
SMALL_REQUEST = 1 << 20
"""Requests up to this come from segments of SMALL_SEGMENT."""
SMALL_SEGMENT = 2 << 20  # kSmallBuffer
LARGE_SEGMENT = 20 << 20
"""What requests of the large pool below MIN_LARGE share."""
MIN_LARGE = 10 << 20  # kMinLargeAlloc
ROUND_LARGE = 2 << 20  # kRoundLarge

_DIVISION_STEPS = 16  # kRoundUpPowerOfTwoIntervals
_FIRST_DIVISION = 20
"""roundup_power2_divisions names 16 ranges of sizes: from 1 MiB (2^20) doubling."""


class Settings(msgspec.Struct, frozen=True):
    """What PYTORCH_CUDA_ALLOC_CONF says, as far as it changes what is reserved."""

    expandable: bool = False
    max_split: int = -1
    """Blocks of this size and more are never split; -1: no limit."""
    divisions: tuple[int, ...] = ()
    """Steps between powers of two that requests are rounded to, by size from 1 MiB doubling; () or 0: none."""

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> Settings:
        """The settings that a snapshot carries."""
        by_size = settings.get("roundup_power2_divisions") or {}
        divisions = tuple(int(by_size.get(str(1 << i), 0)) for i in range(_DIVISION_STEPS)) if isinstance(by_size, dict) else ()
        return cls(
            expandable=bool(settings.get("expandable_segments", False)),
            max_split=int(settings.get("max_split_size", -1)),
            divisions=divisions if any(divisions) else (),
        )

    def rounded(self, size: int) -> int:
        """Bytes of the block that a request of `size` gets, before what is left is split off."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        if self.divisions:
            step = min(max(size.bit_length() - 1 - _FIRST_DIVISION, 0), _DIVISION_STEPS - 1)
            divisions = self.divisions[step]
            if divisions > 1 and size > MIN_BLOCK * divisions:
                part = (1 << (size.bit_length() - 1)) >> (divisions.bit_length() - 1)
                return -(-size // part) * part if part else 1 << size.bit_length()
        return -(-size // MIN_BLOCK) * MIN_BLOCK

    def all_rounded(self, sizes: Ints) -> Ints:
        """The same of a column."""
        different, of = np.unique(sizes, return_inverse=True)
        return np.array([self.rounded(size) for size in different.tolist()], "i8")[of.reshape(-1)]

    def splits(self, have: int, take: int) -> bool:
        """Whether a free block of `have` bytes is split after its first `take`."""
        if take <= SMALL_REQUEST or self.expandable:
            return have - take >= MIN_BLOCK
        return (self.max_split < 0 or take < self.max_split) and have - take > SMALL_REQUEST


def segment_size(size: int) -> int:
    """Bytes asked of the driver for a request that no free block fits."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE


class PoolKey(NamedTuple):
    """Blocks are shared only within a stream, one of the two size classes, and a private pool (a CUDA graph's)."""

    stream: int
    large: bool
    private: tuple[int, int] = (0, 0)


class _Pool(msgspec.Struct):
    free: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """(size, address) of its free blocks, smallest first."""
    end: int = -1
    """Of an expandable segment: end of its mapped part; -1 before it exists."""


class Allocator:
    """The allocator of one device. Addresses are its own; only their order within a segment means anything."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reserved = 0
        self.allocated = 0
        self._pools: defaultdict[PoolKey, _Pool] = defaultdict(_Pool)
        self._free: dict[int, tuple[int, PoolKey]] = {}
        self._free_end: dict[int, int] = {}
        self._taken: dict[int, tuple[int, PoolKey]] = {}
        self._segments: dict[int, int] = {}
        self._next = 1 << 60

    def adopt(self, address: int, size: int, pool: PoolKey, taken: Iterable[tuple[int, int]]) -> None:
        """Start with a segment as it was found: `taken` are the address and size of its blocks in use, in order."""
        self._segments[address] = size
        self.reserved += size
        at, end = address, address + size
        for block, length in taken:
            if block > at:
                self._give(at, block - at, pool)
            self._taken[block] = (length, pool)
            self.allocated += length
            at = block + length
        if at < end:
            self._give(at, end - at, pool)

    def alloc(self, requested: int, stream: int = 0, private: tuple[int, int] = (0, 0)) -> int:
        """The address of a block for a request."""
        size = self.settings.rounded(requested)
        pool = PoolKey(stream, size > SMALL_REQUEST, private)
        blocks = self._pools[pool]
        at = bisect_left(blocks.free, (size, -1))
        if at + 1 < len(blocks.free) and sum(blocks.free[at]) == blocks.end:
            at += 1  # what can still grow counts as large as it can get
        if at < len(blocks.free) and self._fits(blocks.free[at][0], size):
            have, address = blocks.free[at]
            self._take_free(address)
        else:
            address, have = self._grow(pool, blocks, size)
        if self.settings.splits(have, size):
            self._give(address + size, have - size, pool)
            have = size
        self._taken[address] = (have, pool)
        self.allocated += have
        return address

    def free(self, address: int) -> None:
        """Give a block back; it merges with free neighbours of its segment."""
        size, pool = self._taken.pop(address)
        self.allocated -= size
        following = self._free.get(address + size)
        if following is not None and following[1] == pool and address + size not in self._segments:
            self._take_free(address + size)
            size += following[0]
        before = self._free_end.get(address)
        if before is not None and address not in self._segments and self._free[before][1] == pool:
            size += self._free[before][0]
            self._take_free(before)
            address = before
        self._give(address, size, pool)

    def release_cached(self) -> None:
        """`torch.cuda.empty_cache()`: wholly free segments go back to the driver."""
        for address, (size, pool) in list(self._free.items()):
            if self._segments.get(address) == size:
                self._take_free(address)
                del self._segments[address]
                self.reserved -= size
            elif self.settings.expandable and address + size == self._pools[pool].end:
                self._take_free(address)
                self._pools[pool].end = address
                self.reserved -= size

    def _fits(self, have: int, size: int) -> bool:
        """Whether the smallest block that is large enough may be used: blocks beyond max_split serve only requests near them."""
        limit = self.settings.max_split
        if limit < 0:
            return True
        return have < limit if size < limit else have < size + LARGE_SEGMENT

    def _grow(self, pool: PoolKey, blocks: _Pool, size: int) -> tuple[int, int]:
        if self.settings.expandable:
            return self._extend(pool, blocks, size)
        length = segment_size(size)
        self._next -= length
        self._segments[self._next] = length
        self.reserved += length
        return self._next, length

    def _extend(self, pool: PoolKey, blocks: _Pool, size: int) -> tuple[int, int]:
        """Map pages at the end of the pool's expandable segment, after what is free there."""
        page = LARGE_SEGMENT if pool.large else SMALL_SEGMENT
        if blocks.end < 0:
            # Far enough from any other that no two ever meet.
            self._next -= 1 << 50
            blocks.end = self._next
        start, have = blocks.end, 0
        tail = self._free_end.get(blocks.end)
        if tail is not None and self._free[tail][1] == pool:
            start, have = tail, self._free[tail][0]
            self._take_free(tail)
        mapped = -(-(size - have) // page) * page
        blocks.end += mapped
        self.reserved += mapped
        return start, have + mapped

    def _give(self, address: int, size: int, pool: PoolKey) -> None:
        insort(self._pools[pool].free, (size, address))
        self._free[address] = (size, pool)
        self._free_end[address + size] = address

    def _take_free(self, address: int) -> None:
        size, pool = self._free.pop(address)
        del self._free_end[address + size]
        free = self._pools[pool].free
        del free[bisect_left(free, (size, address))]
