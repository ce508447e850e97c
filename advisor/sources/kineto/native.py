"""The extension's decoder: a piece's text straight to columns of fields.

It takes only pieces in which everything is regular and gives the others back: those, and all if it is not installed, msgspec
decodes. What comes after is the same.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.recordings.extension import EXTENSION
from advisor.sources.kineto.columns import DURATION, EXACT_BELOW_US, START, TIME_LIMIT_US, Column, Strings
from advisor.sources.kineto.events import Args
from advisor.sources.kineto.fields import (
    HALVES,
    KINDS,
    LASTING,
    MARKS,
    MISSING,
    MTIA,
    OF_THREADS,
    TABLE_FIELDS,
    TABLE_OF,
    TIMED,
    Fields,
    repeated_value,
)
from advisor.sources.limits import LONGEST_NS

_LEVEL = 64  # fields of an event's arguments are numbered from here
# Those of the event come first, in an order that the decoder knows.
_EVENT = {"ph": "P", "cat": "C", "ts": "S", "dur": "D", "name": "t", "pid": "i", "tid": "i", "args": "A"}
_ARGS = {field.name: field.encode_name for field in msgspec.structs.fields(Args)}
_NUMBER = {**{name: i for i, name in enumerate(_EVENT)}, **{name: _LEVEL + i for i, name in enumerate(_ARGS)}}
_TABLES = list(TABLE_FIELDS)


class Decoded(msgspec.Struct, frozen=True):
    """A piece: its tables with their columns of times and their fields, ordered by their first rows. samples: events of counters, which
    `counters` decodes."""

    events: int
    samples: int
    bad_durations: int
    categories: Counter[str]
    tables: list[tuple[str, dict[str, Column], Fields]]


class OfColumns(msgspec.Struct, frozen=True):
    """Fields as the decoder returns them: bytes of numbers, or of codes with their strings. Those that nobody recorded it leaves out."""

    rows: int
    _columns: dict[int, Any]

    def integers(self, name: str) -> NDArray[np.int64]:
        values = self.optional(name)
        missing = values == MISSING
        return np.where(missing, -1, values) if missing.any() else values

    def optional(self, name: str) -> NDArray[np.int64]:
        column = self._columns.get(_NUMBER[name])
        return np.full(self.rows, MISSING) if column is None else np.frombuffer(column, np.int64)

    def numbers(self, name: str) -> NDArray[np.int64]:
        values = self.optional(name)
        return np.where(values == MISSING, 0, values)

    def floats(self, name: str) -> NDArray[np.float64]:
        column = self._columns.get(_NUMBER[name])
        return np.full(self.rows, np.nan) if column is None else np.frombuffer(column, np.float64)

    def texts(self, name: str) -> Strings:
        column = self._columns.get(_NUMBER[name])
        return repeated_value("", self.rows) if column is None else Strings(np.frombuffer(column[0], np.int32), column[1])


def _made() -> Any:
    """A decoder of the extension."""
    assert EXTENSION is not None

    def bits(names: tuple[str, ...], base: int) -> int:
        return sum(1 << _NUMBER[name] - base for name in names if base <= _NUMBER[name] < base + _LEVEL)

    categories = [(category, _TABLES.index(table) if category != MTIA else -2) for category, table in TABLE_OF.items()]
    return EXTENSION.Decoder(
        list(_EVENT.items()),
        [(key, KINDS[name][0]) for name, key in _ARGS.items()],
        [(table in TIMED, table in LASTING, bits(fields, 0), bits(fields, _LEVEL)) for table, fields in TABLE_FIELDS.items()],
        categories,
        [(phase, name, _TABLES.index(table), table in OF_THREADS) for (phase, name), table in MARKS.items()],
        HALVES, EXACT_BELOW_US, TIME_LIMIT_US, LONGEST_NS,
    )  # fmt: skip


class _Decoders(threading.local):
    """A decoder for each thread: it is as large as what it reads, and takes a piece at a time."""

    def __init__(self) -> None:
        self.own = _made()

    def decode(self, text: bytes) -> Any:
        return self.own.decode(text)


DECODER = _Decoders() if EXTENSION is not None else None


def decode(text: bytes) -> Decoded | None:
    """The columns of a piece, None if the other decoder is to read it."""
    found = DECODER.decode(text) if DECODER is not None else None
    if found is None:
        return None
    events, samples, bad_durations, tables, categories = found
    made = [_table(_TABLES[number], rows, columns) for number, rows, columns in tables]
    made.sort(key=lambda table: table[0] in MARKS.values())  # spans first, as the other decoder has them
    return Decoded(events, samples, bad_durations, Counter(dict(categories)), made)


def _table(name: str, rows: int, columns: dict[Any, Any]) -> tuple[str, dict[str, Column], Fields]:
    times: dict[str, Column] = {new: np.frombuffer(columns[old], np.int64) for new, old in ((START, "ts"), (DURATION, "dur")) if old in columns}
    return name, times, OfColumns(rows, columns)
