"""The log (`-wal`) that SQLite leaves next to a database that was not closed, as by an export that was stopped: part of its rows."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from urllib.parse import quote

LARGEST_COPY = 2 << 30
"""A file and its log are merged in a copy, since nothing is written next to them. Copying more than 2 GiB takes longer than a new export."""


def uri(path: str | os.PathLike[str]) -> str:
    """How to open a file that is never written to: no journal is made and no lock taken."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode=ro&immutable=1"


@contextmanager
def merged(path: str) -> Iterator[tuple[str, int]]:
    """The path of a database with its log's rows in it, and the bytes of the log that are not: 0 if all of it was read.

    The same path if there is no log next to it. SQLite verifies the log by its own checksums, and uses only committed data."""
    size = _size(f"{path}-wal")
    if not size or size + os.path.getsize(path) > LARGEST_COPY:
        yield path, size
        return
    with TemporaryDirectory(prefix="advisor-") as folder:
        copy = os.path.join(folder, "export.sqlite")
        done = _copied(path, copy) and _checkpointed(copy)
        yield (copy, 0) if done else (path, size)


def _size(log: str) -> int:
    return os.path.getsize(log) if os.path.isfile(log) else 0


def _copied(path: str, copy: str) -> bool:
    """Whether the file and its log could be copied in the same state: nobody wrote to either meanwhile."""
    files = (path, f"{path}-wal")
    try:
        before = [os.stat(file) for file in files]
        if shutil.disk_usage(os.path.dirname(copy)).free < 2 * sum(stat.st_size for stat in before):
            return False
        for file, to in zip(files, (copy, f"{copy}-wal"), strict=True):
            shutil.copyfile(file, to)
        after = [os.stat(file) for file in files]
    except OSError:
        return False
    return [(s.st_size, s.st_mtime_ns) for s in before] == [(s.st_size, s.st_mtime_ns) for s in after]


def _checkpointed(copy: str) -> bool:
    """Whether SQLite found committed pages in the log and took all of them into the database."""
    try:
        with closing(sqlite3.connect(copy)) as connection:
            busy, pages, taken = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            return not busy and bool(pages > 0) and bool(pages == taken)
    except sqlite3.Error:
        return False
