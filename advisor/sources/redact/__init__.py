"""A recording that can be given away: the same analysis, by allow-list. What a source does not read is not in it.

Each source has a module here that writes its files anew. Names of kernels, ops, functions and files stay, since the report is about
them; directories, ranges, threads, groups and all that is free text gets another name unless plain words say it (`names`).
"""

from __future__ import annotations

import gzip
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from advisor.errors import TraceError, UsageError
from advisor.knowledge.secrets import kinds_in
from advisor.report.saved import is_report
from advisor.sources import SOURCES
from advisor.sources.nsys.tables import uri
from advisor.sources.opened import Opened
from advisor.sources.redact import jax, kineto, memory, ncu, nsys, report
from advisor.sources.sniff import SNIFF_BYTES, SQLITE_MAGIC, refuse_foreign
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

WRITERS: dict[str, Callable[[Opened], Iterable[bytes]]] = {
    "kineto": lambda opened: kineto.redacted(opened.stream, opened.path),
    "jax": lambda opened: jax.redacted(opened.stream, opened.head, opened.path),
    "ncu": lambda opened: ncu.redacted(opened.stream, opened.head, opened.path),
    "memory": lambda opened: memory.redacted(opened.stream, opened.head, opened.path),
}
"""What is left of a file, piece by piece, by source."""
COPIERS: dict[str, Callable[[Path, Path], None]] = {"nsys": nsys.redacted}
"""Those that write a file themselves."""

_SEARCHED = 4 << 20
"""Metadata that may hold secrets stands before the events of a trace."""


def redact(source: Path, target: Path) -> None:
    """Write a redacted copy of a recording or a saved report; `target` ending in .gz is compressed.

    The whole copy appears at once, and never in place of a file. Raises UsageError where `target` exists already,
    TraceError where `source` cannot be read, is damaged or is of no kind that is known.
    """
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already", "Give the path of a new file.")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", "Make it, or give another path.")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}.", suffix=".part")
        os.close(handle)
        part = Path(name)
        try:
            _write(source, part, target.suffix == ".gz")
            _publish(part, target)
        finally:
            for left in (part, part.with_name(part.name + "-journal")):
                left.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{source} cannot be redacted: {error.strerror or error}", "Check both paths.") from None
    except sqlite3.Error as error:
        raise TraceError(f"{source} cannot be read as SQLite: {error}", "Copy or export the file again.") from None


def _write(source: Path, part: Path, compress: bool) -> None:
    if is_report(source):
        _save([report.redacted(source)], part, compress)
        return
    with source.open("rb") as file:
        stream = Stream(file, source.stat().st_size, DEFAULT_MAX_BYTES)
        opened = Opened(str(source), stream, stream.peek(SNIFF_BYTES), source.stat().st_size, DEFAULT_MAX_BYTES)
        known = next((one.__name__.rpartition(".")[2] for one in SOURCES if one.recognises(opened)), "")  # type: ignore[attr-defined]
        if known in WRITERS:
            _save(WRITERS[known](opened), part, compress)
        elif known in COPIERS:
            opened.check_seekable("an nsys export")
            if compress:
                raise UsageError("a redacted nsys export is not compressed", "Give a target that does not end in .gz.")
            COPIERS[known](source, part)
        else:
            raise refuse_foreign(opened.head, str(source))


def _save(pieces: Iterable[bytes], part: Path, compress: bool) -> None:
    with part.open("wb") as raw:
        if not compress:
            raw.writelines(pieces)
            return
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as out:
            for piece in pieces:
                out.write(piece)


def _publish(part: Path, target: Path) -> None:
    """Give the finished file its name, unless somebody took that meanwhile."""
    part.chmod(0o666 & ~_umask())
    try:
        os.link(part, target)
    except FileExistsError:
        raise UsageError(f"{target} is there already", "Give the path of a new file.") from None
    except OSError:  # a file system without links
        part.replace(target)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


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
                with closing(sqlite3.connect(uri(path), uri=True)) as db:
                    for text in _texts(db):
                        found |= kinds_in(text)
    return sorted(found)


_TEXTS = 20_000
"""Of a column: what names secrets stands in small tables."""


def _texts(db: sqlite3.Connection) -> Iterator[str]:
    """Texts of an export, with the column or the name before them that says what they are."""
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
