"""Many small protobuf messages at once, with their fields as columns, as `advisor.sources.protobuf` decodes a single message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.intervals import Ints
from advisor.recordings.extension import EXTENSION
from advisor.sources.limits import LONGEST_VARINT

Bytes = NDArray[np.uint8]

PADDING = bytes(16)
"""Bytes after the data, so that a number cut off by the end is read and refused, not sought outside."""

_LONGEST_SHIFT = 7 * (LONGEST_VARINT - 1)  # bits


class Fields(NamedTuple):
    """The next field of each message that has more fields. messages: (n,) their indices.

    number, wire: of the field. value: (n,) its number, or its number of bytes. start, stop: (n,) range of its bytes."""

    messages: Ints
    number: Ints
    wire: Ints
    value: Ints
    start: Ints
    stop: Ints

    def select_field(self, number: int, *wires: int) -> Fields:
        """Values of a field. Raises ValueError if its wire type is another."""
        chosen = self.number == number
        found = self if chosen.all() else Fields(*(column[chosen] for column in self))
        if not np.isin(found.wire, wires).all():
            raise ValueError(f"field {number} has another type than its own")
        return found


def in_turn(data: bytes, start: Ints, stop: Ints) -> Iterator[Fields]:
    """The first field of each message, then the second of those that have two, and so on. Raises ValueError if bytes are no message.

    data: ends in `PADDING`. start, stop: (n,) range of each message."""
    messages = np.arange(len(start))
    at = start
    while len(messages):
        number, wire, value, begin, end = _first_fields(data, at, stop)
        yield Fields(messages, number, wire, value, begin, end)
        more = end < stop
        messages, at, stop = messages[more], end[more], stop[more]


def _first_fields(data: bytes, at: Ints, stop: Ints) -> tuple[Ints, ...]:
    """Number, wire type, value, begin and end of the field at each position."""
    if EXTENSION is not None and (found := EXTENSION.wire_fields(data, at.tobytes(), stop.tobytes())) is not None:
        return tuple(np.frombuffer(column, np.int64) for column in found)
    return first_fields_in_python(data, at, stop)


def first_fields_in_python(data: bytes, at: Ints, stop: Ints) -> tuple[Ints, ...]:
    """The same without the extension, and for damaged messages."""
    octets = np.frombuffer(data, np.uint8)
    key, behind = varints(octets, at)
    number, wire = key >> 3, key & 7
    value, end = varints(octets, behind)
    begin = np.where(wire == 2, end, behind)
    fixed = np.where(wire == 1, 8, 4)
    end = np.where(wire == 0, end, np.where(wire == 2, end + value, behind + fixed))
    left = stop - at
    if not (((wire <= 2) | (wire == 5)) & (number > 0) & (end > at) & (end - at <= left) & ((wire != 2) | ((value >= 0) & (value <= left)))).all():
        raise ValueError("a field is none, or goes on behind the end of its message")
    return number, wire, value, begin, end


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """(n,) the number at each position, as 64 bits with a sign, and (n,) its end. Raises ValueError if a number does not end."""
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


def records(data: bytes, at: int, end: int, tag: int) -> tuple[Ints, Ints]:
    """Begins and ends of the messages of a repeated field, as many as are whole and consecutive from `at`.

    data: ends in `PADDING`, which `end` leaves out."""
    if EXTENSION is not None and (found := EXTENSION.wire_records(data, at, end, tag)) is not None:
        return np.frombuffer(found[0], np.int64), np.frombuffer(found[1], np.int64)
    return records_in_python(data, at, end, tag)


def records_in_python(data: bytes, at: int, end: int, tag: int) -> tuple[Ints, Ints]:
    """The same without the extension, and for damaged lengths."""
    edges = [at]
    append = edges.append
    while at < end and data[at] == tag:
        size = data[at + 1]
        if size < 128:
            at += 2 + size
        else:
            size, here = _size(data, at + 1)
            at = here + size
        if at > end:
            break
        append(at)
    found = np.array(edges)
    return varints(np.frombuffer(data, np.uint8), found[:-1] + 1)[1], found[1:]


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
