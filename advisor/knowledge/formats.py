"""Known formats of files, of any writer, recognised by content: `formats.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePath
from typing import Literal

import msgspec

from advisor.knowledge.data import load
from advisor.knowledge.expressions import beginning, expression

HEAD_BYTES = 1 << 16
"""In which a file says what it is. Chrome traces name their processes there."""

LOOK_BYTES = HEAD_BYTES // 4
"""A file of an unknown writer shows its kind in them."""

GROUPS = {
    "torch": "PyTorch",
    "nvidia": "NVIDIA",
    "jax": "JAX",
    "amd": "AMD",
    "advisor": "advisor",
    "cluster": "Collectives and clusters",
    "deployment": "Deployment and serving",
    "accelerators": "Other accelerators",
    "python": "Profilers of the host",
    "viewers": "Trace viewers and tracing systems",
    "files": "Packed, damaged, or no recording",
    "looks": "Kinds of files, of any writer",
}
"""Groups of formats and their titles, in the order in which they are shown."""


class Format(msgspec.Struct, frozen=True):
    """A file format. name: with its article. why: the reason it cannot be read. give: what to give instead, or how to record it if it can be read.
    `formats.toml` explains the other fields, which identify the format.
    """

    id: str
    group: str
    name: str
    maker: str
    give: str
    why: str = ""
    read: Literal["yes", "no"] = "no"
    files: str = ""
    starts: tuple[tuple[bytes, re.Pattern[bytes]], ...] = ()
    """Patterns, each after the beginning of its matches."""
    holds: tuple[tuple[bytes, ...], ...] = ()
    tables: tuple[tuple[str, ...], ...] = ()
    keys: tuple[frozenset[str], ...] = ()
    entries: tuple[tuple[str, ...], ...] = ()
    spans: tuple[re.Pattern[str], ...] = ()
    all_spans: tuple[re.Pattern[str], ...] = ()
    fields: tuple[tuple[re.Pattern[str], ...], ...] = ()
    columns: tuple[tuple[re.Pattern[str], ...], ...] = ()
    members: tuple[tuple[re.Pattern[str], ...], ...] = ()
    says: tuple[tuple[re.Pattern[bytes], ...], ...] = ()
    suffix: tuple[str, ...] = ()

    def instead(self, path: str) -> str:
        """What to do, with the file's path in its commands."""
        return self.give.replace("{path}", path)


@cache
def known() -> tuple[Format, ...]:
    """All formats, in the table's order."""
    table = load("formats")
    return tuple(_format(row, table["ways"]) for row in table["format"])


def read_in_a_sentence() -> str:
    """The formats that are read, with the ends of files' names, for the command's help."""
    said = "; ".join(f"{one.name} ({one.files})" for one in known() if one.read == "yes")
    return said[:1].upper() + said[1:]


def _format(row: dict[str, object], ways: dict[str, str]) -> Format:
    lists: dict[str, list[list[str]]] = {name: row.get(name, []) for name in ("holds", "tables", "keys", "entries")}  # type: ignore[misc]
    looks: dict[str, list[list[str]]] = {name: row.get(name, []) for name in ("fields", "columns", "members", "says")}  # type: ignore[misc]
    texts: dict[str, list[str]] = {name: row.get(name, []) for name in ("starts", "spans", "all_spans", "suffix")}  # type: ignore[misc]
    marks = {
        "starts": tuple((beginning(pattern), expression(pattern)) for pattern in (text.encode("latin-1") for text in texts["starts"])),
        "holds": tuple(tuple(_plain(text.encode()) for text in each) for each in lists["holds"]),
        "tables": tuple(map(tuple, lists["tables"])),
        "keys": tuple(map(frozenset, lists["keys"])),
        "entries": tuple(map(tuple, lists["entries"])),
        "spans": tuple(map(expression, texts["spans"])),
        "all_spans": tuple(map(expression, texts["all_spans"])),
        **{name: tuple(tuple(map(expression, each)) for each in looks[name]) for name in ("fields", "columns", "members")},
        "says": tuple(tuple(expression(text.encode("latin-1")) for text in each) for each in looks["says"]),
        "suffix": tuple(texts["suffix"]),
    }
    return Format(**{**row, **marks, "give": _with_ways(str(row["give"]), ways)})  # type: ignore[arg-type]


def _with_ways(step: str, ways: dict[str, str]) -> str:
    """A next step with the ways to record that it names. The last of `ways` come first: a way may hold earlier ones."""
    for name, way in reversed(ways.items()):
        step = step.replace(f"{{{name}}}", way)
    return step


def _plain(text: bytes) -> bytes:
    """JSON as half of its writers spell it: no blank next to a colon that ends a key."""
    return text.replace(b'" :', b'":').replace(b'": ', b'":')


def of_head(head: bytes, path: str = "") -> Format | None:
    """The format of a file that begins so, unpacked; by the end of its name if its bytes do not say."""
    return of_content(head) or of_look(head) or _first(lambda one: bool(one.suffix) and _suffix(path) in one.suffix)


def of_content(head: bytes) -> Format | None:
    """The format of a file that begins so, whatever its name."""
    head = head[:HEAD_BYTES]
    plain, dense, text = _plain(head), b"".join(head.split()), head.lstrip(b"\xef\xbb\xbf\r\n")

    def fits(one: Format) -> bool:
        starts = any(dense.startswith(first) and (p.match(head) or p.match(text)) for first, p in one.starts)
        return starts or any(all(mark in plain for mark in each) for each in one.holds)

    return _first(fits)


def of_look(head: bytes) -> Format | None:
    """The kind of a file of an unknown writer, by the names of its columns or members, and by its lines.

    A trace may look so too: ask only about a file that no source could read.
    """
    head = head[:LOOK_BYTES].removeprefix(b"\xef\xbb\xbf")
    if b"\0" in head:
        return None
    named = {"members": members_of(head), "columns": []} if _JSON.match(head) else {"members": [], "columns": columns_of(head)}
    named["fields"] = [*named["members"], *named["columns"]]

    def looks(one: Format) -> bool:
        of_names = any(_each_found(each, names) for kind, names in named.items() for each in getattr(one, kind))
        return of_names or any(all(pattern.search(head) for pattern in each) for each in one.says)

    return _first(looks)


_JSON = re.compile(rb'\s*[\[{]\s*(?:["{\d\[\]}-]|null|true|false)')


def _each_found(patterns: Sequence[re.Pattern[str]], names: Sequence[str]) -> bool:
    return bool(names) and all(any(pattern.search(name) for name in names) for pattern in patterns)


_MEMBER = re.compile(rb'"([^"\\\n]{1,80})"\s{0,20}:')


def members_of(head: bytes) -> list[str]:
    """The names of all members in the beginning of JSON, in lower case, in order."""
    return list(dict.fromkeys(name.decode("utf-8", "replace").lower() for name in _MEMBER.findall(head[:LOOK_BYTES])))


_SEPARATORS = tuple(re.compile(separator) for separator in (rb",", rb"\t", rb";", rb"\|", rb"\s{2,60}", rb"\s{1,60}"))
_BLANKS = _SEPARATORS[-2:]
_NUMBER = re.compile(rb"[-+]?[\d.,:%eE+-]{1,40}$")
_TITLE = re.compile(rb"[^.!?{}=<>]{1,80}$|[\w.]{1,80}$")
_TITLE_LINES = 12  # of a file, the first, in which a table names its columns


def columns_of(head: bytes) -> list[str]:
    """The names of a table's columns, in lower case: the next line has as many cells, and some of them are numbers."""
    lines = [line.strip(b" \r#|") for line in head[:LOOK_BYTES].split(b"\n")[: _TITLE_LINES + 3]]
    lines = [line for line in lines if line.strip(b"-=+|: \t")]
    for title, row in zip(lines[:_TITLE_LINES], [*lines[1:], b""], strict=False):
        for separator in _SEPARATORS:
            names, values = ([cell.strip(b" \"'") for cell in separator.split(line)] for line in (title, row))
            told = [name for name in names if name and not _NUMBER.match(name)]
            alike = len(names) - 1 <= len(values) <= len(names) + 1 and any(map(_NUMBER.match, values))
            titled = separator not in _BLANKS and len(names) > 2 and (len(values) >= len(names) or not row) and all(map(_TITLE.match, names))
            if len(names) > 1 and 2 * len(told) > len(names) and (alike or titled):
                return [name.decode("utf-8", "replace").lower()[:80] for name in told]
    return []


def _suffix(path: str) -> str:
    name = path.removesuffix(".gz").removesuffix(".zst")
    return PurePath(name).suffix.lower()


def of_tables(tables: Collection[str]) -> Format | None:
    """The format of a SQLite database with these tables."""

    def matches_there(table: str) -> bool:
        return any(name.startswith(table[:-1]) for name in tables) if table.endswith("*") else table in tables

    return _first(lambda one: any(all(map(matches_there, each)) for each in one.tables))


def of_pickled(value: Mapping[object, object]) -> Format | None:
    """The format of a pickled dict, by its keys."""
    held = {key if isinstance(key, str) else f"{type(key).__name__}: {type(one).__name__}" for key, one in value.items()}
    return _first(lambda one: any(each <= held for each in one.keys))


def of_entries(names: Collection[str]) -> Format | None:
    """The format of a directory whose entries have these names."""
    return _first(lambda one: any(all(any(fnmatchcase(name, pattern) for name in names) for pattern in each) for each in one.entries))


def of_spans(spans: Sequence[tuple[str, str]]) -> Format | None:
    """The format of a Chrome trace whose spans are of these categories and processes, "" if they have none."""
    texts = [f"{category}|{process}" for category, process in spans]

    def fits(one: Format) -> bool:
        some = any(pattern.search(text) for pattern in one.spans for text in texts)
        return some or (bool(texts and one.all_spans) and all(any(p.match(text) for p in one.all_spans) for text in texts))

    return _first(fits)


def _first(fits: object) -> Format | None:
    return next((one for one in known() if fits(one)), None)  # type: ignore[operator]
