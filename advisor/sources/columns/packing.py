"""Columns of numbers in few bytes: differences if they are smaller, only as many bytes per value as the largest needs, grouped by byte for the compressor."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.sources.limits import EXACT


class Packed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Layout of a column's values in the file.

    width: bytes of each value. differences: whether each value is added to the value before. first: added to all values, or to the first difference.

    ns: whether they are nanoseconds of a time in microseconds. later_us: added to that time.

    texts: bytes of the distinct texts that follow, as a JSON array; the values are their indices."""

    width: int
    first: int = 0
    differences: bool = False
    ns: bool = False
    later_us: float = 0.0
    texts: int = 0


def pack(values: NDArray[Any], later_us: float = 0.0) -> tuple[Packed, bytes]:
    """A column of integers or of float64. later_us: by how much times of the column were set, which are whole nanoseconds without it."""
    if values.dtype.kind != "f":
        return pack_integers(values.astype(np.int64))
    for later in {0.0, later_us}:
        with np.errstate(over="ignore", invalid="ignore"):
            ns = np.rint((values - later) * 1000.0)
        if (np.abs(ns) < EXACT).all() and np.array_equal((ns / 1000.0 + later).view(np.int64), values.view(np.int64)):
            packed, data = pack_integers(ns.astype(np.int64))
            return msgspec.structs.replace(packed, ns=True, later_us=later), data
    return Packed(8), _by_byte(values.view(np.uint64), 8)


def pack_integers(values: NDArray[np.int64]) -> tuple[Packed, bytes]:
    """As values above the smallest, or as differences, whichever are smaller: these take the fewest bits on the average."""
    if not len(values):
        return Packed(1), b""
    low = int(values.min())
    with np.errstate(over="ignore"):
        above, steps = (values - low).view(np.uint64), np.diff(values)
    folded = np.concatenate([np.zeros(1, np.uint64), (steps << 1 ^ steps >> 63).view(np.uint64)])  # small ones of both signs are small
    if np.log2(folded + 1.0).mean() < np.log2(above + 1.0).mean():
        width = _width(folded)
        return Packed(width, int(values[0]), differences=True), _by_byte(folded, width)
    width = _width(above)
    return Packed(width, low), _by_byte(above, width)


def unpack(packed: Packed, data: bytes, rows: int) -> NDArray[Any]:
    """The column that `pack` was given: int64 or float64. Raises ValueError if they do not fit each other."""
    if packed.width not in (1, 2, 4, 8) or len(data) != rows * packed.width:
        raise ValueError(f"a column of {rows} rows of {packed.width} bytes lies in {len(data)} bytes")
    planes = np.frombuffer(data, np.uint8).reshape(packed.width, rows)
    stored = np.empty((rows, 8), np.uint8) if packed.width == 8 else np.zeros((rows, 8), np.uint8)
    for place, plane in enumerate(planes):
        stored[:, place] = plane
    values = stored.view("<i8").reshape(rows)
    with np.errstate(over="ignore"):
        if packed.differences:
            signs = values & 1
            values = values.view(np.uint64) >> np.uint64(1)
            values = np.cumsum(values.view(np.int64) ^ -signs)
        values += np.int64(packed.first)
    return values / 1000.0 + packed.later_us if packed.ns else values


def _width(values: NDArray[np.uint64]) -> int:
    most = int(values.max())
    return next(width for width in (1, 2, 4, 8) if most < 1 << 8 * width)


def _by_byte(values: NDArray[np.uint64], width: int) -> bytes:
    """All first bytes, then all second bytes, so that similar bytes are adjacent."""
    return values.astype(f"<u{width}").view(np.uint8).reshape(len(values), width).T.tobytes()
