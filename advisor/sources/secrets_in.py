"""What in a file looks like a secret, before anybody gives it away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from advisor.errors import TraceError
from advisor.knowledge.secrets import kinds_in
from advisor.sources.sniff import SQLITE_MAGIC
from advisor.sources.stream import Stream

_SEARCHED = 4 << 20
"""Metadata that may hold secrets is before the events of a trace."""


def secrets_like(path: Path) -> list[str]:
    """What in a trace looks like a secret: names of variables and kinds of values, never a value itself."""
    found: set[str] = set()
    # Whether a file can be read is said by who reads it.
    with suppress(OSError, TraceError, sqlite3.Error):
        if path.is_file():
            with path.open("rb") as file:
                sqlite = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
                file.seek(0)
                if not sqlite:
                    found |= kinds_in(Stream(file).read(_SEARCHED).decode("utf-8", "replace"))
            if sqlite:
                from advisor.sources.nsys.log import uri

                with closing(sqlite3.connect(uri(path), uri=True)) as db:
                    for text in _texts(db):
                        found |= kinds_in(text)
    return sorted(found)


_TEXTS = 20_000
"""Of a column: what names secrets is in small tables."""


def _texts(db: sqlite3.Connection) -> Iterator[str]:
    """Texts of an export, each after the column or the name that describes it."""
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    db.execute("PRAGMA trusted_schema = OFF")
    tables = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()]
    for table in tables:
        quoted = '"' + table.replace('"', '""') + '"'
        columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info({quoted})").fetchall()]
        for row in db.execute(f"SELECT * FROM {quoted} LIMIT {_TEXTS}"):
            held = {column: value for column, value in zip(columns, row, strict=True) if isinstance(value, str)}
            yield from held.values()
            if {"name", "value"} <= held.keys():
                yield f"{held['name']}={held['value']}"
