"""A program's requests to the caching allocator, in order, and the bytes that the simulated allocator reserves for them.

The extension in C does the same, with equal results."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from advisor.recordings.extension import EXTENSION
from advisor.recordings.snapshot import Ints, Segment
from advisor.views.memory.allocator import SMALL_REQUEST, Allocator, PoolKey, Settings


class Found(NamedTuple):
    """A segment that was there at first, and its blocks in use, in order of their addresses."""

    segment: Segment
    address: list[int]
    size: list[int]
    row: list[int]
    """The request that each block belongs to."""


class Requests(NamedTuple):
    """Requests, a row each. A row that is neither born, completed nor found asks for nothing."""

    events: int
    requested: Ints
    stream: Ints
    private: Ints
    """Index into `pools`."""
    pools: tuple[tuple[int, int], ...]
    born: Ints
    """The event at which it is made, -1 if never."""
    completed: Ints
    """The event at which its block is free, -1 or beyond the last one if never."""
    releases: Ints
    """Events at which cached segments are returned to the driver, in order."""
    found: tuple[Found, ...]
    first: Ints
    """Rows asked for before the first event."""


def reserved(requests: Requests, settings: Settings) -> Ints:
    """Bytes reserved after each event."""
    if EXTENSION is not None:
        try:
            return np.frombuffer(EXTENSION.reserved(requests.events, *_columns(requests, settings), settings.max_split, settings.expandable), "i8")
        except (ValueError, OverflowError):
            pass  # segments that overlap, or sums beyond 64 bits
    return reserved_in_python(requests, settings)


def _columns(asked: Requests, settings: Settings) -> list[bytes]:
    """The columns as the extension takes them, which knows pools by index and sizes as rounded."""
    size = settings.all_rounded(asked.requested)
    streams, of_stream = np.unique(asked.stream, return_inverse=True)
    numbers: dict[PoolKey, int] = {}
    key = (of_stream.reshape(-1) * 2 + (size > SMALL_REQUEST)) * len(asked.pools) + asked.private
    different, pool = np.unique(key, return_inverse=True)
    for one in different.tolist():
        of, private = divmod(one, len(asked.pools))
        numbers[PoolKey(int(streams[of // 2]), bool(of % 2), asked.pools[private])] = len(numbers)
    segments = [one.segment for one in asked.found]
    number = [numbers.setdefault(PoolKey(one.stream, one.large, one.pool), len(numbers)) for one in segments]
    before: list[Any] = [asked.releases, *_in_order(asked.completed), *_in_order(asked.born), size, pool.reshape(-1), asked.first]
    after: list[Any] = [[one.address for one in segments], [one.size for one in segments], number, np.cumsum([0, *(len(one.row) for one in asked.found)])]
    after += [list(chain.from_iterable(lists)) for lists in ([f.address for f in asked.found], [f.size for f in asked.found], [f.row for f in asked.found])]
    large = np.array([one.large for one in numbers], "i1").tobytes()
    return [*(np.asarray(column, "i8").tobytes() for column in before), large, *(np.asarray(column, "i8").tobytes() for column in after)]


def reserved_in_python(asked: Requests, settings: Settings) -> Ints:
    """The same without the extension."""
    allocator = Allocator(settings)
    requested, stream, private = asked.requested.tolist(), asked.stream.tolist(), [asked.pools[i] for i in asked.private.tolist()]
    where: dict[int, int] = {}
    for segment, address, size, rows in asked.found:
        allocator.adopt(segment.address, segment.size, PoolKey(segment.stream, segment.large, segment.pool), zip(address, size, strict=True))
        where.update(zip(rows, address, strict=True))
    for row in asked.first.tolist():
        where[row] = allocator.alloc(requested[row], stream[row], private[row])
    births, ends, releases = _by_event(asked.born), _by_event(asked.completed), set(asked.releases.tolist())
    curve = np.empty(asked.events, "i8")
    for i in range(len(curve)):
        for row in ends.get(i, ()):
            if row in where:
                allocator.free(where.pop(row))
        if i in releases:
            allocator.release_cached()
        for row in births.get(i, ()):
            where[row] = allocator.alloc(requested[row], stream[row], private[row])
        curve[i] = allocator.reserved
    return curve


def _in_order(event: Ints) -> tuple[Ints, Ints]:
    """Events at which something happens, in order, and the row of each."""
    rows = np.flatnonzero(event >= 0)
    rows = rows[np.argsort(event[rows], kind="stable")]
    return event[rows], rows


def _by_event(event: Ints) -> dict[int, list[int]]:
    """Rows by the event at which something happens to them."""
    rows = defaultdict(list)
    for at, row in zip(*(column.tolist() for column in _in_order(event)), strict=True):
        rows[at].append(row)
    return rows
