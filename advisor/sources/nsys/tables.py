"""A SQLite file that somebody else made, read in columns and never written to."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Floats, Ints
from advisor.recordings.columns import Categorical, numbered, row_by_row
from advisor.sources.nsys.log import merged, uri

ROWS = 1 << 16
"""Rows fetched at a time: large enough to cost no time, small enough to cost no memory."""

NOT_RECORDED = -1  # as in the columns of a timeline
ABSENT = -(2**62)
"""Represents NULL in a column that every row needs: -1 ns is a time like any other."""


class Database:
    """Tables of an open file by name. Only real tables: a view, trigger or virtual table of the same name is not run.

    unread_bytes: of the log that SQLite left next to the file, if it could not be read as part of it.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, unread_bytes: int = 0) -> None:
        self._connection = connection
        self._path = path
        self.unread_bytes = unread_bytes
        # A virtual table has no page of its own: to read one runs a module with arguments that the file chose.
        real = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        self._columns: dict[str, tuple[str, ...]] = {
            name: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")) for (name,) in real.fetchall()
        }

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._columns)

    def columns(self, table: str) -> tuple[str, ...]:
        """Names of a table's columns, none if there is no such table."""
        return self._columns.get(table, ())

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """All rows of a small table; None for a column that it lacks. No rows if there is no such table."""
        if table not in self._columns:
            return []
        return list(self.iterate(table, columns))

    def texts(self, table: str, key: str, text: str) -> dict[int, str]:
        """A table of numbered strings as a dict; other values are left out."""
        if table not in self._columns or not {key, text} <= set(self._columns[table]):
            return {}
        where = f"typeof({_quoted(key)}) = 'integer' AND typeof({_quoted(text)}) = 'text'"
        return dict(self._select(table, [_quoted(key), _quoted(text)], where))

    def integers(self, table: str, columns: Sequence[str], where: str = "", needs: Sequence[str] = ()) -> dict[str, Ints]:
        """Columns as int64, NOT_RECORDED for `NULL` and for a column that the table lacks; `ABSENT` for `NULL` in a column of `needs`.

        No rows if the table lacks a column of `needs`. Raises TraceError if a column holds text."""
        return self._numbers(table, columns, where, needs, np.int64)

    def floats(self, table: str, columns: Sequence[str], where: str = "", needs: Sequence[str] = ()) -> dict[str, Floats]:
        """Like `integers`, as float64."""
        return self._numbers(table, columns, where, needs, np.float64)

    def iterate(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[tuple[Any, ...]]:
        """Rows of a table in turn, for values that are no numbers; None for a column that it lacks."""
        have = self.columns(table)
        return iter(self._select(table, [_quoted(c) if c in have else "NULL" for c in columns], where))

    def count(self, table: str, where: str) -> int:
        """How many rows of a table are so."""
        return int(self._select(table, ["COUNT(*)"], where).fetchone()[0])

    def spans(self, table: str) -> tuple[int, int]:
        """Number of rows of a table with a duration, and their total in ns; nothing for a table without starts and ends."""
        if not {"start", "end"} <= {*self.columns(table)}:
            return 0, 0
        lasting = """typeof("start") = 'integer' AND typeof("end") = 'integer' AND "end" > "start\""""
        count, ns = self._select(table, ["COUNT(*)", 'TOTAL("end" - "start")'], lasting).fetchone()
        return int(count), int(ns)

    def _numbers(self, table: str, columns: Sequence[str], where: str, needs: Sequence[str], dtype: type[np.generic]) -> dict[str, Any]:
        have = set(self.columns(table))
        if not have or not {*needs} <= have:
            return {c: np.empty(0, dtype) for c in columns}
        found = [c for c in columns if c in have]
        wanted = [f"IFNULL({_quoted(c)}, {ABSENT if c in needs else NOT_RECORDED})" for c in found] or ["0"]
        cursor = self._select(table, wanted, where)
        parts: list[list[np.ndarray]] = [[] for _ in wanted]
        rows = 0
        try:
            # Numbers go straight into an array: no list of rows is ever made.
            while len(flat := np.fromiter(chain.from_iterable(islice(cursor, ROWS)), dtype)):
                block = flat.reshape(-1, len(wanted)).T
                rows += block.shape[1]
                for part, column in zip(parts, block, strict=True):
                    part.append(_packed(column))
        except (ValueError, TypeError, OverflowError):
            raise self.not_numbers(table, columns, where) from None
        made: dict[str, Any] = {c: np.broadcast_to(dtype(NOT_RECORDED), rows) for c in columns if c not in have}
        for name, column in zip(found, parts, strict=False):
            made[name] = _whole(column, dtype)
            column.clear()
        return made

    def not_numbers(self, table: str, columns: Sequence[str], where: str = "") -> TraceError:
        """The error that names the column with a value that is no number."""
        for name in (c for c in columns if c in self.columns(table)):
            kind = f"typeof({_quoted(name)}) NOT IN ('integer', 'null')"
            if self._select(table, ["1"], f"({where or 1}) AND {kind} LIMIT 1").fetchone():
                return TraceError(f"{self._path}: column {name} of table {table} holds something that is no integer", "Export the report again.")
        return TraceError(f"{self._path}: table {table} holds something that is no number", "Export the report again.")

    def _select(self, table: str, expressions: Sequence[str], where: str) -> sqlite3.Cursor:
        return self._connection.execute(f"SELECT {', '.join(expressions)} FROM {_quoted(table)}{' WHERE ' + where if where else ''}")


def _packed(block: np.ndarray) -> np.ndarray:
    """A copy of a block, in the memory of a single value if all are equal, and in 32 bits if they fit."""
    if (block == block[0]).all():
        return np.broadcast_to(block[0], len(block))
    small = block.dtype == np.int64 and np.iinfo(np.int32).min <= block.min() and block.max() <= np.iinfo(np.int32).max
    return block.astype(np.int32 if small else block.dtype)


def _whole(blocks: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    """Blocks of a column in a row, in the memory of a single value if all are equal."""
    if not blocks:
        return np.empty(0, dtype)
    if all(block.strides == (0,) and block[0] == blocks[0][0] for block in blocks):
        return np.broadcast_to(blocks[0][0], sum(map(len, blocks)))
    return np.concatenate(blocks, dtype=dtype)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def lenient(raw: bytes) -> str:
    """Text as it is in the file: names of hosts and times in local formats are not always UTF-8."""
    return raw.decode("utf-8", "replace")


STEPS, STEPS_A_BYTE = 50_000_000, 200
"""Of SQLite's machine, at most, to read all that is asked for. A row takes four bytes at least and some fifty steps, and few
tables are read twice; 50 million take about a second."""


class _Steps:
    """A progress handler that stops a statement once all statements together took too many steps."""

    def __init__(self, most: int) -> None:
        self._left = most // (STEPS // 50)

    def __call__(self) -> int:
        self._left -= 1
        return int(self._left < 0)


@contextmanager
def opened(path: str) -> Iterator[Database]:
    """The database at `path`, read-only and immutable, no code of the file run.

    Raises TraceError if the file is damaged.
    """
    try:
        with merged(path) as (whole, unread), closing(sqlite3.connect(uri(whole), uri=True)) as connection:
            connection.text_factory = lenient
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.set_progress_handler(_Steps(STEPS + STEPS_A_BYTE * os.path.getsize(whole)), STEPS // 50)
            yield Database(connection, path, unread)
    except UnicodeDecodeError:  # SQLite's own message quotes the file
        raise TraceError(f"{path} cannot be read as SQLite: its schema is damaged", "Copy or export the file again.") from None
    except sqlite3.Error as error:
        if str(error) == "interrupted":
            why = "its tables hold more rows than a file of its size can: pages are used twice"
            raise TraceError(f"{path} cannot be read as SQLite: {why}", "It is damaged, or made to be slow. Export the report again.") from None
        raise TraceError(f"{path} cannot be read as SQLite: {error}", "Copy or export the file again.") from None


def categorical(codes: Ints, texts: dict[int, str]) -> Categorical:
    """Numbers of strings as a categorical; "" for a number that represents nothing."""
    inverse, used = numbered(codes)
    names = [texts.get(int(code), "") for code in used]
    categories = list(dict.fromkeys(names))
    place = {name: i for i, name in enumerate(categories)}
    lookup = np.array([place[name] for name in names] or [0], np.int32)
    return Categorical(row_by_row(lookup.__getitem__, inverse), categories=categories or [""])


def constant(text: str, n: int) -> Categorical:
    """The same string in each row."""
    return Categorical(np.broadcast_to(np.int8(0), n), categories=[text])
