"""Secrets of each kind, planted into every place of a file by its structure: what a format adds is planted into without a word."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical
from advisor.recordings.timeline import TABLES
from advisor.sources import kineto
from advisor.sources.columns.layout import encode, zstd
from advisor.sources.stream import ZSTD_MAGIC, Stream
from tests.fuzz import examples, mutate

WORD = "lovelace"
"""Somebody's name: no form tells it from any other word."""

SECRETS = {
    "an environment variable": "AWS_SECRET_ACCESS_KEY=qZ7secretvalue/0001",
    "an option": "--api-key qZ7secretvalue0002",
    "a password": "password=qZ7secretvalue0003",
    "a quoted member": '"client_secret": "qZ7secretvalue0004"',
    "a bearer": "Authorization: Bearer qZ7secretvalue0005",
    "a Hugging Face token": "hf_" + "qZ7secretvalue0006" * 2,
    "a GitHub token": "ghp_" + "qZ7secretvalue0007" * 2,
    "an OpenAI key": "sk-" + "qZ7secretvalue0008" * 2,
    "a key's body": "-----BEGIN RSA PRIVATE KEY-----\nqZ7secretvalue0009\n-----END RSA PRIVATE KEY-----",
    "a web token": "eyJ" + "qZ7secretvalue0010" + ".eyJ" + "qZ7secretvalue0010" + "." + "qZ7secretvalue0010",
    "a cloud's key": "AccountKey=qZ7secretvalue0011==;EndpointSuffix=x",
    "credentials in an address": "https://lovelace:qZ7secretvalue0012@example.com/x",
    "a mail address": "lovelace.qZ7secretvalue0013@corp.example",
    "an address": "10.254.77.131",
    "an IPv6 address": "2001:db8:77:131:254:10:7:1",
    "a path": "/home/lovelace/qZ7secretvalue0014/train.bin",
    "a path of Windows": "C:\\Users\\lovelace\\qZ7secretvalue0015\\x.py",
    "a UNC path": "\\\\lovelace-nas\\qZ7secretvalue0016\\x",
    "a home": "~lovelace/qZ7secretvalue0017/x",
    "a machine": "gpu-7.qZ7secretvalue0018.corp.example.com",
    "a machine glued to a name": "mm_qZ7secretvalue0019.internal_x",
    "an address glued to a name": "on10.254.77.131x",
    "a short IPv6 address": "node2001:db8:77::131x",
    "an account on a machine": "lovelace@gpu7",
    "an account": "USER=lovelace",
}
"""What its form gives away, wherever it stands."""

LEFT = re.compile(rb"qZ7secretvalue|lovelace|254\.77\.131|2001:db8:77", re.IGNORECASE)
"""What may not be left of any of them."""


def found_in(data: bytes) -> list[bytes]:
    """Canaries in a file's bytes, as they stand, escaped, in UTF-16, and behind its compression."""
    texts = [data, data.replace(b"\\/", b"/"), data.replace(b"\0", b"")]
    if data.startswith(b"\x1f\x8b"):
        texts.append(gzip.decompress(data))
    if data.startswith(ZSTD_MAGIC):
        texts.append(zstd.decompress(data))
    return [match[0] for text in texts for match in LEFT.finditer(text)]


Place = tuple[str, bool]
"""Which place of a file, and whether a bare word may stand there because it names a part of the program."""

Planted = Iterator[tuple[Place, Callable[[str], bytes]]]
"""Places, each with what makes the file with a text there."""


def in_json(value: Any, names: Callable[[tuple[Any, ...]], bool], write: Callable[[Any], bytes] = lambda v: json.dumps(v).encode()) -> Planted:
    """Every text in a tree, replaced and appended to; every container with a member more; every member with another key."""
    for path in _paths(value):
        where, program = ".".join("*" if isinstance(step, int) else str(step) for step in path), names(path)
        held = _at(value, path)
        if isinstance(held, str):
            yield (f"{where} replaced", program), lambda text, p=path: write(_with(value, p, text))
            yield (f"{where} appended", program), lambda text, p=path, h=held: write(_with(value, p, f"{h} {text}"))
        elif isinstance(held, dict):
            yield (
                (f"{where} member", False),
                lambda text, p=path, h=held: write(_with(value, p, {**h, "environment": {"X": text}, "note": text, "list": [text]})),
            )
            yield (f"{where} key", False), lambda text, p=path, h=held: write(_with(value, p, {**h, text: 1, text + "b": text}))
        elif isinstance(held, (int, float)) and not isinstance(held, bool):
            yield (f"{where} for a number", program), lambda text, p=path: write(_with(value, p, text))


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, (list, tuple, dict)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(item, (*at, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a place."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {key: _with(item, rest, new) if key == step else item for key, item in value.items()}
    return type(value)([_with(item, rest, new) if i == step else item for i, item in enumerate(value)])


def in_message(data: bytes, names: Callable[[tuple[int, ...]], bool]) -> Planted:
    """Every text of a protobuf message, and a field more in every message."""
    whole = mutate.message(data)
    assert whole is not None and mutate.encoded(whole) == data

    def places(message: mutate.Message, at: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        yield at, ()
        for i, (number, _, value) in enumerate(message):
            if isinstance(value, list):
                for where, numbers in places(value, (*at, i)):
                    yield where, (number, *numbers)
            elif isinstance(value, bytes):
                yield (*at, i), (number,)

    for where, numbers in places(whole, ()):

        def made(text: str, where: tuple[int, ...] = where) -> bytes:
            copy = mutate.json_copy(whole)
            holder = copy
            for step in where[:-1]:
                holder = holder[step][2]
            if not where:
                copy.append([1999, 2, text.encode()])
            elif isinstance(holder[where[-1]][2], list):
                holder[where[-1]][2].append([1999, 2, text.encode()])
            else:
                holder[where[-1]] = [holder[where[-1]][0], 2, holder[where[-1]][2] + b" " + text.encode()]
            return mutate.encoded(copy)

        yield (f"field {'.'.join(map(str, numbers))} at {where}", names(numbers)), made


def in_database(data: bytes, names: Callable[[str, str], bool], folder: Path) -> Planted:
    """Every column of every table, a column and a row more, and tables that nobody knows; then a deleted row, whose bytes stay."""
    path = folder / "planted.sqlite"

    def made(*statements: tuple[str, tuple[Any, ...]]) -> bytes:
        path.write_bytes(data)
        db = sqlite3.connect(path)
        for sql, values in statements:
            db.execute(sql, values)
        db.commit()
        db.close()
        return path.read_bytes()

    path.write_bytes(data)
    db = sqlite3.connect(path)
    tables = {t: [row[1] for row in db.execute(f'PRAGMA table_info("{t}")')] for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    for table, columns in tables.items():
        for column in columns:
            yield (f"{table}.{column}", names(table, column)), lambda text, t=table, c=column: made((f'UPDATE "{t}" SET "{c}" = ?', (text,)))
        yield (f"{table} column", False), lambda text, t=table: made((f'ALTER TABLE "{t}" ADD COLUMN note TEXT', ()), (f'UPDATE "{t}" SET note = ?', (text,)))
        yield (
            (f"{table} deleted", False),
            lambda text, t=table, c=columns[0]: made(
                (f'INSERT INTO "{t}" ("{c}") VALUES (?)', (text * 9,)), (f'DELETE FROM "{t}" WHERE "{c}" = ?', (text * 9,))
            ),
        )
    for table in ("TARGET_INFO_SYSTEM_ENV", "ENUM_NOTES", "CUPTI_ACTIVITY_KIND_NOTES", "PROCESS_STREAMS", WORD):
        yield (
            (f"{table} new", False),
            lambda text, t=table: made((f'CREATE TABLE "{t}" (id INTEGER, name TEXT, label TEXT)', ()), (f'INSERT INTO "{t}" VALUES (1, ?, ?)', (text, text))),
        )
    if "StringIds" in tables:
        yield ("StringIds unused", False), lambda text: made(("INSERT INTO StringIds VALUES (999, ?)", (text,)))


def in_page(page: str, names: Callable[[str], bool]) -> Planted:
    """Every cell of a CSV page, a column more, and a line before it."""
    lines = page.splitlines()
    first = next(i for i, line in enumerate(lines) if "Kernel Name" in line)
    rows = list(csv.reader(lines[first:]))

    def text_of(rows: list[list[str]], before: tuple[str, ...] = ()) -> bytes:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        return ("\n".join((*lines[:first], *before, "")) + out.getvalue()).lstrip("\n").encode()

    for r, row in enumerate(rows):
        for c in range(len(row)):
            yield (f"row {r} {rows[0][c]}", names(rows[0][c]) and r > 0), lambda text, r=r, c=c: text_of(_with(rows, (r, c), f"{rows[r][c]} {text}"))
    yield ("column", False), lambda text: text_of([[*row, "Note" if i == 0 else text] for i, row in enumerate(rows)])
    yield ("before", False), lambda text: text_of(rows, ("==PROF== " + text.replace("\n", " "),))


_PROGRAM_KEYS = {"kernel_file", "Call stack", "Module Hierarchy", "name", "long_name", "filename"}
_PROGRAM_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "python_function", "cuda_runtime"}


def _kineto() -> Planted:
    """The trace of every category, in Kineto's layout."""
    value = examples.kineto()[0]
    extra = examples.training(1)["traceEvents"]
    value = {**value, "traceEvents": [*value["traceEvents"], *(e for e in extra if e.get("cat") in ("cpu_op", "kernel"))][:32]}

    def names(path: tuple[Any, ...]) -> bool:
        if len(path) < 3 or path[0] != "traceEvents":
            return False
        category = value["traceEvents"][path[1]].get("cat", "")
        return path[-1] in ("kernel_file", "Call stack", "Module Hierarchy") or (path[2:] == ("name",) and category in _PROGRAM_CATEGORIES)

    return in_json(value, names)


def _chrome() -> Planted:
    value = examples.jax_chrome()[0]
    value["traceEvents"] = value["traceEvents"][:10]
    return in_json(value, lambda path: path[-1:] == ("name",) and "args" not in path and value["traceEvents"][path[1]].get("ph") == "X")


def _of_rocm(path: tuple[Any, ...]) -> bool:
    """Names of kernels and of calls."""
    return path[-1:] in (("formatted_kernel_name",), ("kernel_name",)) or path[-2:-1] == ("operations",)


def _proton_trace() -> Planted:
    """Stacks hold functions and scopes of the program."""
    value = examples.proton_trace()
    spans = [event for event in value["traceEvents"] if event["ph"] == "X"]
    value = {"displayTimeUnit": "us", "traceEvents": [spans[1], *spans]}
    return in_json(value, lambda path: path[-1:] == ("name",) and len(path) == 3, lambda v: json.dumps(v, separators=(",", ":")).encode())


def _of_program(numbers: tuple[int, ...]) -> bool:
    """Names of events; of stats, which texts of events refer to; and of what XLA compiled: instructions, targets, files, ops."""
    proto = (1, 4, 2, 5, 6)
    compiled = ((1, 3, 2, 1), (1, 3, 2, 28), (1, 3, 2, 7, 2), (1, 17, 1))
    return numbers in ((1, 4, 2, 2), (1, 3, 4, 4, 5), (1, 4, 2, 5, 5)) or numbers in [proto + at for at in compiled]


def _pickle() -> Planted:
    value = examples.snapshot()
    value = {
        **value,
        "segments": value["segments"][:2],
        "device_traces": [value["device_traces"][0][:6]],
        "external_annotations": value["external_annotations"][:2],
    }
    return in_json(value, lambda path: path[-1:] in (("name",), ("filename",)) and "frames" in path, lambda v: pickle.dumps(v, 4))


def _ncu_report() -> Planted:
    """A report whose one result holds every field that there is: names, sources, ranges, remarks, sections; and its session."""
    from tests.kernels import NAMES_HELD, SESSION, block, field, report, result

    body = result("void f<int>(float*)", {0: field(3, 5000.0), 2: field(1, "NVIDIA H200")}) + b"".join(field(n, "ab") for n in (5, 6, 9, 14, 17, 19, 21))
    for (where, program), made in in_message(body, lambda numbers: numbers in ((5,), (6,), (7,))):
        yield (f"result {where}", program), lambda text, m=made: report(block(session=SESSION), block([m(text)], NAMES_HELD))
    for (where, program), made in in_message(SESSION, lambda numbers: False):
        yield (f"session {where}", program), lambda text, m=made: report(block(session=m(text)), block(payload=b"\1" * 40), block([body], NAMES_HELD))
    yield ("a string", False), lambda text: report(block([body], (*NAMES_HELD[:2], text)))
    yield ("a block of sources", False), lambda text: report(block(payload=text.encode()), block([body], NAMES_HELD))


_PROGRAM_COLUMNS = {
    ("gpu_ops", "name"), ("cpu_ops", "name"), ("cpu_ops", "kernel_file"), ("cpu_ops", "call_stack"), ("cpu_ops", "module"), ("python_calls", "name"),
    ("api_calls", "name"),
}  # fmt: skip


def _columns() -> Planted:
    """Every text of every column of a timeline, and what its source says of the recorder."""
    timeline = kineto.read(Stream(io.BytesIO(json.dumps(examples.kineto()[0]).encode())), "x")

    def made(table: str, column: str, text: str) -> bytes:
        rows = getattr(timeline, table)
        changed = Categorical(rows[column].codes, [f"{one} {text}" for one in rows[column].categories])
        return encode(replace(timeline, **{table: rows.with_columns(**{column: changed})}))

    for table, spec in TABLES.items():
        for column in (column for column, dtype in spec.items() if dtype == "str" and len(getattr(timeline, table)) and column != "kind"):
            yield (f"{table}.{column}", (table, column) in _PROGRAM_COLUMNS), lambda text, t=table, c=column: made(t, c, text)
    yield ("source", False), lambda text: encode(replace(timeline, source=replace(timeline.source, path=text, metadata={"note": text, text: 1})))


def files(folder: Path) -> Iterator[tuple[str, str, Planted]]:
    """Source, suffix and places of each format that a source reads."""
    yield "kineto", ".json", _kineto()
    yield "columns", ".trace.zst", _columns()
    yield "flight", "", in_json(examples.flight(), lambda path: path[-1:] in (("filename",), ("profiling_name",)), lambda v: pickle.dumps(v, 2))
    yield "rocprof", ".json", in_json(examples.rocprof_json(), _of_rocm)
    yield "rocprof", ".db", in_database(examples.rocpd(), lambda table, column: column in ("display_name", "kernel_name", "string"), folder)
    yield "proton", ".json", _proton_trace()
    yield "proton", ".json", in_json(examples.proton_tree(), lambda path: path[-2:] == ("frame", "name"))
    yield "jax", ".json", _chrome()
    yield "jax", ".xplane.pb", in_message(examples.xplane()[-1], _of_program)
    yield "jax", ".xplane.pb", in_message(examples.tpu(), _of_program)
    yield "memory", ".pickle", _pickle()
    yield "memory", ".prof", in_message(examples.memory_profile(), lambda numbers: numbers == (6,))
    yield "ncu", ".ncu-rep", _ncu_report()
    for page in examples.ncu_pages()[:3]:
        yield "ncu", ".csv", in_page(page, lambda column: column == "Kernel Name")
    yield "nsys", ".sqlite", in_database(examples.nsys(), lambda table, column: (table, column) == ("StringIds", "value"), folder)
