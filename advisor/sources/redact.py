"""A trace that can be given away: the same analysis, without paths, hosts, users, command lines or environment."""

from __future__ import annotations

import gzip
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import lru_cache
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import BinaryIO, cast
from urllib.parse import quote

from advisor.errors import TraceError, UsageError
from advisor.sources.jax import xplane
from advisor.sources.ncu import redact as ncu
from advisor.sources.ncu.report import is_report
from advisor.sources.ncu.tables import is_page
from advisor.sources.sniff import SNIFF_BYTES, SQLITE_MAGIC, is_json, refuse_foreign
from advisor.sources.stream import DEFAULT_MAX_BYTES, Stream

BLOCK = 1 << 20
LONGEST_EVENT = 64 << 20
"""A piece of text without any place to cut it that is longer than this is no profiler's trace."""
SEARCHED = 4 << 20
"""Metadata that may hold secrets stands before the events of a Kineto trace; the events hold none of the environment."""

# Tables of an nsys export that the analysis reads, or that say what numbers in them mean, with the columns whose text is
# kept. Of all other columns only numbers are, and all other tables stay behind: they hold the environment, command lines,
# users, hosts, processes, files, and what programs printed.
_KEPT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"CUPTI_ACTIVITY_KIND_\w+|CUDA_GPU_MEMORY_USAGE_EVENTS|PROFILER_OVERHEAD|OSRT_API|GPU_METRICS|TARGET_INFO_CUDA_DEVICE", ()),
    (r"NVTX_EVENTS", ("text",)),
    (r"StringIds", ("value",)),
    (r"ENUM_\w+", ("name", "label")),
    (r"TARGET_INFO_GPU", ("name", "chipName")),
    (r"TARGET_INFO_GPU_METRICS", ("metricName",)),
    (r"TARGET_INFO_SESSION_START_TIME", ()),
    (r"META_DATA_EXPORT|EXPORT_META_DATA", ("name", "value")),
)
_VERSIONS = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")

# Metadata of a Kineto trace that names people, machines or jobs.
_KEY = re.compile(
    rb'"((?:host_?name|host|\w*user(?:_?name)?|cwd|argv|command(?:_?line)?|env(?:ironment)?|trace_id|traceName|PT_PROFILER_\w+'
    rb"|(?:tw|mast|job|logical|root|parent|slurm|k8s|rdzv|master)_\w+"
    rb'|\w*(?:owner|hostname|entitlement|workflow|cluster)\w*))"(\s*:\s*)(?:"(?:[^"\\]|\\.)*"|\[[^\[\]{}]*\])',
    re.IGNORECASE,
)
# Between two events; a quote inside a string is never followed by a name without a backslash before it.
_BETWEEN = re.compile(rb'\}\s*,(?=\s*\{\s*"\w)')
_URL = re.compile(rb"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'\\;,()<>]+")
_MAIL = re.compile(rb"[\w.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")

# An absolute path, in text where a backslash is written twice. A name with blanks in it is told from prose only where
# the path is all that a text starts with.
_SEGMENT = rb"[^\"\\/:*?<>|\r\n(){}\[\],;=' ]+"
_BLANKS = rb"[^\"\\/:*?<>|\r\n(){}\[\],;=']+"
_SEPARATOR = rb"(?:/+|\\\\(?:\\\\)?)"
_ROOT = rb"(?:~[\w.-]*/|/|[A-Za-z]:(?:/|\\\\))"
_PATH = re.compile(
    rb"(?:(?:(?<=[\";])|\A)" + _ROOT + rb"(?P<blanks>(?:" + _BLANKS + _SEPARATOR + rb")+)"
    rb"|(?<![\w./<>~-])" + _ROOT + rb"(?P<plain>(?:" + _SEGMENT + _SEPARATOR + rb")+))"
    rb"(?P<last>" + _SEGMENT + rb")?"
)
_IS_FILE = re.compile(rb"[\w@+-][\w.@+-]*\.[A-Za-z][A-Za-z0-9]{0,7}$|<[\w ]+>$")
# The part of a path that says whose code it is stays: the analysis tells libraries from the user's program by it.
_LIBRARY = re.compile(rb".*?((?:site-packages|dist-packages|lib/python\d[\d.]*)/.*|torch/.*)$")

_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY", "CREDENTIAL")
# A name is what stands before "=" or ":", so that no value, whatever it looks like, is taken for one.
_SECRET_NAME = re.compile(
    r"(?<![^\s\"';,&|\0{(\[])([A-Z][A-Z0-9_]{0,60}?(?:" + "|".join(_SECRET_WORDS) + r")[A-Z0-9_]{0,30})(?=\\?[\"']?\s*[=:])"
)
_WORDS = {*(word.lower() for word in _SECRET_WORDS), "password", "passwd", "token", "secret", "api-key", "api_key", "apikey"}
_WHOLE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,60}?(?:" + "|".join(_SECRET_WORDS) + r")[A-Z0-9_]{0,30}")
_SECRET_OPTION = re.compile(r"(?<![\w-])--?(?:[a-z]+[-_])*(?:password|passwd|token|secret|api[-_]?key)(?=[=\s]+\S)", re.IGNORECASE)
_VALUES = {
    "a Hugging Face token": rb"hf_[A-Za-z0-9]{20,}",
    "a GitHub token": rb"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}",
    "an AWS access key": rb"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "a Slack token": rb"xox[abpr]-[\w-]{20,}",
    "an API key": rb"sk-[\w-]{32,}|AIza[\w-]{35}",
    "a GitLab token": rb"glpat-[\w-]{20,}",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a JSON web token": rb"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}",
}
_SECRET_VALUE = re.compile(rb"(?<![A-Za-z0-9_])(?:" + rb"|".join(_VALUES.values()) + rb")")
_VALUE_KINDS = {kind: re.compile(rb"(?<![A-Za-z0-9_])(?:" + pattern + rb")") for kind, pattern in _VALUES.items()}
_VALUE_STARTS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "AKIA", "ASIA", "xox", "sk-", "AIza", "glpat-", "-----BEGIN", "eyJ")


def redact(source: Path, target: Path) -> None:
    """Write a redacted copy of a Kineto trace, an nsys export, or a report or CSV page of Nsight Compute; `target` ending in .gz is compressed.

    The whole copy appears at once, and never in place of a file. Raises UsageError where `target` exists already,
    TraceError where `source` cannot be read or is none of them.
    """
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already", "Give the path of a new file.")
    if not target.parent.is_dir():
        raise UsageError(f"there is no directory {target.parent}", "Make it, or give another path.")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
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
    with source.open("rb") as file:
        stream = Stream(file, None, DEFAULT_MAX_BYTES, None)
        head = stream.peek(SNIFF_BYTES)
        if not head.startswith(SQLITE_MAGIC):
            if is_report(head) or is_page(head):
                with gzip.open(part, "wb") if compress else part.open("wb") as out:
                    ncu.redact(stream, head, cast("BinaryIO", out))
                return
            if xplane.recognises(head):
                raise TraceError(f"{source} is an XPlane, which holds names wherever its events do", "Redact the .trace.json.gz beside it.")
            if not is_json(head):
                raise refuse_foreign(head, str(source))
            _redact_text(stream, source, part, compress)
            return
        if stream.compressed:
            raise TraceError(f"{source} is a compressed nsys export, which SQLite cannot open", f"Unpack it first: gunzip -k {source}")
        if compress:
            raise UsageError("a redacted nsys export is not compressed", "Give a target that does not end in .gz.")
        _redact_export(source, part)


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


def _redact_text(stream: Stream, source: Path, part: Path, compress: bool) -> None:
    cleaner = _Cleaner()
    with part.open("wb") as raw:
        out = gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) if compress else raw
        for piece in _pieces(stream):
            out.write(cleaner.clean(piece))
        if compress:
            out.close()
    if stream.truncated:
        raise TraceError(f"{source} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")


def _pieces(stream: Stream) -> Iterator[bytes]:
    """The text in pieces that end between events, so that no string and no pair of key and value is cut."""
    rest = b""
    while block := stream.read(max(BLOCK, len(rest))):
        rest += block
        cut = max((match.end() for match in _BETWEEN.finditer(rest, max(0, len(rest) - BLOCK))), default=0)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
        elif len(rest) > LONGEST_EVENT:
            raise TraceError("the file has no events that one could tell apart", "Give a torch.profiler trace or an nsys export.")
    yield rest


class _Cleaner:
    """Takes out of text what names people, machines and places.

    Each directory gets one name, so that what was in two places stays apart; the name has no digits, so that what
    differed only by its numbers still does.
    """

    def __init__(self) -> None:
        self._names = (f"src{suffix}" for suffix in _suffixes())
        self._directories: dict[bytes, bytes] = {}

    def clean(self, text: bytes) -> bytes:
        """Text as JSON escapes it."""
        if b"://" in text:
            text = _URL.sub(b"redacted", text)
        if b"/" in text or b"\\" in text:
            text = _PATH.sub(self._path, text)
        if b"@" in text:
            text = _MAIL.sub(b"redacted", text)
        if b'"' in text:
            text = _KEY.sub(rb'"\1"\2"redacted"', text)
        return _SECRET_VALUE.sub(b"redacted", text)

    def clean_plain(self, text: bytes) -> str:
        """Text as it stands."""
        return self.clean(text.replace(b"\\", b"\\\\")).replace(b"\\\\", b"\\").decode("utf-8", "replace")

    def _path(self, match: re.Match[bytes]) -> bytes:
        last = match["last"] or b""
        directories = (match["blanks"] or match["plain"]).replace(b"\\\\", b"/")
        if library := _LIBRARY.match(directories):
            return library[1] + last
        # A path that ends in no file may end in a user's name.
        if last and not _IS_FILE.match(last) and match.string[match.end() : match.end() + 1] != b"(":
            return self._named(directories + last)
        return self._named(directories) + b"/" + last

    def _named(self, directories: bytes) -> bytes:
        found = self._directories.get(directories)
        if found is None:
            found = self._directories[directories] = next(self._names).encode()
        return found


def _suffixes() -> Iterator[str]:
    yield ""
    length = 1
    while True:
        yield from ("-" + "".join(letters) for letters in product(ascii_lowercase, repeat=length))
        length += 1


def _immutable(path: Path) -> str:
    return f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _redact_export(source: Path, part: Path) -> None:
    """Copy what is kept into a new database: what is not was never in it, so no free page can hold it."""
    cleaner = _Cleaner()
    cleaned = lru_cache(maxsize=1 << 14)(cleaner.clean_plain)
    with closing(sqlite3.connect(f"file:{quote(os.fsencode(part.resolve()))}", uri=True, isolation_level=None)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.execute("PRAGMA trusted_schema = OFF")
        # A copy that is not finished is thrown away: there is nothing to roll back to.
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("ATTACH ? AS original", (_immutable(source),))
        db.create_function("advisor_clean", 1, cleaned, deterministic=True)
        tables = _kept_tables(db)
        if not tables:
            raise TraceError(f"{source} is a SQLite file but no nsys export", "Give an export: nsys export --type sqlite FILE")
        db.execute("BEGIN")
        for table, texts in tables.items():
            _copy_table(db, table, texts, _wanted_rows(db, table, tables))
        db.execute("COMMIT")
        db.execute("DETACH original")


def _kept_tables(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Real tables to copy, each with the columns whose text is kept."""
    names = [n for (n,) in db.execute("SELECT name FROM original.sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()]
    return {n: texts for n in names for pattern, texts in _KEPT if re.fullmatch(pattern, n)}


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Columns with what they are declared to hold."""
    return [(row[1], str(row[2]).upper()) for row in db.execute(f"PRAGMA original.table_info({_quoted(table)})")]


def _copy_table(db: sqlite3.Connection, table: str, texts: tuple[str, ...], where: str) -> None:
    made, values = [], []
    for name, kind in _columns(db, table):
        column = _quoted(name)
        made.append(f"{column} {kind if kind in ('INTEGER', 'REAL', 'TEXT') else ''}")
        number = f"WHEN typeof({column}) IN ('integer', 'real') THEN {column}"
        text = f" WHEN typeof({column}) = 'text' THEN advisor_clean(CAST({column} AS BLOB))" if name in texts else ""
        values.append(f"CASE {number}{text} END")
    db.execute(f"CREATE TABLE main.{_quoted(table)} ({', '.join(made)})")
    db.execute(f"INSERT INTO main.{_quoted(table)} SELECT {', '.join(values)} FROM original.{_quoted(table)} WHERE {where}")


def _wanted_rows(db: sqlite3.Connection, table: str, tables: dict[str, tuple[str, ...]]) -> str:
    """Which rows of a table are copied, as SQL."""
    columns = {name for name, _ in _columns(db, table)}
    if table in ("META_DATA_EXPORT", "EXPORT_META_DATA") and "name" in columns:
        return f"name IN ({', '.join(repr(name) for name in _VERSIONS)})"
    if table == "StringIds" and "id" in columns:
        # Strings that no row of a kept table names are file names, threads and environment.
        named = [
            f"SELECT {_quoted(column)} FROM original.{_quoted(other)}"
            for other in tables
            for column, _ in _columns(db, other)
            if column.endswith(("Name", "nameId", "textId")) and other != "StringIds"
        ]
        return f"id IN ({' UNION '.join(named)})" if named else "0"
    return "1"


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
                    found |= _secrets(Stream(file).read(SEARCHED))
            if sqlite:
                with closing(sqlite3.connect(_immutable(path), uri=True)) as db:
                    for secrets in _secrets_of_export(db):
                        found |= secrets
    return sorted(found)


def _secrets(text: bytes) -> set[str]:
    # Looking for a word is a hundred times as fast as the patterns, and most traces hold none.
    lower = text.lower()
    found: set[str] = set()
    if any(word.encode() in lower for word in _WORDS):
        decoded = text.decode("utf-8", "replace")
        found = set(_SECRET_NAME.findall(decoded)) | {match[0] for match in _SECRET_OPTION.finditer(decoded)}
    if any(start.encode() in text for start in _VALUE_STARTS):
        found |= {kind for kind, pattern in _VALUE_KINDS.items() if pattern.search(text)}
    return found


def _secrets_of_export(db: sqlite3.Connection) -> Iterator[set[str]]:
    """What each suspicious text holds. Texts without any of the words are left to SQLite, which is faster."""
    db.text_factory = bytes
    db.execute("PRAGMA trusted_schema = OFF")
    words = (*_SECRET_WORDS, *_VALUE_STARTS, "password", "passwd", "token", "secret", "api-key", "api_key", "apikey")
    tables = [n.decode() for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()]
    for table in tables:
        columns = [row[1].decode() for row in db.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()]
        for column in columns:
            name = _quoted(column)
            suspicious = " OR ".join(f"instr({name}, '{word}')" for word in words)
            texts = db.execute(f"SELECT {name} FROM {_quoted(table)} WHERE typeof({name}) = 'text' AND ({suspicious})")
            for (text,) in texts:
                yield _secrets(text)
                if column == "name" and "value" in columns and _WHOLE_NAME.fullmatch(whole := text.decode("utf-8", "replace")):
                    yield {whole}
