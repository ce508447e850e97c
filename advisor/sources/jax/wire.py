"""Many small protobuf messages at once: what `advisor.sources.protobuf` does for one, with their fields as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.intervals import Ints

Bytes = NDArray[np.uint8]

PADDING = bytes(16)
"""Stands behind the bytes that are decoded, so that a number cut off by their end is read and refused, not sought outside."""

_LONGEST_SHIFT = 63  # bits: the last of a varint's ten bytes


class Fields(NamedTuple):
    """The next field of each message that has one. messages: (n,) which. number, wire: of the field. value: (n,) its number, or how
    many bytes it has. start, stop: (n,) where its bytes begin and end."""

    messages: Ints
    number: Ints
    wire: Ints
    value: Ints
    start: Ints
    stop: Ints

    def select_field(self, number: int, *wires: int) -> Fields:
        """Those of one field. Raises ValueError if it has another wire type than these."""
        chosen = self.number == number
        found = self if chosen.all() else Fields(*(column[chosen] for column in self))
        if not np.isin(found.wire, wires).all():
            raise ValueError(f"field {number} has another type than its own")
        return found


def in_turn(data: Bytes, start: Ints, stop: Ints) -> Iterator[Fields]:
    """The first field of each message, then the second of those that have two, and so on. Raises ValueError if bytes are no message.

    data: ends in `PADDING`. start, stop: (n,) where each message begins and ends.
    """
    messages = np.arange(len(start))
    at = start
    while len(messages):
        key, behind = varints(data, at)
        number, wire = key >> 3, key & 7
        value, end = varints(data, behind)
        begin = np.where(wire == 2, end, behind)
        fixed = np.where(wire == 1, 8, 4)
        end = np.where(wire == 0, end, np.where(wire == 2, end + value, behind + fixed))
        left = stop - at
        if not (((wire <= 2) | (wire == 5)) & (number > 0) & (end > at) & (end - at <= left) & ((wire != 2) | ((value >= 0) & (value <= left)))).all():
            raise ValueError("a field is none, or goes on behind the end of its message")
        yield Fields(messages, number, wire, value, begin, end)
        more = end < stop
        messages, at, stop = messages[more], end[more], stop[more]


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """(n,) the number that is at each place, as 64 bits with a sign, and (n,) where it ends. Raises ValueError if one does not."""
    byte = data[at]
    value = (byte & 127).astype(np.int64)
    behind = at + 1
    more = np.flatnonzero(byte > 127)
    shift = 7
    while len(more):
        if shift > _LONGEST_SHIFT:
            raise ValueError("a number does not end")
        byte = data[behind[more]]
        value[more] |= (byte & 127).astype(np.int64) << shift
        behind[more] += 1
        more = more[byte > 127]
        shift += 7
    return value, behind


def records(data: bytes, at: int, end: int, tag: int) -> tuple[list[int], list[int], int]:
    """Where the messages of one repeated field begin and end, as many as stand whole and without a break from `at`, and what follows
    them. data: ends in `PADDING`, which `end` leaves out."""
    starts: list[int] = []
    stops: list[int] = []
    begin, stop = starts.append, stops.append
    while at < end and data[at] == tag:
        size = data[at + 1]
        here = at + 2
        if size > 127:
            size, here = _size(data, at + 1)
        if here + size > end:
            break
        begin(here)
        at = here + size
        stop(at)
    return starts, stops, at


def _size(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while shift <= _LONGEST_SHIFT:
        byte = data[at]
        size |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return size, at
        shift += 7
    raise ValueError("a number does not end")
