"""The file in a zstd frame: a line with its kind, a checksum, a description as JSON, then the columns in turn.

A later version of advisor reads every earlier version of the file. A missing column was not recorded, and a column that no table has any more is left out."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from typing import Any

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.recordings.columns import Categorical, Table
from advisor.recordings.timeline import TABLES, Device, Source, Timeline, table
from advisor.sources.columns.packing import Packed, pack, pack_integers, unpack
from advisor.sources.sniff import COLUMNS_MAGIC

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION = 1  # of the format
_SIZES = struct.Struct("<HI16s")
"""Version, bytes of the JSON, and a BLAKE2b digest of 16 bytes of all that follows."""

LEVEL, LEVEL_OF_LARGE, LARGE_BYTES = 19, 9, 64 << 20
"""Zstd's level 19 packs 2 MB per second. Files above 64 MB, which would take half a minute, use level 9 and are a tenth larger."""

FREE_BYTES, MOST_TIMES = 64 << 20, 64
"""Tables of more than 64 MB may take this many times their bytes in the file: real tables take up to 25 times."""


class _Table(msgspec.Struct, frozen=True):
    rows: int
    columns: dict[str, Packed]


class _Held(msgspec.Struct, frozen=True):
    """A file's description before its columns."""

    source: dict[str, Any]
    devices: list[dict[str, Any]]
    base_ns: int
    tables: dict[str, _Table]


def encode(timeline: Timeline) -> bytes:
    """A timeline as a file."""
    parts: list[bytes] = []
    tables: dict[str, _Table] = {}
    for name, spec in TABLES.items():
        frame: Table = getattr(timeline, name)
        if len(frame):
            later_us = timeline.source.device_clock_us if name in ("gpu_ops", "gpu_annotations") else 0.0
            packed = [_packed(frame[column], dtype, later_us if column == "start_us" else 0.0) for column, dtype in spec.items()]
            tables[name] = _Table(len(frame), {column: how for column, (how, _) in zip(spec, packed, strict=True)})
            parts += [data for _, data in packed]
    source = msgspec.to_builtins(timeline.source)
    held = msgspec.json.encode(_Held({**source, "path": ""}, msgspec.to_builtins(timeline.devices), timeline.base_ns, tables))
    payload = b"".join((held, *parts))
    whole = COLUMNS_MAGIC + _SIZES.pack(VERSION, len(held), _digest(payload)) + payload
    return zstd.compress(whole, LEVEL if len(whole) < LARGE_BYTES else LEVEL_OF_LARGE)


def _packed(column: Any, dtype: str, later_us: float) -> tuple[Packed, bytes]:
    if dtype != "str":
        return pack(column, later_us)
    texts = json.dumps(column.categories.tolist(), ensure_ascii=False, separators=(",", ":")).encode()
    how, data = pack_integers(column.codes.astype(np.int64))
    return msgspec.structs.replace(how, texts=len(texts)), data + texts


def decode(data: bytes, path: str, cut: str = "") -> Timeline:
    """The timeline of a file, unpacked. cut: the fault in its compression. Raises TraceError if it is damaged, or of a newer version."""
    at = len(COLUMNS_MAGIC) + _SIZES.size
    if len(data) < at:
        raise _damaged(path, cut or "it ends within its first bytes")
    version, size, digest = _SIZES.unpack(data[len(COLUMNS_MAGIC) : at])
    if version > VERSION:
        raise TraceError(f"{path} is of version {version} of advisor's columns, and this advisor reads up to {VERSION}", "Install a newer advisor.")
    payload = memoryview(data)[at:]
    if _digest(payload) != digest:
        raise _damaged(path, cut or "its checksum is not that of its bytes")
    try:
        held = msgspec.json.decode(payload[:size], type=_Held)
        return _timeline(held, payload[size:])
    except (msgspec.MsgspecError, TraceError, ValueError, TypeError, OverflowError) as error:  # TraceError: of a table that cannot be
        raise _damaged(path, str(error)) from None


def _timeline(held: _Held, payload: memoryview) -> Timeline:
    tables, at = {}, 0
    for name, kept in held.tables.items():
        spec = TABLES.get(name, {})
        if kept.rows < 0 or 8 * kept.rows * len(spec) > max(FREE_BYTES, MOST_TIMES * len(payload)):
            raise ValueError(f"{name} has {kept.rows} rows in {len(payload)} bytes")
        columns: dict[str, Any] = {}
        for column, how in kept.columns.items():
            end = at + kept.rows * how.width
            if how.texts < 0 or end + how.texts > len(payload):
                raise ValueError(f"{name}.{column} reaches over the end")
            if column in spec:
                columns[column] = _column(how, payload[at:end], payload[end : end + how.texts], kept.rows, spec[column])
            at = end + how.texts
        if name in TABLES:
            tables[name] = table(name, columns)
    source = msgspec.convert(held.source, Source)
    return Timeline.build(source, tuple(msgspec.convert(held.devices, list[Device])), held.base_ns, **tables)


def _column(how: Packed, data: memoryview, texts: memoryview, rows: int, dtype: str) -> Any:
    values = unpack(how, bytes(data), rows)
    if dtype == "str":
        categories = msgspec.json.decode(texts, type=list[str])
        if len(set(categories)) < len(categories) or (rows and not -1 <= int(values.min()) <= int(values.max()) < len(categories)):
            raise ValueError("a column of text numbers what it does not hold")
        return Categorical(values, categories)
    if dtype == "f8":
        return values if how.ns else values.view(np.float64)
    return values.astype(dtype)


def _digest(payload: bytes | memoryview) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


def _damaged(path: str, why: str) -> TraceError:
    return TraceError(f"{path} is damaged: {why}", "Copy the file again, or convert the trace again.")
