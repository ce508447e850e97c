"""From lists of decoded values to columns: lenient with types, strings as integer codes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.intervals import PIECE_ROWS
from advisor.recordings.columns import Categorical, without_repeats

INT64 = np.iinfo(np.int64)  # what a column holds
_DIGITS = re.compile(r"-?\d+")

# float64 holds microseconds to half a nanosecond below this, so that rounding is exact.
EXACT_BELOW_US = float(1 << 43)
# Times beyond this do not fit int64 nanoseconds.
TIME_LIMIT_US = 9e15


class Codes(dict[str, int]):
    """Numbers strings in the order in which they are first asked for."""

    def __missing__(self, key: str) -> int:
        code = self[key] = len(self)
        return code


class Strings(msgspec.Struct):
    """A column of strings: `values[code]` for each of `codes`."""

    codes: NDArray[np.int32]
    values: list[str]

    def texts_at(self, rows: NDArray[np.int64]) -> list[str]:
        """The strings of some rows."""
        return [self.values[code] for code in self.codes[rows].tolist()]

    def rows(self) -> list[str]:
        """The string of every row."""
        return [self.values[code] for code in self.codes.tolist()]

    def renamed(self, values: Sequence[str]) -> Strings:
        """The same rows with other values, some of which may be equal."""
        made = strings(values)
        return Strings(made.codes[self.codes], made.values)


class InexactTimes(Exception):
    """A time has a fraction that float64 does not hold: read the times as text."""


def strings(values: Sequence[str]) -> Strings:
    """Code a list of strings."""
    codes = Codes()
    return Strings(np.fromiter(map(codes.__getitem__, values), np.int32, len(values)), list(codes))


def integers(values: Sequence[Any], missing: int = -1) -> NDArray[np.int64]:
    """int64 of any recorded value; a value that is no number gives `missing`, unsigned 64-bit numbers wrap."""
    try:
        made = np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        made = None
    if made is None or made.ndim != 1:  # lists of one length make a table
        return np.array([integer(value, missing) for value in values], np.int64)
    return made


def integer(value: Any, missing: int = -1) -> int:
    """A value as an integer within int64. Text counts by the first number in it: `"stream 7"`, `"24572"`."""
    if isinstance(value, str):
        match = _DIGITS.search(value)
        value = int(match[0]) if match and len(match[0]) < 25 else missing
    elif isinstance(value, float):
        value = int(value) if np.isfinite(value) else missing
    elif not isinstance(value, int):
        return missing
    if INT64.min <= value <= INT64.max:
        return int(value)
    return (value & ((1 << 64) - 1)) - (1 << 64) if 0 < value < 1 << 64 else missing


def floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """float64 of any recorded value; a value that is no number gives NaN."""
    try:
        made = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        made = None
    return made if made is not None and made.ndim == 1 else np.array([_float(value) for value in values], np.float64)


def nanoseconds(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Microseconds, numbers or text, as exact nanoseconds; and if they are valid times.

    Raises InexactTimes if float64 cannot hold a time; given as `Microseconds` each is exact."""
    if values and isinstance(values[0], Microseconds):
        exact = [value.nanoseconds() for value in values]
        valid = np.array([ns is not None for ns in exact], bool)
        return np.array([ns or 0 for ns in exact], np.int64), valid
    us = floats(values)
    valid = np.abs(us) < TIME_LIMIT_US  # NaN is not
    us = np.where(valid, us, 0.0)
    whole = np.floor(us)
    # round(us * 1000) is off by up to 253 ns on real traces: the product needs more bits than float64 has.
    fraction = us - whole
    # Far beyond, float64 drops the fraction itself: only the type tells that there was one.
    if any(not isinstance(values[i], int) for i in np.flatnonzero(np.abs(us) >= EXACT_BELOW_US).tolist()):
        raise InexactTimes
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64), valid


class Microseconds(msgspec.Struct, frozen=True):
    """A time as it was written."""

    text: str

    def nanoseconds(self) -> int | None:
        """Rounded half to even, as numpy's rint does; None if it is no time."""
        from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

        try:
            us = Decimal(self.text.strip('"'))
            if not us.is_finite() or abs(us) >= TIME_LIMIT_US:
                return None
            return int((us * 1000).quantize(Decimal(1), ROUND_HALF_EVEN))
        except InvalidOperation:
            return None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


Column = NDArray[Any] | Strings

START, DURATION = "start_ns", "dur_ns"
"""Columns of times while they are collected: int64 nanoseconds on the trace's own clock."""


class _Parts(msgspec.Struct):
    """The parts of a column, joined many at once into an array that grows in place. Memory that is freed between others is not given back."""

    whole: NDArray[Any] = msgspec.field(default_factory=lambda: np.zeros(0, np.int8))
    small: list[NDArray[Any]] = msgspec.field(default_factory=list)
    _rows: int = 0

    def append(self, part: NDArray[Any]) -> None:
        self.small.append(part)
        self._rows += len(part)
        if self._rows >= PIECE_ROWS:
            self._pack()

    def joined(self) -> NDArray[Any]:
        """All rows; integers in the narrowest type that holds them, equal ones in the memory of a single one."""
        self._pack()
        return self.whole

    def _pack(self) -> None:
        if not self._rows:
            return
        block, rows = _narrowed(without_repeats(self.small)), len(self.whole)
        self.small, self._rows = [], 0
        if not rows or (block.strides == self.whole.strides == (0,) and block[0] == self.whole[0]):
            self.whole = np.broadcast_to(block[0], rows + len(block)) if block.strides == (0,) else block
            return
        kind = np.result_type(block, self.whole)
        if self.whole.dtype != kind or self.whole.strides == (0,):
            self.whole = self.whole.astype(kind, order="C")
        self.whole.resize(rows + len(block), refcheck=False)
        self.whole[rows:] = block


def _narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Integers in the narrowest type that holds them, equal ones in the memory of a single one."""
    if values.dtype.kind != "i":
        return values
    low, high = values.min(), values.max()
    kind = next(kind for kind in _WIDTHS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return np.broadcast_to(low.astype(kind), len(values)) if low == high else values.astype(kind, copy=False)


_WIDTHS = (np.int8, np.int16, np.int32, np.int64)


class Merger(msgspec.Struct):
    """Collects the columns of a table from many pieces of a file."""

    rows: int = 0
    earliest: int | None = None
    """The smallest start so far, in nanoseconds."""
    _parts: dict[str, _Parts] = msgspec.field(default_factory=dict)
    _codes: dict[str, Codes] = msgspec.field(default_factory=dict)

    def add(self, columns: dict[str, Column]) -> None:
        """Append a piece's rows."""
        rows = 0
        for name, column in columns.items():
            if isinstance(column, Strings):
                codes = self._codes.setdefault(name, Codes())
                renumber = np.fromiter(map(codes.__getitem__, column.values), np.int32, len(column.values))
                column = renumber[column.codes]
            elif name == START:
                first = int(column.min())
                self.earliest = first if self.earliest is None else min(first, self.earliest)
            self._parts.setdefault(name, _Parts()).append(column)
            rows = len(column)
        self.rows += rows

    def absorb(self, other: Merger) -> None:
        """Append all rows of another, which is empty after."""
        taken = {name: other.take(name) for name in other.names}
        self.add({name: Strings(c.codes, list(c.categories)) if isinstance(c, Categorical) else c for name, c in taken.items()})

    def take(self, name: str) -> Any:
        """Remove and return a whole column: an array, or strings as a Categorical."""
        column = self._parts.pop(name).joined()
        codes = self._codes.pop(name, None)
        return column if codes is None else categorical(column, list(codes))

    @property
    def names(self) -> list[str]:
        """The columns that are left."""
        return list(self._parts)


def categorical(codes: NDArray[Any], values: list[str]) -> Any:
    """Codes and their distinct values as a column of text."""
    return Categorical(codes, values)
