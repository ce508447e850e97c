"""A self-consistent nsys export: calls, kernels, nested ranges, a copy and the wait for it at the end of each step."""

from __future__ import annotations

import sqlite3
from pathlib import Path

STEP = 200
"""Kernels in a step."""

_GLOBAL_PID = 1 << 48 | 77 << 24
_GLOBAL_TID = _GLOBAL_PID | 78
_NAMES = 64
_LAUNCH, _COPY, _SYNC, _LAYER = 100, 101, 102, 103

SCHEMA = """
    CREATE TABLE StringIds (id INTEGER, value TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
        correlationId INTEGER, nameId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER,
        gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
        streamId INTEGER, correlationId INTEGER, globalPid INTEGER, syncType INTEGER);
    CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
"""
TABLES = tuple(part.split()[0] for part in SCHEMA.split("CREATE TABLE ")[2:])

Rows = dict[str, list[tuple[object, ...]]]


def generate(path: Path, kernels: int) -> None:
    """Write an export of at least that many kernels, in whole steps."""
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    names = [(i, f"void kernel_{i}<float>(float*, int)") for i in range(_NAMES)]
    names += [(_LAUNCH, "cudaLaunchKernel_v7000"), (_COPY, "cudaMemcpyAsync_v3020"), (_SYNC, "cudaStreamSynchronize_v3020")]
    db.executemany("INSERT INTO StringIds VALUES (?,?)", [*names, (_LAYER, "layer")])
    clock = 0
    for step in range(-(-kernels // STEP)):
        rows: Rows = {name: [] for name in TABLES}
        clock = _step(rows, step, clock)
        for table, found in rows.items():
            db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(found[0]))})", found)
    db.commit()
    db.close()


def _step(rows: Rows, step: int, clock: int) -> int:
    """Add the rows of one step that begins at `clock`; the time at which the next one can begin."""
    calls, begin, free = rows["CUPTI_ACTIVITY_KIND_RUNTIME"], clock, clock
    correlation = step * (STEP + 2)
    for i in range(STEP):
        start = clock + 2_000
        calls.append((start, start + 4_000, 0, _GLOBAL_TID, correlation, _LAUNCH))
        gpu = max(free + 800, start + 6_000)
        free = gpu + 3_000 + 40 * (i % 50)
        name = i % _NAMES
        rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            (gpu, free, 0, 1, 7, correlation, _GLOBAL_PID, name, name, 128, 1, 1, 256, 1, 1)
        )  # fmt: skip
        if i % 10 == 9:
            rows["NVTX_EVENTS"].append((start - 9 * 10_000 - 500, start + 5_000, 59, None, _GLOBAL_TID, _LAYER))
        clock, correlation = clock + 10_000, correlation + 1
    gpu = max(free + 800, clock + 6_000)
    calls.append((clock, clock + 4_000, 0, _GLOBAL_TID, correlation, _COPY))
    rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append((gpu, gpu + 1_300, 0, 1, 7, correlation, _GLOBAL_PID, 4, 2, 2, 0))
    sync, end = clock + 5_000, gpu + 3_000
    calls.append((sync, end, 0, _GLOBAL_TID, correlation + 1, _SYNC))
    rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append((sync + 100, end - 100, 0, 1, 7, correlation + 1, _GLOBAL_PID, 3))
    rows["NVTX_EVENTS"].append((begin, end + 1_000, 59, f"step {step}", _GLOBAL_TID, None))
    return end + 2_000
