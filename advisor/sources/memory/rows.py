"""Rows of a list that a pickle holds as equally encoded dicts, read as columns: a million of them in a second or two.

Allocator events are such rows: the same keys in the same order, with values that are numbers or are in the memo. The first row shows the
encoding of the others. A single regular expression finds the end of each, and numpy reads all values of a field at once. A row
with another encoding is left to the machine (`pickles`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

FEWEST, MOST = 24, 1 << 16
"""Rows read at once: fewer rows than the first number are cheaper to read singly."""

Column = Any
"""(n,) int64 of a field of numbers, `Referred` of a field with values in the memo."""


class Referred(NamedTuple):
    """Values in the memo, each once, in the order in which rows first refer to them, and the value of each row."""

    values: list[Any]
    of: np.ndarray


_HEAD = b"}\x94("
"""A dict, memoized, and a mark: its fields follow."""
_REFERENCE = rb"(?:h.|j.{4})"
_LONG = b"|".join(rb"\x8a" + bytes([n]) + rb".{%d}" % n for n in range(9))
_NUMBER = rb"(?:K.|M..|J.{4}|" + _LONG + rb")"


class Field(NamedTuple):
    """Encoding of a row's field: key (position in the memo), its bytes, and the kind of its value."""

    key: int
    spelled: bytes
    kind: str
    """reference, number or text."""
    text: bytes = b""
    """Opcodes of a text, which is the same in all rows."""


class Template(NamedTuple):
    """A row's encoding."""

    fields: tuple[Field, ...]

    @property
    def texts(self) -> list[str]:
        """Texts that each row adds to the memo."""
        return [f.text[2 : 2 + f.text[1]].decode("utf-8", "surrogatepass") for f in self.fields if f.text]


def template_of(data: bytes, at: int) -> Template | None:
    """The encoding of the dict that begins at `at`; None if it is not of such rows."""
    if not data.startswith(_HEAD, at):
        return None
    at += len(_HEAD)
    fields: list[Field] = []
    while at < len(data) and data[at] != 0x75:  # SETITEMS
        begun = at
        size = _reference(data[at])
        if not size or len(fields) > 31:
            return None
        key = int.from_bytes(data[at + 1 : at + size], "little")
        at += size
        spelled = data[begun:at]
        code = data[at : at + 1]
        if not code:
            return None
        if size := _reference(code[0]):
            fields.append(Field(key, spelled, "reference"))
        elif size := _number(data, at):
            fields.append(Field(key, spelled, "number"))
        elif code == b"\x8c" and data[at + 2 + data[at + 1] : at + 3 + data[at + 1]] == b"\x94":
            size = 3 + data[at + 1]
            fields.append(Field(key, spelled, "text", data[at : at + size]))
        else:
            return None
        at += size
    return Template(tuple(fields))


def _reference(code: int) -> int:
    """Bytes of an opcode that gets a value from the memo, 0 for another opcode."""
    return {0x68: 2, 0x6A: 5}.get(code, 0)


def _number(data: bytes, at: int) -> int:
    """Bytes of an opcode that is a number of eight bytes at most, 0 for another opcode."""
    if data[at] == 0x8A and at + 1 < len(data):
        return 2 + data[at + 1] if data[at + 1] <= 8 else 0
    return {0x4B: 2, 0x4D: 3, 0x4A: 5}.get(data[at], 0)


@lru_cache(maxsize=64)
def _pattern(template: Template) -> re.Pattern[bytes]:
    values = {"reference": _REFERENCE, "number": _NUMBER}
    fields = b"".join(re.escape(f.spelled) + (re.escape(f.text) if f.text else values[f.kind]) for f in template.fields)
    return re.compile(re.escape(_HEAD) + fields + b"u", re.DOTALL)


@dataclass(frozen=True)
class Rows:
    """Rows of a template: their number, their columns in the order of its fields (None for texts), and the end of the last row.
    No columns if they are too few."""

    count: int
    columns: list[Column]
    end: int


def read(data: bytes, at: int, template: Template, memo: Sequence[Any]) -> Rows:
    """The rows from `at` on with this encoding. Raises IndexError if a row refers to a value that is not in the memo."""
    scan = _pattern(template).scanner(data, at)  # type: ignore[attr-defined]
    ends = []
    for match in iter(scan.match, None):
        ends.append(match.end())
        if len(ends) == MOST:
            break
    if len(ends) < FEWEST:
        return Rows(len(ends), [], at)
    octets = np.frombuffer(data, np.uint8)
    place = np.array([at, *ends[:-1]], np.int64) + len(_HEAD)
    columns: list[Column] = []
    for field in template.fields:
        place = place + len(field.spelled)
        if field.kind == "text":
            columns.append(None)
            place = place + len(field.text)
            continue
        code = octets[place]
        if field.kind == "reference":
            long = code == 0x6A
            index = _little(data, place + 1, np.where(long, 4, 1))
            columns.append(_referred(index, memo))
            place = place + np.where(long, 5, 2)
        else:
            of_long = code == 0x8A
            size = np.where(of_long, octets[place + 1], _SIZES[code])
            start = place + 1 + of_long
            columns.append(_little(data, start, size, signed=of_long | (code == 0x4A)))
            place = start + size
    return Rows(len(ends), columns, ends[-1])


def _referred(index: np.ndarray, memo: Sequence[Any]) -> Referred:
    _, first, of = np.unique(index, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Referred([memo[i] for i in index[first[order]].tolist()], rank[of.reshape(-1)])


_SIZES = np.zeros(256, np.int64)
_SIZES[[0x4B, 0x4D, 0x4A]] = 1, 2, 4


def _little(data: bytes, at: np.ndarray, size: np.ndarray, signed: np.ndarray | bool = False) -> np.ndarray:
    """(n,) numbers of 0 to 8 bytes each, little endian."""
    # Eight bytes from each place, the last ones of the pickle from a padded copy; what is beyond a number is shifted out.
    near = len(data) - 8
    views = np.ndarray((max(near + 1, 0),), "<u8", data, strides=(1,)) if near >= 0 else np.empty(0, "<u8")
    late = at > near
    value = views[np.where(late, 0, at)] if len(views) else np.zeros(len(at), "<u8")
    for i in np.flatnonzero(late).tolist():
        value[i] = int.from_bytes(data[at[i] : at[i] + 8], "little")
    shift = (64 - 8 * size).astype(np.uint64) % np.uint64(64)
    raised = value << shift
    made: np.ndarray = np.where(signed, raised.view(np.int64) >> shift.astype(np.int64), (raised >> shift).view(np.int64))
    return np.where(size == 0, 0, made)
