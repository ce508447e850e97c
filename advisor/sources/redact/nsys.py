"""An nsys export with the data that the reader uses. It is a new database with only the tables and columns named here, so that no free page holds
more."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from advisor.errors import TraceError
from advisor.sources.nsys import ranges
from advisor.sources.nsys.gpu import COPIES, GRAPHS, KERNELS, MEMSETS
from advisor.sources.nsys.log import uri
from advisor.sources.nsys.tables import STEPS, STEPS_A_BYTE, _Steps
from advisor.sources.redact.names import Names, device, version, words

_PLACED = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName")

_TABLES: Mapping[str, tuple[str, ...]] = {
    KERNELS: (
        *_PLACED,
        *_KERNEL_NAMES,
        "contextId",
        "gridX",
        "gridY",
        "gridZ",
        "blockX",
        "blockY",
        "blockZ",
        "registersPerThread",
        "staticSharedMemory",
        "dynamicSharedMemory",
        "graphId",
        "graphNodeId",
    ),
    COPIES: (*_PLACED, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
    MEMSETS: (*_PLACED, "bytes", "graphNodeId"),
    GRAPHS: (*_PLACED, "graphId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*_PLACED, "syncType"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("start", "end", "globalTid", "nameId"),
    "PROFILER_OVERHEAD": ("start", "end", "globalTid", "nameId"),
    "OSRT_API": ("start", "end", "globalTid", "nameId"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": ("start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId"),
    "GPU_METRICS": ("timestamp", "typeId", "metricId", "value"),
    "TARGET_INFO_GPU_METRICS": ("typeId", "metricId", "metricName"),
    "TARGET_INFO_GPU": ("id", "name", "smCount", "computeMajor", "computeMinor", "totalMemory", "threadsPerWarp"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid", "numMultiprocessors"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "META_DATA_EXPORT": ("name", "value"),
    "EXPORT_META_DATA": ("name", "value"),
    "StringIds": ("id", "value"),
    **dict.fromkeys(("ENUM_CUDA_MEM_KIND", "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUPTI_SYNC_TYPE", "ENUM_CUDA_DEV_MEM_EVENT_OPER"), ("id", "label", "name")),
}
"""What `advisor.sources.nsys` asks for. A text in any other column than those below is left out."""

_ENUM_WORDS = frozenset(
    [
        "host",
        "device",
        "pageable",
        "pinned",
        "array",
        "managed",
        "static",
        "unknown",
        "to",
        "peer",
        "unified",
        "memory",
        "uvm",
        "event",
        "stream",
        "wait",
        "context",
        "sync",
        "synchronize",
        "synchronization",
        "allocation",
        "deallocation",
        "alloc",
        "dealloc",
        "cuda",
        "cupti",
        "memcpy",
        "memkind",
        "mem",
        "kind",
        "oper",
        "operation",
        "activity",
        "type",
        "dev",
        "htod",
        "dtoh",
        "dtod",
        "ptop",
        "htoa",
        "atoh",
        "atoa",
        "atod",
        "dtoa",
        "htoh",
        "invalid",
    ]
)
_METRIC_WORDS = frozenset(
    [
        "sm",
        "sms",
        "active",
        "inactive",
        "issue",
        "tensor",
        "dram",
        "read",
        "write",
        "reads",
        "writes",
        "bandwidth",
        "throughput",
        "pcie",
        "rx",
        "tx",
        "gr",
        "gpc",
        "sys",
        "clock",
        "frequency",
        "compute",
        "warps",
        "warp",
        "in",
        "flight",
        "unallocated",
        "idle",
        "nvlink",
        "requests",
        "responses",
        "user",
        "protocol",
        "data",
        "packets",
        "bytes",
        "percent",
        "avg",
        "sum",
        "mhz",
        "hz",
        "hit",
        "rate",
        "vram",
        "async",
        "copy",
        "engine",
        "engines",
        "nvenc",
        "nvdec",
        "jpg",
        "ofa",
        "fp64",
        "fp32",
        "fp16",
        "int8",
        "pipe",
        "cycles",
        "elapsed",
        "cs",
        "vs",
        "ps",
        "gb",
        "s",
        "b",
        "l1",
        "l2",
        "lts",
        "bar1",
        "local",
        "remote",
        "c2c",
        "mig",
        "and",
        "of",
        "the",
        "total",
        "units",
    ]
)
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")


def redacted(source: Path, part: Path, names: Names) -> None:
    """Write a copy to give away. Raises TraceError if `source` is no export, sqlite3.Error if it cannot be read."""
    with closing(sqlite3.connect(f"file:{quote(str(part.resolve()))}", uri=True, isolation_level=None)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.execute("PRAGMA trusted_schema = OFF")
        # A copy that is not finished is thrown away: there is nothing to roll back to.
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("ATTACH ? AS original", (uri(source),))
        size = source.stat().st_size
        db.set_progress_handler(_Steps(8 * (STEPS + STEPS_A_BYTE * size)), STEPS // 50)
        tables = _kept(db)
        if "StringIds" not in tables and KERNELS not in tables:
            raise TraceError(f"{source} is a SQLite file but no nsys export", "Give an export: nsys export --type sqlite FILE")
        for kind, rule in _rules(names).items():
            db.create_function(f"advisor_{kind}", 1, lru_cache(maxsize=1 << 14)(_on_bytes(rule)), deterministic=True)
        db.create_function("advisor_string", 2, _on_bytes_of_kind(_rules(names)), deterministic=True)
        db.execute("BEGIN")
        for table, columns in tables.items():
            _copy(db, table, columns, tables)
        db.execute("COMMIT")
        db.execute("DETACH original")


Rule = Callable[[str], Any]
"""The redacted form of a text."""


def _kept(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Real tables that are known, each with those of its known columns that it has."""
    real = {n for (n,) in db.execute("SELECT name FROM original.sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()}
    have = {t: {str(row[1]) for row in db.execute(f'PRAGMA original.table_info("{t}")')} for t in _TABLES if t in real}
    return {table: tuple(c for c in _TABLES[table] if c in columns) for table, columns in have.items() if columns & set(_TABLES[table])}


def _rules(names: Names) -> dict[str, Rule]:
    """The redacted form of a text, by the kind of thing that it names."""
    return {
        "kernel": names.kernel, "call": names.call, "range": names.range, "nvtx": lambda text: _nvtx(names, text), "device": device,
        "enum": lambda text: words(text, _ENUM_WORDS), "metric": lambda text: words(text, _METRIC_WORDS) or names.given("metric", text),
        "version": lambda text: version(text),
    }  # fmt: skip


def _on_bytes(rule: Rule) -> Callable[[bytes], Any]:
    return lambda raw: rule(bytes(raw).decode("utf-8", "replace"))


def _on_bytes_of_kind(rules: dict[str, Rule]) -> Callable[[bytes, str | None], Any]:
    cached = {kind: lru_cache(maxsize=1 << 14)(_on_bytes(rule)) for kind, rule in rules.items()}
    return lambda raw, kind: cached[kind](raw) if kind else None


def _nvtx(names: Names, text: str) -> str:
    """The text of a range: an op with its sequence number and sizes, or a range."""
    said = ranges.parse(text)
    if not said.is_op:
        return names.range(said.name)
    # How the reader tells an op: one of these stands after its name.
    suffix = (f", seq = {said.sequence}" if said.sequence >= 0 else ", op_id = 0" if said.name != text else "") + (
        f", sizes = {said.dims}" if said.dims else ""
    )
    return names.op(said.name) + suffix


def _copy(db: sqlite3.Connection, table: str, columns: tuple[str, ...], tables: Mapping[str, tuple[str, ...]]) -> None:
    values = [_value(table, column) for column in columns]
    where = f"WHERE name IN {_VERSIONS}" if table in ("META_DATA_EXPORT", "EXPORT_META_DATA") and "name" in columns else ""
    if table == "StringIds":
        where = "WHERE advisor_kind_of(id) IS NOT NULL"
        db.create_function("advisor_kind_of", 1, _kinds_of_strings(db, tables).get, deterministic=True)
    made = ", ".join(f'"{column}"' for column in columns)
    db.execute(f'CREATE TABLE main."{table}" ({made})')
    db.execute(f'INSERT INTO main."{table}" SELECT {", ".join(values)} FROM original."{table}" {where}')


def _value(table: str, column: str) -> str:
    """The kept values of a column, as SQL: its numbers, and its texts if it is a column of texts."""
    kind = {("NVTX_EVENTS", "text"): "nvtx", ("TARGET_INFO_GPU", "name"): "device", ("TARGET_INFO_GPU_METRICS", "metricName"): "metric"}.get((table, column))
    kind = "enum" if table.startswith("ENUM_") and column != "id" else kind
    raw = f'CAST("{column}" AS BLOB)'
    text = f"advisor_{kind}({raw})" if kind else ""
    if table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        text = f'"{column}"' if column == "name" else f"advisor_version({raw})"
    elif table == "StringIds" and column == "value":
        text = f"advisor_string({raw}, advisor_kind_of(id))"
    kept = f"WHEN typeof(\"{column}\") = 'text' THEN {text} " if text else ""
    return f"CASE WHEN typeof(\"{column}\") IN ('integer', 'real') THEN \"{column}\" {kept}END"


def _kinds_of_strings(db: sqlite3.Connection, tables: Mapping[str, tuple[str, ...]]) -> dict[object, str]:
    """Kind of thing that each numbered string names, by its references. Strings without references are file names, threads and environment."""
    found: dict[object, str] = {}
    for table, columns in tables.items():
        for column in columns:
            kind = (
                "kernel"
                if column in _KERNEL_NAMES
                else "nvtx"
                if column == "textId"
                else ""
                if column != "nameId"
                else "range"
                if "OVERHEAD" in table
                else "call"
            )
            if kind:
                ids = db.execute(f'SELECT DISTINCT "{column}" FROM original."{table}" WHERE typeof("{column}") = \'integer\'')
                for (number,) in ids.fetchall():
                    found.setdefault(number, kind)
    return found
