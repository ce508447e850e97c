"""Nsight Systems' SQLite export. The content of the file is used, never its version.

The tables: docs.nvidia.com/nsight-systems/UserGuide, "SQLite Schema Reference"."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.knowledge import cuda_api, formats
from advisor.knowledge.cuda_errors import NOT_READY, cuda_error
from advisor.recordings.columns import Table, row_by_row
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Device, GpuKind, LeftOut, ReadIssue, Source, Timeline
from advisor.report.numbers import counted
from advisor.sources.frames import Timed, frame
from advisor.sources.limits import MOST_LEFT_OUT
from advisor.sources.nsys import gpu, ranges
from advisor.sources.nsys.process import Processes
from advisor.sources.nsys.tables import Database, categorical, constant
from advisor.sources.nsys.tables import opened as opened_database
from advisor.sources.opened import Opened
from advisor.sources.opened import Source as Source_
from advisor.sources.ranks import of_busiest_process, recording_of
from advisor.sources.sniff import refused
from advisor.sources.time_issues import time_issues

RECORD = "Record with: nsys profile -t cuda,nvtx -o report PROGRAM; then: nsys export --type sqlite -o report.sqlite report.nsys-rep"

_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")


def record(opened: Opened) -> Recording:
    """The recording of an export."""
    opened.check_seekable("an nsys export")
    opened.check_size()
    if of_rocm(opened.path):
        return cast("Source_", importlib.import_module("advisor.sources.rocprof")).record(opened)
    timeline = read(opened.path)
    made = recording_of(timeline, opened.path)
    return made if made.kind == "job" else Recording("trace", opened.path, (of_busiest_process(timeline),))


def of_rocm(path: str) -> bool:
    """Whether it is a database of ROCm, which its first bytes may not show. Raises TraceError if it is damaged."""
    with opened_database(path) as db:
        known = formats.of_tables(db.tables)
    return known is not None and known.read == "yes"


def read(path: str) -> Timeline:
    """Read an export. Raises TraceError if it is damaged or holds no GPU work."""
    with opened_database(path) as db:
        texts = db.texts("StringIds", "id", "value")
        processes = Processes(db)
        work = gpu.read(db, texts, processes)
        if not work:
            raise _no_gpu_work(db, path)
        timed = Timed()
        parts = {
            "gpu_ops": work,
            "api_calls": [_api_calls(db, texts, processes)],
            "syncs": [_syncs(db, processes)],
            "overheads": [_named(db, t, texts, processes) for t in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")],
            "memory": [_memory(db, processes)],
            "os_calls": [_named(db, "OSRT_API", texts, processes)],
            "gpu_metrics": [_gpu_metrics(db)],
            **ranges.read(db, texts, processes),
        }
        kept = {name: [timed.valid(part) for part in of_table] for name, of_table in parts.items()}
        del parts, work
        if not any(len(part["start_ns"]) for part in kept["gpu_ops"]):
            raise TraceError(f"{path} holds no GPU work with a valid time", "Export the report again.")
        base = min(int(part["start_ns"].min()) for of_table in kept.values() for part in of_table if len(part["start_ns"]))
        tables = {name: frame(name, kept.pop(name), base) for name in list(kept)}
        issues = (*time_issues(timed.bad_times, timed.bad_durations), *_unmerged(db, path), *_graph_issues(tables["gpu_ops"]), *ranges.issues(db))
        source, devices = _source(db, path, tables, issues), _devices(db, tables["gpu_ops"])
        return Timeline.build(source, devices, _epoch_ns(db) + base, **{n: f for n, f in tables.items() if len(f)})


_READ = frozenset(
    (gpu.KERNELS, gpu.COPIES, gpu.MEMSETS, gpu.GRAPHS, "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "PROFILER_OVERHEAD",
     "CUPTI_ACTIVITY_KIND_OVERHEAD", "OSRT_API", "NVTX_EVENTS")
)  # fmt: skip
"""Tables with rows that have a start and an end."""


def _left_out(db: Database) -> tuple[LeftOut, ...]:
    """Tables of what lasts some time that are not read, as those of cuBLAS, MPI or Vulkan; the longest first."""
    spans = {name: db.spans(name) for name in db.tables if name not in _READ}
    found = [LeftOut(f"rows of the table {name}", count, ns / 1000, of_host=True) for name, (count, ns) in spans.items() if count]
    return tuple(sorted(found, key=lambda left: -left.us)[:MOST_LEFT_OUT])


def _no_gpu_work(db: Database, path: str) -> TraceError:
    """Describe a file with nothing to analyze."""
    unmerged = "".join(f"; {issue.detail}" for issue in _unmerged(db, path))
    if known := formats.of_tables(db.tables):
        return refused(known, path)
    if not any(t == "StringIds" or t.startswith(("CUPTI_", "TARGET_INFO", "META_DATA", "EXPORT_META")) for t in db.tables):
        return TraceError(f"{path} is a SQLite file but no nsys export, and holds no GPU work{unmerged}", RECORD)
    why = "its kernel table is empty" if gpu.KERNELS in db.tables else f"it has no kernel table ({gpu.KERNELS})"
    descriptions = ("ENUM_", "TARGET_INFO", "META_DATA", "EXPORT_META", "StringIds", "ANALYSIS_", "Process", "PROCESS", "Thread")
    returned = _returned_by_launches(db)
    launched, failed = len(returned), returned[returned > 0]
    if len(failed) > launched / 2:
        first = cuda_error(int(np.bincount(failed).argmax()))
        many = f"all {launched:,} launches" if len(failed) == launched else f"{len(failed):,} of {counted(launched, 'launch', 'launches')}"
        most = "" if (failed == first.code).all() else "most "
        return TraceError(f"{path} holds no GPU work: {many} of the program failed, {most}with {first}, so nothing ran", first.fix)
    if launched:
        told = f"the program launched {launched:,} kernels, but the GPU's side was not recorded ({why}{unmerged})"
        return TraceError(f"{path} holds no GPU work: {told}", _UNDER_WSL if _under_wsl(db) else f"{_ALLOWED} {RECORD}")
    others = [t for t in db.tables if not t.startswith(descriptions)]
    shown = (", ".join(others[:8]) + (" and more" if len(others) > 8 else "")) or "nothing but descriptions"
    return TraceError(f"{path} holds no GPU work: {why}; it contains {shown}{unmerged}", RECORD)


_ALLOWED = "Another profiler may have held the device, or the driver does not let this user record it: see the warnings that nsys printed."
_UNDER_WSL = (
    "Under WSL the driver of Windows hands the GPU's events out. Update it and nsys, and allow all users to access GPU performance counters "
    "(NVIDIA Control Panel, Desktop, Enable Developer Settings). If they are still missing, record on Linux itself, or with nsys for Windows."
)


def _returned_by_launches(db: Database) -> Ints:
    """The result of each call that launched a kernel or a graph; -1 if that was not recorded."""
    texts = db.texts("StringIds", "id", "value")
    launching = (cuda_api.ApiRole.LAUNCH, cuda_api.ApiRole.GRAPH_LAUNCH)
    numbers = [number for number, text in texts.items() if cuda_api.role(cuda_api.plain(text)) in launching]
    calls = db.integers("CUPTI_ACTIVITY_KIND_RUNTIME", ["nameId", "returnValue"])
    return calls["returnValue"][np.isin(calls["nameId"], numbers)]


def _under_wsl(db: Database) -> bool:
    """Whether the system that the export describes is Linux under Windows."""
    return any("microsoft" in value.lower() and "wsl" in value.lower() for value in _texts(db.rows("TARGET_INFO_SYSTEM_ENV", "value")))


def _texts(rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    return (value for (value,) in rows if isinstance(value, str))


def _api_calls(db: Database, texts: dict[int, str], processes: Processes) -> dict[str, Any]:
    columns = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
    c = db.integers("CUPTI_ACTIVITY_KIND_RUNTIME", columns, needs=gpu.TIMES)
    pid = processes.pid(c["globalTid"])
    c, pid = _one_row_a_call(c, pid)
    used = {i: cuda_api.plain(texts.get(i, "")) for i in set(c["nameId"].tolist())}
    return {
        "start_ns": c["start"], "end_ns": c["end"], "name": categorical(c["nameId"], used), "pid": pid,
        "tid": processes.tid(c["globalTid"]), "correlation": processes.correlation(c["correlationId"], pid),
        "error": row_by_row(lambda returned: np.where(returned == NOT_READY, 0, returned), c["returnValue"]),
    }  # fmt: skip


def _one_row_a_call(c: dict[str, Ints], pid: Ints) -> tuple[dict[str, Ints], Ints]:
    """Rows of a thread with the same correlation id are a single call: the first, from the first start to the last end. Examples are
    `cudaLaunchKernel` and the `cudaLaunchKernel_v7000` or `cuLaunchKernel` inside it. As two calls, the second would lack its kernel."""
    order = np.lexsort((c["start"], c["correlationId"], c["globalTid"]))
    thread, number = c["globalTid"][order], c["correlationId"][order]
    first = np.r_[True, (thread[1:] != thread[:-1]) | (number[1:] != number[:-1]) | (number[1:] <= 0)]
    if first.all():
        return c, pid
    ends = np.maximum.reduceat(c["end"][order], np.flatnonzero(first))
    kept = order[first]
    c = {name: column[kept] for name, column in c.items()}
    return {**c, "end": ends}, pid[kept]


def _syncs(db: Database, processes: Processes) -> dict[str, Any]:
    c = db.integers("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*gpu.PLACE, "syncType"), needs=gpu.TIMES)
    enum = gpu.enum(db, "ENUM_CUPTI_SYNC_TYPE", _SYNC_KINDS)
    kinds = {i: text.replace("synchronize", "Sync").title() for i, text in enum.items()}
    return {**gpu.placed(c, processes), "kind": categorical(c["syncType"], kinds)}


def _named(db: Database, source: str, texts: dict[int, str], processes: Processes) -> dict[str, Any]:
    """Spans of host threads with only a name. Without names, the table's own name describes them."""
    c = db.integers(source, ("start", "end", "globalTid", "nameId"), needs=gpu.TIMES)
    named = "nameId" in db.columns(source)
    return {
        "start_ns": c["start"], "end_ns": c["end"], "pid": processes.pid(c["globalTid"]), "tid": processes.tid(c["globalTid"]),
        "name": categorical(c["nameId"], texts) if named else constant(source, len(c["start"])),
    }  # fmt: skip


def _memory(db: Database, processes: Processes) -> dict[str, Any]:
    columns = ("start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType", "memKind")
    c = db.integers("CUDA_GPU_MEMORY_USAGE_EVENTS", columns, needs=("start",))
    operations = gpu.enum(db, "ENUM_CUDA_DEV_MEM_EVENT_OPER", {0: "Allocation", 1: "Deallocation"})
    frees = [i for i, text in operations.items() if "dealloc" in text.lower()]
    kinds = gpu.enum(db, "ENUM_CUDA_MEM_KIND", {0: "Pageable", 1: "Pinned"})
    host = [i for i, text in kinds.items() if text.lower() in ("pageable", "pinned")]
    pid, size = processes.pid(c["globalPid"]), np.maximum(c["bytes"], 0)
    return {
        "start_ns": c["start"], "pid": pid, "tid": np.full(len(pid), -1), "address": c["address"],
        "bytes": np.where(np.isin(c["memoryOperationType"], frees), -size, size),
        "device_type": np.where(np.isin(c["memKind"], host), 0, 1),  # as Kineto numbers the host and CUDA
        "device": processes.device(c["deviceId"], pid),
    }  # fmt: skip


def _gpu_metrics(db: Database) -> dict[str, Any]:
    """Samples, without those before the session's clock began; the low byte of a type is the GPU."""
    numbers = {
        (kind, metric): i
        for i, (kind, metric) in enumerate(db.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId"))
        if isinstance(kind, int) and isinstance(metric, int)
    }
    names = {i: str(name or "") for i, (name,) in enumerate(db.rows("TARGET_INFO_GPU_METRICS", "metricName"))}
    keys = ("timestamp", "typeId", "metricId")
    where = "timestamp >= 0 AND value IS NOT NULL"
    c = db.integers("GPU_METRICS", keys, where, needs=(*keys, "value"))
    value = db.floats("GPU_METRICS", ("value",), where, needs=(*keys, "value"))["value"]
    # Each pair that occurs is looked up once, however many devices and metrics there are.
    kinds, kind_of = np.unique(c["typeId"], return_inverse=True)
    metrics, metric_of = np.unique(c["metricId"], return_inverse=True)
    pairs, pair_of = np.unique(kind_of * len(metrics) + metric_of, return_inverse=True)
    number_of = [numbers.get((int(kinds[p // len(metrics)]), int(metrics[p % len(metrics)])), -1) for p in pairs.tolist()]
    code = np.array(number_of, np.int64)[pair_of]
    return {"start_ns": c["timestamp"], "device": c["typeId"] & 0xFF, "name": categorical(code, names), "value": value}


def _devices(db: Database, ops: Table) -> tuple[Device, ...]:
    """The devices that did something, as far as the export describes them."""
    wanted = ("id", "name", "smCount", "computeMajor", "computeMinor", "totalMemory", "threadsPerWarp")
    described = {row[0]: row for row in db.rows("TARGET_INFO_GPU", *wanted)}
    counted = {row[0]: row[1] for row in db.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "numMultiprocessors")}

    def number(value: object) -> int:
        return value if isinstance(value, int) else 0

    made = []
    for device in np.unique(ops["device"]).tolist():
        _, name, sms, major, minor, memory, warp = described.get(device, (device, "", 0, 0, 0, 0, 0))
        sms = number(sms) or number(counted.get(device))
        made.append(Device(device, str(name or ""), sms, (number(major), number(minor)), number(memory), number(warp)))
    return tuple(made)


def _epoch_ns(db: Database) -> int:
    rows = db.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    return rows[0][0] if rows and isinstance(rows[0][0], int) else 0


def _unmerged(db: Database, path: str) -> list[ReadIssue]:
    """What SQLite wrote next to the file and could not be read as part of it."""
    name = os.path.basename(path)
    detail = (
        f"{db.unread_bytes:,} bytes lie beside the file, in {name}-wal, and were not read: rows may be missing. Merge them with: "
        f"sqlite3 {name} 'PRAGMA wal_checkpoint(TRUNCATE)', or export again"
    )
    return [ReadIssue("complete-file", detail, cut=True)] if db.unread_bytes else []


def _graph_issues(ops: Table) -> list[ReadIssue]:
    graphs = int(np.count_nonzero(ops["kind"] == GpuKind.GRAPH.value))
    detail = f"{graphs:,} CUDA graphs were recorded whole, so their kernels are unknown; record again with --cuda-graph-trace=node"
    return [ReadIssue("graph-trace", detail)] if graphs else []


def _source(db: Database, path: str, tables: dict[str, Table], issues: tuple[ReadIssue, ...]) -> Source:
    described = {n: v for t in ("META_DATA_EXPORT", "EXPORT_META_DATA") for n, v in db.rows(t, "name", "value")}
    ops = tables.get("cpu_ops")
    return Source(
        path=path,
        format="nsys",
        bytes=os.path.getsize(path),
        events=sum(len(frame) for frame in tables.values()),
        shapes=ops is not None and any(ops["dims"].categories),
        memory=len(tables["memory"]) > 0,
        syncs=len(tables["syncs"]) > 0,
        issues=issues,
        left_out=_left_out(db),
        metadata={name: described[name] for name in _VERSIONS if isinstance(described.get(name), (str, int))},
    )
