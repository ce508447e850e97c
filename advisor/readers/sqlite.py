"""A SQLite file that somebody else made, read in columns and never written to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd

from advisor.errors import TraceError
from advisor.intervals import Ints

ROWS = 1 << 16
"""Rows fetched at a time: large enough to cost no time, small enough to cost no memory."""


class Database:
    """Tables of an open file by name. Only real tables: a view or trigger of the same name is not run."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._columns: dict[str, tuple[str, ...]] = {}
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            self._columns[name] = tuple(row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})"))

    def __contains__(self, table: str) -> bool:
        return table in self._columns

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self._columns)

    def columns(self, table: str) -> tuple[str, ...]:
        """Names of a table's columns, none where there is no such table."""
        return self._columns.get(table, ())

    def _select(self, table: str, columns: Sequence[str], where: str) -> sqlite3.Cursor:
        have = self.columns(table)
        wanted = ", ".join(_quoted(c) if c in have else "NULL" for c in columns)
        return self._connection.execute(f"SELECT {wanted} FROM {_quoted(table)}{' WHERE ' + where if where else ''}")

    def rows(self, table: str, *columns: str, where: str = "") -> list[tuple[object, ...]]:
        """All rows; None for a column that the table lacks. No rows where there is no such table."""
        return self._select(table, columns, where).fetchall() if table in self else []

    def integers(self, table: str, columns: Sequence[str], where: str = "") -> dict[str, Ints]:
        """Columns as int64, -1 for NULL and for a column that the table lacks. Raises TraceError where one holds text."""
        if table not in self:
            return {c: np.empty(0, np.int64) for c in columns}
        cursor = self._select(table, columns, where)
        parts: list[list[Ints]] = [[] for _ in columns]
        while rows := cursor.fetchmany(ROWS):
            for part, name, values in zip(parts, columns, zip(*rows, strict=True), strict=True):
                part.append(self._as_integers(table, name, values))
        return {c: np.concatenate(p) if p else np.empty(0, np.int64) for c, p in zip(columns, parts, strict=True)}

    def _as_integers(self, table: str, column: str, values: tuple[object, ...]) -> Ints:
        try:
            return np.array([-1 if v is None else v for v in values], np.int64)
        except (ValueError, TypeError, OverflowError):
            raise TraceError(
                f"{self._path}: column {column} of table {table} holds something that is no integer", "Export the report again."
            ) from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened(path: str) -> Iterator[Database]:
    """The database at `path`, read-only and immutable: no journal is made, no lock taken, no code of the file run.

    Raises TraceError where the file is damaged.
    """
    uri = f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    # Names of hosts and times in local formats are not always UTF-8.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        yield Database(connection, path)
    except sqlite3.Error as error:
        raise TraceError(f"{path} cannot be read as SQLite: {error}", "Copy or export the file again.") from None
    finally:
        connection.close()


def categorical(codes: Ints, texts: dict[int, str]) -> pd.Categorical:
    """Numbers of strings as a categorical; "" for a number that stands for nothing."""
    used, inverse = np.unique(codes, return_inverse=True)
    names = [texts.get(int(code), "") for code in used]
    categories = list(dict.fromkeys(names))
    place = {name: i for i, name in enumerate(categories)}
    lookup = np.array([place[name] for name in names] or [0], np.int32)
    return pd.Categorical.from_codes(lookup[inverse], categories=pd.Index(categories or [""], dtype=object))
