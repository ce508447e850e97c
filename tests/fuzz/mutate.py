"""Changes to inputs that keep most of their structure: trees of JSON, messages of protobuf, rows of SQLite, cells, bytes.

Everything is drawn from the `random.Random` that is given, so that a seed says the input.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 53) + 1, (1 << 62) - 1, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30,
    -(1 << 31), -(1 << 62) + 1, -(1 << 63), -(10**30), 0.0, -0.0, 0.5, 1e-9, 1e9, 4346407437080.002, 9e15, 1e300, -1e300, 1.7e308, 5e-324,
)  # fmt: skip
"""Where integers and times change how they are held."""

TEXTS: tuple[str, ...] = (
    "", "x", "1", "-5", "1e5", "NaN", "null", "stream 7", "é☃", "\ud800", "\x1b]0;x\x07", "\n::error::x", "a\x00b", "\u2028", "\u202e", "```", "</script><b>",
    "a" * 300, "(" * 60, "<" * 60, "%s{}{0}", "../../x", "C:\\x\\y.py", "/a/b.py(3): f", "[[1, 2], [", "aten::mm", "Memcpy HtoD (Pageable -> Device)", "ProfilerStep#9",
    "ncclDevKernel_AllReduce", "cudaLaunchKernel", "12345678901234567890123", "٣", "²",
    "1" * 5000, "x.py(" + "1" * 5000 + "): f", "compile_id=[" + "1" * 5000 + "/1]", "::error::x", "##[error]x", "\x9b31m", "\x7f", "\U000e0041",
)  # fmt: skip
"""What names and numbers in text are not expected to be."""

ODD: tuple[Any, ...] = (None, True, False, float("nan"), float("inf"), -float("inf"), [], {}, [[]], [1, "x"], {"a": []}, [[[[[[]]]]]], *NUMBERS, *TEXTS)


def odd(rng: random.Random) -> Any:
    """One of `ODD`, its own copy: what is changed later must not change the next input."""
    value = rng.choice(ODD)
    return json.loads(json.dumps(value)) if isinstance(value, (list, dict)) else value


def tree(rng: random.Random, value: Any, times: int | None = None) -> Any:
    """The value, its containers changed in place at a few places: values replaced, moved, doubled, taken out, keys exchanged."""
    for _ in range(times or rng.choice((1, 1, 2, 3, 8))):
        holder, key = _place(rng, value)
        if holder is None:
            return odd(rng)
        _change(rng, value, holder, key)
    return value


def number(rng: random.Random, value: Any) -> Any:
    """The value, one number of it another, in place: every number of a small recording meets every odd one soon."""
    holder, key = rng.choice(list(_numbers(value)))
    odd_one = rng.choice(NUMBERS)
    holder[key] = str(odd_one) if isinstance(holder[key], str) else odd_one
    return value


def _numbers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Containers and keys of all numbers, of those that stand as text too."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list)):
            yield from _numbers(item)
        elif (isinstance(item, (int, float)) and not isinstance(item, bool)) or (isinstance(item, str) and item.isdecimal()):
            yield value, key


def _place(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """A container and a key in it, at a random depth; None where there is none."""
    holder = key = None
    while isinstance(value, (list, dict)) and value:
        if holder is not None and rng.random() < 0.12:
            break
        holder, key = value, rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = holder[key]
    return holder, key


def _change(rng: random.Random, whole: Any, holder: Any, key: Any) -> None:
    how = rng.randrange(8)
    if how < 3:
        holder[key] = odd(rng)
    elif how == 3 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = rng.choice((-holder[key], holder[key] * 1000, holder[key] + 1, holder[key] / 3, str(holder[key]), rng.uniform(-1e6, 1e6)))
    elif how == 4:
        del holder[key]
    elif how == 5:  # from elsewhere
        other, where = _place(rng, whole)
        if other is not None:
            holder[key] = json.loads(json.dumps(other[where]))
    elif how == 6 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), json.loads(json.dumps(holder[key])))
    elif how == 6:
        holder[rng.choice(TEXTS)] = holder.pop(key)
    else:
        a, b = _place(rng, whole), (holder, key)
        if a[0] is not None and not _inside(a[0][a[1]], holder) and not _inside(holder[key], a[0]):
            a[0][a[1]], b[0][b[1]] = b[0][b[1]], a[0][a[1]]


def _inside(outer: Any, inner: Any) -> bool:
    """Whether one container holds another, which would then hold itself."""
    if outer is inner:
        return True
    if isinstance(outer, (list, dict)):
        return any(_inside(item, inner) for item in (outer.values() if isinstance(outer, dict) else outer))
    return False


def json_text(rng: random.Random, value: Any) -> bytes:
    """JSON in one of the layouts that writers use, numbers that JSON has no word for among it; surrogates as they come."""
    layout: dict[str, Any] = rng.choice(({}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 4}))
    return json.dumps(value, **layout).encode("utf-8", rng.choice(("surrogatepass", "replace")))


def raw(rng: random.Random, data: bytes, times: int | None = None) -> bytes:
    """Bytes changed, cut, doubled, taken out or put in, in a few places."""
    changed = bytearray(data)
    for _ in range(times or rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(7)
        if how == 0:
            del changed[at:]
        elif how == 1:
            del changed[at : at + rng.choice((1, 1, 4, 40))]
        elif how == 2:
            changed[at:at] = changed[at : at + rng.choice((1, 8, 80))]
        elif how == 3:
            changed[at:at] = rng.choice(
                (b"\0", b"\xff", b'"', b"\\", b"}", b"]", b",", b"{", b"[", b"\n", b"\xc3", bytes(rng.randrange(256) for _ in range(4)))
            )
        elif how == 4 and at + 8 <= len(changed):
            width, kind = rng.choice(((4, "<I"), (8, "<Q"), (4, ">I"), (2, ">H")))
            changed[at : at + width] = struct.pack(kind, rng.choice((0, 1, (1 << 8 * width) - 1, 1 << 8 * width - 1, len(data))) & ((1 << 8 * width) - 1))
        elif at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


# A message of protobuf as a tree: [number, wire, value]; value is a number, bytes, or such a list.
Message = list[list[Any]]


def message(data: bytes) -> Message | None:
    """The fields of a message, those that are messages taken apart too; None for what is none."""
    from advisor.sources.protobuf import fields

    made: Message = []
    try:
        for number, value in fields(memoryview(data)):
            if isinstance(value, int):
                made.append([number, 0, value])
            else:
                held = bytes(value)
                text = len(held) > 2 and all(32 <= byte < 127 for byte in held)
                inner = None if text or not held else message(held)
                made.append(
                    [number, 2 if text or inner is not None or len(held) not in (4, 8) else 1 if len(held) == 8 else 5, held if inner is None else inner]
                )
    except ValueError:
        return None
    return made


def encoded(fields: Message) -> bytes:
    """A message as bytes; wire types and lengths as they stand in the tree."""
    out = bytearray()
    for number, wire, value in fields:
        out += varint(number << 3 | wire)
        if isinstance(value, int):
            out += varint(value)
        else:
            data = encoded(value) if isinstance(value, list) else value
            out += (varint(len(data)) if wire == 2 else b"") + data
    return bytes(out)


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def fields(rng: random.Random, whole: Message, times: int | None = None) -> Message:
    """The message, changed in place at a few places."""
    for _ in range(times or rng.choice((1, 1, 2, 3, 8))):
        holder: Message = whole
        while True:
            if not holder:
                break
            at = rng.randrange(len(holder))
            if isinstance(holder[at][2], list) and holder[at][2] and rng.random() < 0.85:
                holder = holder[at][2]
                continue
            _change_field(rng, holder, at)
            break
    return whole


def _change_field(rng: random.Random, holder: Message, at: int) -> None:
    number, wire, value = holder[at]
    how = rng.randrange(7)
    if how == 0:
        del holder[at]
    elif how == 1:
        holder.insert(rng.randrange(len(holder) + 1), [number, wire, json_copy(value)])
    elif how == 2:
        holder[at][0] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 10, 13, 1 << 28, rng.randrange(1, 30)))
    elif how == 3:
        other = rng.randrange(len(holder))
        holder[at], holder[other] = holder[other], holder[at]
    elif isinstance(value, int):
        holder[at][2] = rng.choice((0, 1, 2, 127, 128, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, value + 1, value * 1000, b"x"))
    elif isinstance(value, bytes):
        holder[at][2] = rng.choice(
            (b"", rng.choice(TEXTS).encode("utf-8", "surrogatepass"), raw(rng, value, 1), struct.pack("<d", rng.choice((float("nan"), 1e300, -1.0))), 5)
        )
    else:
        holder[at][2] = rng.choice((b"", b"\xff", rng.choice(TEXTS).encode("utf-8", "surrogatepass"), 3))


def json_copy(value: Any) -> Any:
    return [json_copy(item) for item in value] if isinstance(value, list) else value


def rows(rng: random.Random, path: Path, times: int | None = None) -> None:
    """A database changed in place: values of another type, tables and columns gone or renamed, rows doubled."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for _ in range(times or rng.choice((1, 1, 2, 3, 8))):
            # A column that another one needs, a number that SQLite does not hold.
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                _change_rows(rng, db)
        db.execute("COMMIT")
    finally:
        db.close()


def _change_rows(rng: random.Random, db: sqlite3.Connection) -> None:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    table = rng.choice(tables)
    columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
    column, other = rng.choice(columns), rng.choice(columns)
    one = f'rowid = (SELECT rowid FROM "{table}" ORDER BY rowid LIMIT 1 OFFSET {rng.randrange(4)})'
    value = rng.choice((*ODD, b"\xff\x00", b""))
    value = value if isinstance(value, (int, float, str, bytes, type(None))) else str(value)
    how = rng.randrange(12)
    if how < 6:
        db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {one if how < 5 else 1}', (value,))
    elif how == 6:
        db.execute(f'DELETE FROM "{table}" WHERE {rng.choice((one, "1"))}')
    elif how == 7:
        db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE {rng.choice((one, "1"))}')
    elif how == 8:
        db.execute(f'UPDATE "{table}" SET "{column}" = "{other}"')
    elif how == 9:
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif how == 10:
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{rng.choice(("x", other + "_"))}"')
    else:
        db.execute(f'DROP TABLE "{table}"' if rng.random() < 0.5 else f'ALTER TABLE "{table}" RENAME TO "T{rng.randrange(9)}"')


def cells(rng: random.Random, text: str) -> str:
    """A table of comma-separated values with a few cells, rows or quotes changed."""
    lines = [line.split(",") for line in text.split("\n")]
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        line = rng.choice(lines)
        at, how = rng.randrange(len(line)), rng.randrange(6)
        if how < 3:
            line[at] = '"' + str(rng.choice(ODD)).replace('"', rng.choice(('""', '"'))) + '"'
        elif how == 3:
            del line[at : at + rng.choice((1, 3))]
            line.append("") if not line else None
        elif how == 4:
            lines.insert(rng.randrange(len(lines) + 1), list(line))
        else:
            line[at] = rng.choice(rng.choice(lines))
    return "\n".join(",".join(line) for line in lines)


def toml(value: dict[str, Any]) -> str:
    """Settings as TOML, whatever they hold."""

    def one(item: Any) -> str:
        if isinstance(item, bool):
            return str(item).lower()
        if isinstance(item, dict):
            return "{" + ", ".join(f"{one(str(key))} = {one(held)}" for key, held in item.items()) + "}"
        if isinstance(item, (list, tuple)):
            return "[" + ", ".join(map(one, item)) + "]"
        return json.dumps(item) if isinstance(item, str) else '""' if item is None else str(item)

    return "\n".join(f"{one(str(key))} = {one(held)}" for key, held in value.items()) + "\n"


def choices(rng: random.Random, some: Sequence[Any], most: int) -> list[Any]:
    return [rng.choice(some) for _ in range(rng.randint(1, most))]
