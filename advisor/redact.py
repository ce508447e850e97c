"""A trace that can be given away: the same analysis, without paths, hosts, users, command lines or environment."""

from __future__ import annotations

import gzip
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from advisor.errors import TraceError, UsageError
from advisor.readers.sniff import SQLITE_MAGIC
from advisor.readers.stream import DEFAULT_MAX_BYTES, Stream

BLOCK = 1 << 20
LONGEST_LINE = 64 << 20
"""A piece of text without any place to cut it that is longer than this is no profiler's trace."""

# Tables of an nsys export that the analysis reads, or that say what numbers in them mean. All others go: they hold the
# environment, command lines, users, hosts, processes, files, and what programs printed.
_KEPT = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|NVTX_PAYLOAD_\w+|CUDA_GPU_MEMORY_USAGE_EVENTS|CUDA_GRAPH_EVENTS|PROFILER_OVERHEAD|"
    r"GPU_METRICS|TARGET_INFO_GPU_METRICS|TARGET_INFO_GPU|TARGET_INFO_CUDA_DEVICE|TARGET_INFO_SESSION_START_TIME|StringIds|"
    r"META_DATA_EXPORT|EXPORT_META_DATA|OSRT_API|ENUM_\w+"
)
_DESCRIBING = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_VERSIONS = re.compile(r"EXPORT_(PRODUCT_(NAME|VERSION)|SCHEMA_VERSION\w*)$")
_HARDWARE_IDS = ("uuid", "busLocation", "luid", "ctxswDevPath", "ctrlDevPath")

# Metadata of a Kineto trace that names people, machines or jobs.
_KEY = re.compile(
    rb'"((?:host_?name|username|user|trace_id|traceName|PT_PROFILER_\w+|(?:tw|mast|job|logical|root|parent|slurm|k8s)_\w+)'
    rb'|\w*(?:owner|hostname|entitlement|workflow|cluster)\w*)"(\s*:\s*)"(?:[^"\\]|\\.)*"',
    re.IGNORECASE,
)
_FILE = re.compile(rb'(?<![\w.:/<>-])(?:/|[A-Za-z]:\\\\)(?:[^"\\/:*?<>|\r\n(){}\[\],;=\' ]+(?:/|\\\\))+')
# The part of a file's path that says whose code it is stays.
_LIBRARY = re.compile(rb".*(?:site-packages|dist-packages|lib/python\d[\d.]*)/|.*/(?=torch/)")
_SECRET_NAME = re.compile(
    r"(?<![A-Z0-9_])[A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)[A-Z0-9_]*"
)
_SECRET_VALUE = re.compile(
    rb"\b(hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|xox[bap]-[\w-]{20,}|sk-[A-Za-z0-9]{32,})\b"
)
_VALUE_KINDS = {
    b"hf_": "a Hugging Face token",
    b"gh": "a GitHub token",
    b"AKIA": "an AWS access key",
    b"xox": "a Slack token",
    b"sk-": "an API key",
}


def redact(source: Path, target: Path) -> None:
    """Write a redacted copy of a Kineto trace or an nsys export; `target` ending in .gz is compressed.

    Raises UsageError where `target` exists already, TraceError where `source` cannot be read.
    """
    if target.exists():
        raise UsageError(f"{target} is there already", "Give the path of a new file.")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", "Make it, or give another path.")
    part = target.with_name(f".{target.name}.part")
    try:
        with source.open("rb") as file:
            sqlite = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
            file.seek(0)
            if sqlite:
                _redact_export(source, part)
            else:
                _redact_text(file, part, target.suffix == ".gz")
        part.replace(target)
    except OSError as error:
        raise TraceError(f"{source} cannot be redacted: {error.strerror or error}", "Check both paths.") from None
    except sqlite3.Error as error:
        raise TraceError(f"{source} cannot be read as SQLite: {error}", "Copy or export the file again.") from None
    finally:
        part.unlink(missing_ok=True)


def _redact_text(file: BinaryIO, part: Path, compress: bool) -> None:
    stream = Stream(file, None, DEFAULT_MAX_BYTES, None)
    with part.open("wb") as raw:
        out = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if compress else raw
        for piece in _pieces(stream):
            out.write(_clean(piece))
        if compress:
            out.close()
    if stream.truncated:
        raise TraceError(f"the file cannot be unpacked: {stream.truncated}", "Copy or record the file again.")


def _pieces(stream: Stream) -> Iterator[bytes]:
    """The text in pieces that end between lines or objects, so that no string is cut."""
    rest = b""
    while block := stream.read(BLOCK):
        rest += block
        cut = max(rest.rfind(b"\n") + 1, rest.rfind(b"},") + 2)
        if cut > 1:
            yield rest[:cut]
            rest = rest[cut:]
        elif len(rest) > LONGEST_LINE:
            raise TraceError("the file has neither lines nor objects", "Give a torch.profiler trace or an nsys export.")
    yield rest


def _clean(text: bytes) -> bytes:
    text = _FILE.sub(_without_directories, text)
    text = _KEY.sub(rb'"\1"\2"redacted"', text)
    return _SECRET_VALUE.sub(b"redacted", text)


def _without_directories(match: re.Match[bytes]) -> bytes:
    directories = match[0].replace(b"\\\\", b"/")
    library = _LIBRARY.match(directories)
    return directories[library.end() :] if library else b""


def _redact_export(source: Path, part: Path) -> None:
    part.unlink(missing_ok=True)
    uri = f"file:{quote(str(source.resolve()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as original, closing(sqlite3.connect(part)) as copy:
        original.text_factory = copy.text_factory = lambda raw: raw.decode("utf-8", "replace")
        original.backup(copy)
        copy.execute("PRAGMA trusted_schema = OFF")
        # What is deleted must not stay in free pages.
        copy.execute("PRAGMA secure_delete = ON")
        for kind, name in copy.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall():
            if kind in ("view", "trigger") or (kind == "table" and not _KEPT.fullmatch(name)):
                copy.execute(f'DROP {kind} IF EXISTS "{name.replace(chr(34), chr(34) * 2)}"')
        _clean_rows(copy)
        copy.commit()
        copy.execute("VACUUM")


def _columns(db: sqlite3.Connection) -> dict[str, list[tuple[str, str]]]:
    """Columns of each table with their declared types."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")]
    return {t: [(row[1], str(row[2]).upper()) for row in db.execute(f'PRAGMA table_info("{t}")')] for t in tables}


def _clean_rows(db: sqlite3.Connection) -> None:
    columns = _columns(db)
    for table in _DESCRIBING:
        for rowid, name in db.execute(f"SELECT rowid, name FROM {table}").fetchall() if table in columns else ():
            if not _VERSIONS.match(str(name)):
                db.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
    for column, _ in columns.get("TARGET_INFO_GPU", ()):
        if column in _HARDWARE_IDS:
            db.execute(f'UPDATE TARGET_INFO_GPU SET "{column}" = NULL')
    for column, _ in columns.get("TARGET_INFO_SESSION_START_TIME", ()):
        if column != "utcEpochNs":
            db.execute(f'UPDATE TARGET_INFO_SESSION_START_TIME SET "{column}" = NULL')
    _keep_used_strings(db, columns)
    for table, names in columns.items():
        for column, kind in names:
            if "TEXT" in kind and not table.startswith(("ENUM_", "TARGET_INFO_GPU", *_DESCRIBING)):
                _clean_column(db, table, column)


def _keep_used_strings(db: sqlite3.Connection, columns: dict[str, list[tuple[str, str]]]) -> None:
    """Strings that no row of a kept table names are file names, threads and environment."""
    if "StringIds" not in columns:
        return
    db.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table, names in columns.items():
        for column, _ in names:
            if column.endswith(("Name", "nameId", "textId")) and table != "StringIds":
                db.execute(f'INSERT OR IGNORE INTO used SELECT "{column}" FROM "{table}" WHERE typeof("{column}") = \'integer\'')
    db.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM used)")
    db.execute("DROP TABLE used")


def _clean_column(db: sqlite3.Connection, table: str, column: str) -> None:
    for (value,) in db.execute(f'SELECT DISTINCT "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\'').fetchall():
        cleaned = _clean(value.encode()).decode("utf-8", "replace")
        if cleaned != value:
            db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE "{column}" = ?', (cleaned, value))


def secrets_like(path: Path) -> list[str]:
    """What in an nsys export looks like a secret: names of variables and kinds of values, never a value itself."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        if file.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
            return []
        found: set[str] = set()
        tail = b""
        while block := file.read(BLOCK):
            text = tail + block
            found |= set(_SECRET_NAME.findall(text.decode("latin-1")))
            found |= {kind for m in _SECRET_VALUE.findall(text) for prefix, kind in _VALUE_KINDS.items() if m.startswith(prefix)}
            tail = text[-256:]
    return sorted(found)
