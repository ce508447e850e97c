"""Nsight Systems' SQLite export. The file is asked what it holds; its version is never looked at."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from advisor import api
from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.readers.sqlite import Database, categorical, opened
from advisor.timeline import CopyKind, Device, GpuKind, MemoryKind, ReadIssue, Source, Timeline, table

RECORD = (
    "Record with: nsys profile -t cuda,nvtx -o report PROGRAM; then: nsys export --type sqlite -o report.sqlite report.nsys-rep"
)

PUSH_POP, START_END, DOMAIN = 59, 60, 75

# Used where the file lacks its ENUM tables. In these exports 0 is pageable and 1 is pinned; CUPTI's own header has
# 1 for pageable and 2 for pinned, and tools that copied it call every pinned copy pageable.
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_COPY_KINDS = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}

_MEMORY = {
    "pageable": MemoryKind.PAGEABLE, "pinned": MemoryKind.PINNED, "device": MemoryKind.DEVICE, "array": MemoryKind.ARRAY,
    "managed": MemoryKind.MANAGED, "device static": MemoryKind.DEVICE, "managed static": MemoryKind.MANAGED,
}  # fmt: skip
_COPY = {
    "host-to-device": CopyKind.HTOD, "device-to-host": CopyKind.DTOH, "device-to-device": CopyKind.DTOD,
    "host-to-host": CopyKind.HTOH, "peer-to-peer": CopyKind.PTOP, "htod": CopyKind.HTOD, "dtoh": CopyKind.DTOH,
    "dtod": CopyKind.DTOD, "ptop": CopyKind.PTOP, "htoh": CopyKind.HTOH,
}  # fmt: skip

# What torch.autograd.profiler.emit_nvtx and nsys --pytorch write: an op's name, then its sequence number and sizes.
_OP_RANGE = re.compile(r"^(?P<name>[A-Za-z_][\w.]*::[\w.:]+|\w+Backward\d*)(?P<rest>, (seq|op_id|sizes) = .*)?$")
_SEQUENCE = re.compile(r"\bseq = (\d+)")
_SIZES = re.compile(r"\bsizes = (\[.*\])")


def read(path: str) -> Timeline:
    """Read an export. Raises TraceError where it is damaged or holds no GPU work."""
    with opened(path) as db:
        texts = {int(i): str(v) for i, v in db.rows("StringIds", "id", "value") if isinstance(i, int)}
        processes = _Processes(db)
        gpu = [frame for frame in (_kernels(db, texts), _copies(db), _memsets(db), _graphs(db)) if len(frame["start"])]
        calls = db.integers("CUPTI_ACTIVITY_KIND_RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId"))
        if not gpu:
            raise TraceError(f"{path} holds no GPU work: its tables are {_shown(db)}", RECORD)
        raw = {
            "gpu_ops": [processes.gpu_ops(frame) for frame in gpu],
            "api_calls": [_api_calls(calls, texts, processes)],
            "syncs": [_syncs(db, processes)],
            "overheads": _overheads(db, texts, processes),
            "memory": [_memory(db, processes)],
            "os_calls": [_os_calls(db, texts, processes)],
            "gpu_metrics": [_gpu_metrics(db)],
            **_nvtx(db, texts, processes),
        }
        base = min(int(part["start_ns"].min()) for parts in raw.values() for part in parts if len(part["start_ns"]))
        tables = {name: _frame(name, parts, base) for name, parts in raw.items()}
        return Timeline.build(
            _source(db, path, tables),
            _devices(db, processes),
            _epoch_ns(db) + base,
            **{n: f for n, f in tables.items() if len(f)},
        )


def _shown(db: Database) -> str:
    names = [t for t in db.tables if not t.startswith(("ENUM_", "TARGET_INFO", "META_DATA", "EXPORT_META"))]
    return ", ".join(names[:12]) + (" and more" if len(names) > 12 else "") if names else "none but descriptions"


def _frame(name: str, parts: Iterable[dict[str, Any]], base: int) -> pd.DataFrame:
    """One table of the timeline; times become µs from `base`, negative durations 0."""
    frames = []
    for part in parts:
        start = np.asarray(part["start_ns"], np.int64)
        if not len(start):
            continue
        columns = {k: v for k, v in part.items() if k not in ("start_ns", "end_ns")}
        columns["start_us"] = (start - base) / 1000.0
        if "end_ns" in part:
            columns["dur_us"] = np.maximum(np.asarray(part["end_ns"], np.int64) - start, 0) / 1000.0
        frames.append(table(name, columns))
    if not frames:
        return table(name, {})
    if len(frames) == 1:
        return frames[0]
    made = {}
    for column in frames[0].columns:
        pieces = [f[column] for f in frames]
        made[column] = pd.api.types.union_categoricals(pieces) if pieces[0].dtype == "category" else np.concatenate(pieces)
    return table(name, made)


class _Processes:
    """Keeps what several processes recorded apart: correlation and stream ids are each process's own."""

    def __init__(self, db: Database) -> None:
        self._physical = {
            (int(p), int(c)): int(g)
            for g, c, p in db.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
            if isinstance(g, int) and isinstance(c, int) and isinstance(p, int)
        }
        self._order: dict[int, int] = {}
        self.devices: dict[int, int] = {}
        """Physical GPU by the id that the timeline uses."""

    def pid(self, global_id: Ints) -> Ints:
        """nsys packs process and thread into one number: 24 bits each, below the virtual machine's."""
        return (global_id >> 24) & 0xFFFFFF

    def tid(self, global_id: Ints) -> Ints:
        return global_id & 0xFFFFFF

    def _index(self, pid: Ints) -> Ints:
        used, inverse = np.unique(pid, return_inverse=True)
        return np.array([self._order.setdefault(int(p), len(self._order)) for p in used] or [0], np.int64)[inverse]

    def own(self, ids: Ints, pid: Ints, bits: int = 40) -> Ints:
        """Ids of one process made unique among all; not recorded stays so."""
        return np.where(ids >= 0, ids + (self._index(pid) << bits), ids)

    def gpu_ops(self, frame: dict[str, Any]) -> dict[str, Any]:
        """The columns that every GPU op has."""
        pid = self.pid(np.asarray(frame.pop("globalPid")))
        device = np.asarray(frame.pop("deviceId"), np.int64)
        pairs, which = np.unique(np.c_[pid, device], axis=0, return_inverse=True)
        known = [self._physical.get((p, d), d) for p, d in pairs.tolist()]
        self.devices.update((d, d) for d in known)
        physical = np.array(known or [0], np.int32)[which.reshape(-1)]
        return {
            **{k: v for k, v in frame.items() if k not in ("start", "end", "streamId", "correlationId")},
            "start_ns": frame["start"],
            "end_ns": frame["end"],
            "device": physical,
            "stream": self.own(np.asarray(frame["streamId"]), pid, 32),
            "correlation": self.own(np.asarray(frame["correlationId"]), pid),
        }


_OP = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


def _constant(text: str, n: int) -> pd.Categorical:
    return pd.Categorical.from_codes(np.zeros(n, np.int8), categories=pd.Index([text], dtype=object))


def _kernels(db: Database, texts: dict[int, str]) -> dict[str, Any]:
    extra = ("demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
    c = db.integers(
        "CUPTI_ACTIVITY_KIND_KERNEL", (*_OP, *extra, "staticSharedMemory", "dynamicSharedMemory", "graphId", "graphNodeId")
    )
    return {
        **{k: c[k] for k in _OP},
        "kind": _constant(GpuKind.KERNEL.value, len(c["start"])),
        "name": categorical(np.where(c["demangledName"] >= 0, c["demangledName"], c["shortName"]), texts),
        "grid_blocks": c["gridX"] * c["gridY"] * c["gridZ"],
        "block_threads": c["blockX"] * c["blockY"] * c["blockZ"],
        "registers": c["registersPerThread"],
        "shared_bytes": c["staticSharedMemory"].clip(0) + c["dynamicSharedMemory"].clip(0),
        "graph_id": c["graphId"],
        "graph_node_id": c["graphNodeId"],
    }


def _enum(db: Database, name: str, fallback: dict[int, str]) -> dict[int, str]:
    """What the file says its numbers mean."""
    rows = db.rows(name, "id", "label", "name")
    return {int(i): str(label or text or "") for i, label, text in rows if isinstance(i, int)} or fallback


def _copies(db: Database) -> dict[str, Any]:
    c = db.integers("CUPTI_ACTIVITY_KIND_MEMCPY", (*_OP, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"))
    copies = {i: _COPY.get(t.lower(), CopyKind.UNKNOWN).value for i, t in _enum(db, "ENUM_CUDA_MEMCPY_OPER", _COPY_KINDS).items()}
    memory = {
        i: _MEMORY.get(t.lower(), MemoryKind.UNKNOWN).value for i, t in _enum(db, "ENUM_CUDA_MEM_KIND", _MEMORY_KINDS).items()
    }
    # The name as Kineto writes it, so that one program has one name for its copies in either format.
    keys, group = np.unique(np.c_[c["copyKind"], c["srcKind"], c["dstKind"]], axis=0, return_inverse=True)
    names = {
        i: f"Memcpy {copies.get(k, '') or 'unknown'} ({memory.get(s, '').title() or 'Unknown'} -> {memory.get(d, '').title() or 'Unknown'})"
        for i, (k, s, d) in enumerate(keys.tolist())
    }
    return {
        **{k: c[k] for k in _OP},
        "kind": _constant(GpuKind.MEMCPY.value, len(c["start"])),
        "name": categorical(group.reshape(-1).astype(np.int64), names),
        "bytes": c["bytes"],
        "copy_kind": categorical(c["copyKind"], copies),
        "src_kind": categorical(c["srcKind"], memory),
        "dst_kind": categorical(c["dstKind"], memory),
        "graph_node_id": c["graphNodeId"],
    }


def _memsets(db: Database) -> dict[str, Any]:
    c = db.integers("CUPTI_ACTIVITY_KIND_MEMSET", (*_OP, "bytes", "graphNodeId"))
    n = len(c["start"])
    return {
        **{k: c[k] for k in _OP}, "kind": _constant(GpuKind.MEMSET.value, n), "name": _constant("Memset (Device)", n),
        "bytes": c["bytes"], "graph_node_id": c["graphNodeId"],
    }  # fmt: skip


def _graphs(db: Database) -> dict[str, Any]:
    c = db.integers("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (*_OP, "graphId"))
    n = len(c["start"])
    return {
        **{k: c[k] for k in _OP},
        "kind": _constant(GpuKind.GRAPH.value, n),
        "name": _constant("CUDA graph", n),
        "graph_id": c["graphId"],
    }


def _api_calls(c: dict[str, Ints], texts: dict[int, str], processes: _Processes) -> dict[str, Any]:
    pid = processes.pid(c["globalTid"])
    used = {int(i): api.plain(texts.get(int(i), "")) for i in np.unique(c["nameId"])}
    return {
        "start_ns": c["start"], "end_ns": c["end"], "name": categorical(c["nameId"], used), "pid": pid,
        "tid": processes.tid(c["globalTid"]), "correlation": processes.own(c["correlationId"], pid),
    }  # fmt: skip


def _syncs(db: Database, processes: _Processes) -> dict[str, Any]:
    c = db.integers("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*_OP, "syncType"))
    pid = processes.pid(c["globalPid"])
    kinds = {i: t.replace("synchronize", "Sync").title() for i, t in _enum(db, "ENUM_CUPTI_SYNC_TYPE", _SYNC_KINDS).items()}
    stream = np.where(c["streamId"] >= 2**32 - 1, -1, c["streamId"])
    return {
        "start_ns": c["start"], "end_ns": c["end"], "kind": categorical(c["syncType"], kinds), "device": c["deviceId"],
        "stream": processes.own(stream, pid, 32), "correlation": processes.own(c["correlationId"], pid),
    }  # fmt: skip


def _overheads(db: Database, texts: dict[int, str], processes: _Processes) -> list[dict[str, Any]]:
    found = []
    for name in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        c = db.integers(name, ("start", "end", "globalTid", "nameId"))
        named = categorical(c["nameId"], texts) if "nameId" in db.columns(name) else _constant(name, len(c["start"]))
        found.append({
            "start_ns": c["start"], "end_ns": c["end"], "name": named, "pid": processes.pid(c["globalTid"]),
            "tid": processes.tid(c["globalTid"]),
        })  # fmt: skip
    return found


def _memory(db: Database, processes: _Processes) -> dict[str, Any]:
    c = db.integers("CUDA_GPU_MEMORY_USAGE_EVENTS", ("start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"))
    operations = {
        i: t.lower() for i, t in _enum(db, "ENUM_CUDA_DEV_MEM_EVENT_OPER", {0: "allocation", 1: "deallocation"}).items()
    }
    frees = [i for i, text in operations.items() if "dealloc" in text or "free" in text]
    size = np.where(np.isin(c["memoryOperationType"], frees), -c["bytes"], c["bytes"])
    return {
        "start_ns": c["start"], "pid": processes.pid(c["globalPid"]), "tid": np.full(len(size), -1), "address": c["address"],
        "bytes": size, "device": c["deviceId"],
    }  # fmt: skip


def _os_calls(db: Database, texts: dict[int, str], processes: _Processes) -> dict[str, Any]:
    c = db.integers("OSRT_API", ("start", "end", "globalTid", "nameId"))
    tid, pid = processes.tid(c["globalTid"]), processes.pid(c["globalTid"])
    return {"start_ns": c["start"], "end_ns": c["end"], "name": categorical(c["nameId"], texts), "pid": pid, "tid": tid}


def _gpu_metrics(db: Database) -> dict[str, Any]:
    """Samples, without those before the session's clock began; the low byte of a type is the GPU."""
    kinds = [
        (int(t), int(m), str(name))
        for t, m, name in db.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
        if isinstance(t, int) and isinstance(m, int)
    ]
    c = db.integers("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"), "timestamp >= 0" if "GPU_METRICS" in db else "")
    names = {m: name for _, m, name in kinds}
    return {
        "start_ns": c["timestamp"], "device": c["typeId"] & 0xFF, "name": categorical(c["metricId"], names), "value": c["value"],
    }  # fmt: skip


def _nvtx(db: Database, texts: dict[int, str], processes: _Processes) -> dict[str, list[dict[str, Any]]]:
    """Ranges that PyTorch opened for its ops become ops; the others are annotations."""
    where = f"eventType IN ({PUSH_POP}, {START_END}) AND end IS NOT NULL"
    have = db.columns("NVTX_EVENTS")
    if not {"start", "end", "eventType", "globalTid"} <= set(have):
        return {}
    c = db.integers("NVTX_EVENTS", ("start", "end", "globalTid", "textId"), where)
    direct = [str(t) if t is not None else "" for (t,) in db.rows("NVTX_EVENTS", "text", where=where)]
    names = np.array([d or texts.get(int(i), "") for d, i in zip(direct, c["textId"], strict=True)], object)
    distinct, code = np.unique(names.astype(str), return_inverse=True)
    ops = [_OP_RANGE.match(name) for name in distinct]
    is_op = np.array([bool(m) for m in ops], bool)[code] if len(code) else np.empty(0, bool)

    def common(rows: np.ndarray) -> dict[str, Any]:
        return {
            "start_ns": c["start"][rows], "end_ns": c["end"][rows], "pid": processes.pid(c["globalTid"][rows]),
            "tid": processes.tid(c["globalTid"][rows]),
        }  # fmt: skip

    def by_name(values: list[str]) -> pd.Categorical:
        return categorical(code[is_op].astype(np.int64), dict(enumerate(values)))

    sequence = np.array([int(s[1]) if (s := _SEQUENCE.search(name)) else -1 for name in distinct] or [0], np.int64)
    return {
        "annotations": [{**common(~is_op), "name": categorical(code[~is_op].astype(np.int64), dict(enumerate(distinct)))}],
        "cpu_ops": [{
            **common(is_op), "name": by_name([m["name"] if m else "" for m in ops]), "sequence": sequence[code[is_op]],
            "dims": by_name([_dims(name) for name in distinct]),
        }],
    }  # fmt: skip


def _dims(text: str) -> str:
    """Sizes that emit_nvtx wrote, as Kineto writes them."""
    match = _SIZES.search(text)
    try:
        return json.dumps(json.loads(match[1])) if match else ""
    except ValueError:
        return ""


def _devices(db: Database, processes: _Processes) -> tuple[Device, ...]:
    wanted = ("id", "name", "smCount", "computeMajor", "computeMinor", "totalMemory", "threadsPerWarp")
    described = {row[0]: row for row in db.rows("TARGET_INFO_GPU", *wanted) if isinstance(row[0], int)}

    def number(value: object) -> int:
        return value if isinstance(value, int) else 0

    made = []
    for device in sorted(processes.devices):
        row = described.get(device)
        if row:
            _, name, sms, major, minor, memory, warp = row
            made.append(
                Device(device, str(name or ""), number(sms), (number(major), number(minor)), number(memory), number(warp))
            )
        else:
            made.append(Device(device))
    return tuple(made)


def _epoch_ns(db: Database) -> int:
    rows = db.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    return rows[0][0] if rows and isinstance(rows[0][0], int) else 0


def _source(db: Database, path: str, tables: dict[str, pd.DataFrame]) -> Source:
    described = {str(n): str(v) for t in ("META_DATA_EXPORT", "EXPORT_META_DATA") for n, v in db.rows(t, "name", "value")}
    issues = []
    if len(db.integers("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start",))["start"]):
        issues.append(ReadIssue(
            "graph-trace", "CUDA graphs were recorded whole, so their kernels are unknown; record with --cuda-graph-trace=node",
        ))  # fmt: skip
    versions: dict[str, Any] = {k: described[k] for k in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION") if k in described}
    return Source(
        path, "nsys", os.path.getsize(path), sum(len(f) for f in tables.values()),
        shapes=bool(len(tables.get("cpu_ops", ())) and (tables["cpu_ops"]["dims"] != "").any()),
        memory=len(tables["memory"]) > 0, syncs=len(tables["syncs"]) > 0, issues=tuple(issues), metadata=versions,
    )  # fmt: skip
