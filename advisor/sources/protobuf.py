"""The protobuf wire format, as much of it as reading takes: a message is its fields, in order, by number.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace

from advisor.knowledge import data
from advisor.sources.limits import LONGEST_VARINT

Value = int | memoryview
"""A varint; or the bytes of a fixed-width number, a text or a message."""


def numbers_of(message: str) -> SimpleNamespace:
    """Numbers of a message's fields, or of an enumeration, as `messages.toml` has them: attributes by name."""
    return SimpleNamespace(**data.load("messages")[message])


def fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field. Raises ValueError if the bytes are no message. Groups are refused: no writer uses them."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if not number:
            raise ValueError("a field has the number 0")
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field has wire type {wire}, which does not exist")
        if size > end - at:
            raise ValueError(f"a field says that it has {size:,} bytes where {end - at:,} are left")
        yield number, message[at : at + size]
        at += size


def text(value: Value) -> str:
    """A string field, with invalid UTF-8 replaced."""
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")


def message(value: Value) -> memoryview:
    """A message field. Raises ValueError if it is a number."""
    if isinstance(value, int):
        raise ValueError("a number stands where a message belongs")
    return value


def whole(value: Value) -> int:
    """A varint field. Raises ValueError if it is none."""
    if not isinstance(value, int):
        raise ValueError("bytes stand where a number belongs")
    return value


def real(value: Value) -> float:
    """A double (8 bytes) or a float (4). Raises ValueError if it is neither."""
    if not isinstance(value, int) and len(value) in (4, 8):
        return struct.unpack("<d" if len(value) == 8 else "<f", value)[0]
    raise ValueError("a floating-point number has neither 4 nor 8 bytes")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for i in range(LONGEST_VARINT):
        if at + i >= len(data):
            break
        byte = data[at + i]
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise ValueError("a number does not end")


def written(number: int, value: Value | bytes | str | float) -> bytes:
    """A field: an int as varint (negative ints as their 64 bits), a float as double, bytes and text with their length."""
    if isinstance(value, int):
        return _written_varint(number << 3) + _written_varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return _written_varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else bytes(value)
    return _written_varint(number << 3 | 2) + _written_varint(len(data)) + data


def _written_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
