"""A recording that can be given away, with the same analysis, by allow-list. It contains only data that its source reads.

Each source has a module here that writes its files again. Names of kernels, ops, functions and files stay, since the report is about
them. Directories, ranges, threads, groups and all free text get other names unless they consist of plain words (`names`)."""

from __future__ import annotations

import gzip
import io
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from advisor.errors import AdvisorError, OutputError, TraceError, UsageError
from advisor.files import NO_ROOM, PART, umask
from advisor.recordings.flight import FlightRecords
from advisor.report.saved import is_report
from advisor.sources import archive, columns, load
from advisor.sources import flight as recorder
from advisor.sources import rocprof as rocm
from advisor.sources.nsys import of_rocm
from advisor.sources.opened import Opened
from advisor.sources.redact import flight, jax, kineto, memory, ncu, nsys, proton, report, rocprof
from advisor.sources.redact.names import Names
from advisor.sources.sniff import SNIFF_BYTES, refuse_foreign, source_of
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

WRITERS: dict[str, Callable[[Opened, Names], Iterable[bytes]]] = {
    "kineto": lambda opened, names: kineto.redacted(opened.stream, opened.path, names),
    "jax": lambda opened, names: jax.redacted(opened.stream, opened.head, opened.path, names),
    "ncu": lambda opened, names: ncu.redacted(opened.stream, opened.head, opened.path, names),
    "columns": lambda opened, names: kineto.redacted(Stream(io.BytesIO(columns.as_kineto(opened))), opened.path, names),
    "rocprof": lambda opened, names: rocprof.redacted(rocm.read(opened), names),
    "proton": lambda opened, names: proton.redacted(opened.stream, opened.head, opened.path, names),
    "flight": lambda opened, names: flight.redacted(cast("FlightRecords", recorder.record(opened).parts[0]), names),
    "memory": lambda opened, names: memory.redacted(opened.stream, opened.head, opened.path, names),
}
"""The redacted content of a file, piece by piece, by source."""
COPIERS: dict[str, Callable[[Path, Path, Names], None]] = {"nsys": nsys.redacted}
"""Those that write a file themselves."""


_NO_ROOM_OF_SQLITE = re.compile(r"disk is full|SQLITE_IOERR_(?:WRITE|FSYNC|TRUNCATE|SHM\w+)")
_OF_MACHINE = re.compile(r"(?P<host>[^/]+?)(?:_\d+\.(?:\d+\.)?pt\.trace\.json|\.xplane\.pb|_[A-Z][a-z]{2}(?:_\d{2}){4}\.pickle)(?:\.gz|\.zst)?")
"""Files that torch and JAX name by their machine."""


def machines(files: Iterable[Path]) -> set[str]:
    """The machines that files are named by, whole and without their domain."""
    hosts = {match["host"] for file in files if (match := _OF_MACHINE.fullmatch(file.name))}
    return hosts | {host.partition(".")[0] for host in hosts}


def redact(source: Path, target: Path, names: Names | None = None) -> None:
    """Write a redacted copy of a recording or a saved report. `target` ending in .gz is compressed, in .trace.zst converted to columns.

    names: those given to other files of the same set, so that equal names stay equal.

    The whole copy appears at once, and never in place of a file. Raises UsageError if `target` exists already.
    Raises TraceError if `source` cannot be read, is damaged or is of no known kind."""
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already", "Give the path of a new file.")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", "Make it, or give another path.")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=PART, suffix=".part")
        os.close(handle)
        part = Path(name)
        try:
            if names is None:
                names = Names()
                names.know(*machines([source]))
            _write(source, part, target.suffix == ".gz", names)
            if columns.named_as_columns(target):
                part.write_bytes(columns.encode(load(part)))
            _publish(part, target)
        finally:
            for left in (part, part.with_name(part.name + "-journal")):
                left.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_redact(source, target, error) from None
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's own message quotes the file
        if _NO_ROOM_OF_SQLITE.search(f"{error} {getattr(error, 'sqlite_errorname', '')}"):
            raise OutputError(f"{target} cannot be written: {error}", "Give another path, or make room.") from None
        raise TraceError(f"{source} cannot be read as SQLite: {error}", "Copy or export the file again.") from None


def cannot_redact(source: Path, target: Path, error: OSError) -> AdvisorError:
    """The message for a file that cannot be read or written."""
    why = error.strerror or str(error)
    if error.errno in NO_ROOM or Path(str(error.filename or "")).name.startswith(PART):
        return OutputError(f"{target} cannot be written: {why}", "Give another path, or make room.")
    return TraceError(f"{source} cannot be redacted: {why}", "Check both paths.")


def _write(source: Path, part: Path, compress: bool, names: Names) -> None:
    if is_report(source):
        _save([report.redacted(source, names)], part, compress)
        return
    with source.open("rb") as file:
        held = archive.unpacked(file, str(source), DEFAULT_MAX_BYTES)
        inner, size = (held.file, held.size) if held else (file, source.stat().st_size)
        stream = Stream(inner, size, DEFAULT_MAX_BYTES)
        opened = Opened(str(source), stream, stream.peek(SNIFF_BYTES), size, DEFAULT_MAX_BYTES, unpack=held.command if held else "")
        known = source_of(opened.head)
        if known == "nsys" and not held and not stream.unpacked_by and of_rocm(str(source)):
            known = "rocprof"
        if known in WRITERS:
            _save(WRITERS[known](opened, names), part, compress)
        elif known in COPIERS:
            opened.check_seekable("an nsys export")
            if compress:
                raise UsageError("a redacted nsys export is not compressed", "Give a target that does not end in .gz.")
            COPIERS[known](source, part, names)
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
    part.chmod(0o666 & ~umask())
    try:
        os.link(part, target)
    except FileExistsError:
        raise UsageError(f"{target} is there already", "Give the path of a new file.") from None
    except OSError:  # a file system without links
        part.replace(target)
