"""GPU work from the activity tables of an nsys export: kernels, copies, memsets and whole graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.columns import row_by_row
from advisor.recordings.timeline import CopyKind, GpuKind, MemoryKind
from advisor.sources.nsys.process import Processes
from advisor.sources.nsys.tables import Database, categorical, constant

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

# Used where the file lacks its ENUM tables. In these exports 0 is pageable and 1 is pinned; CUPTI's own header has
# 1 for pageable and 2 for pinned, and tools that copied it call every pinned copy pageable.
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
_COPY_KINDS = {
    1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer", 11: "Unified Host-to-Device",
    12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip

_MEMORY = {
    "pageable": MemoryKind.PAGEABLE, "pinned": MemoryKind.PINNED, "device": MemoryKind.DEVICE, "array": MemoryKind.ARRAY,
    "managed": MemoryKind.MANAGED, "device static": MemoryKind.DEVICE, "managed static": MemoryKind.MANAGED,
}  # fmt: skip
_COPY = {
    "host-to-device": CopyKind.HTOD, "device-to-host": CopyKind.DTOH, "device-to-device": CopyKind.DTOD,
    "host-to-host": CopyKind.HTOH, "peer-to-peer": CopyKind.PTOP, "htod": CopyKind.HTOD, "dtoh": CopyKind.DTOH,
    "dtod": CopyKind.DTOD, "ptop": CopyKind.PTOP, "htoh": CopyKind.HTOH,
    # Arrays are memory of the device.
    "host-to-array": CopyKind.HTOD, "array-to-host": CopyKind.DTOH, "array-to-array": CopyKind.DTOD,
    "array-to-device": CopyKind.DTOD, "device-to-array": CopyKind.DTOD, "unified host-to-device": CopyKind.MIGRATION_HTOD,
    "unified device-to-host": CopyKind.MIGRATION_DTOH, "unified device-to-device": CopyKind.DTOD,
}  # fmt: skip


def enum(db: Database, name: str, fallback: dict[int, str]) -> dict[int, str]:
    """The file's own meaning of its numbers."""
    rows = db.rows(name, "id", "label", "name")
    return {i: str(label or text or "") for i, label, text in rows if isinstance(i, int)} or fallback


def read(db: Database, texts: dict[int, str], processes: Processes) -> list[dict[str, Any]]:
    """Parts of `gpu_ops`, those without rows left out."""
    parts = (_kernels(db, texts, processes), _copies(db, processes), _memsets(db, processes), _graphs(db, processes))
    return [part for part in parts if len(part["start_ns"])]


def placed(c: dict[str, Ints], processes: Processes) -> dict[str, Any]:
    """Place and time: the common columns of all GPU work."""
    pid = processes.pid(c["globalPid"])
    device = processes.device(c["deviceId"], pid)
    return {
        "start_ns": c["start"],
        "end_ns": c["end"],
        "device": device,
        "stream": processes.stream(c["streamId"], device, pid),
        "correlation": processes.correlation(c["correlationId"], pid),
    }


TIMES = ("start", "end")
PLACE = (*TIMES, "deviceId", "streamId", "correlationId", "globalPid")


def _kernels(db: Database, texts: dict[int, str], processes: Processes) -> dict[str, Any]:
    names = ("demangledName", "shortName", "mangledName")
    shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
    memory = ("staticSharedMemory", "dynamicSharedMemory")
    c = db.integers(KERNELS, (*PLACE, *names, *shape, *memory, "graphId", "graphNodeId"), needs=TIMES)
    name = _first_recorded(*(c.pop(each) for each in names))
    return {
        **placed(c, processes),
        "kind": constant(GpuKind.KERNEL.value, len(c["start"])),
        "name": categorical(name, texts),
        "grid_blocks": row_by_row(_volume, c.pop("gridX"), c.pop("gridY"), c.pop("gridZ")),
        "block_threads": row_by_row(_volume, c.pop("blockX"), c.pop("blockY"), c.pop("blockZ")),
        "registers": c["registersPerThread"],
        "shared_bytes": row_by_row(lambda static, dynamic: static.clip(0) + dynamic.clip(0), *(c.pop(each) for each in memory)),
        "graph_id": c["graphId"],
        "graph_node_id": c["graphNodeId"],
    }


def _first_recorded(*columns: Ints) -> Ints:
    """The first of some numbers in each row that is recorded; the last if none is."""
    *others, made = columns
    for column in reversed(others):
        made = column if (column >= 0).all() else np.where(column >= 0, column, made)
    return made


def _volume(x: Ints, y: Ints, z: Ints) -> Ints:
    """Blocks of a grid or threads of a block, -1 if they were not recorded."""
    return np.where(x > 0, x * y.clip(1) * z.clip(1), -1)


def _copies(db: Database, processes: Processes) -> dict[str, Any]:
    c = db.integers(COPIES, (*PLACE, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"), needs=TIMES)
    copies = {i: _COPY.get(t.lower(), CopyKind.UNKNOWN).value for i, t in enum(db, "ENUM_CUDA_MEMCPY_OPER", _COPY_KINDS).items()}
    memory = {i: _MEMORY.get(t.lower(), MemoryKind.UNKNOWN).value for i, t in enum(db, "ENUM_CUDA_MEM_KIND", _MEMORY_KINDS).items()}
    # The name as Kineto writes it, so that one program has one name for its copies in either format.
    code = ((c["copyKind"] & 0xFF) << 16) | ((c["srcKind"] & 0xFF) << 8) | (c["dstKind"] & 0xFF)
    named = {int(k): f"Memcpy {copies.get(k >> 16) or 'unknown'} ({_titled(memory, k >> 8 & 0xFF)} -> {_titled(memory, k & 0xFF)})" for k in set(code.tolist())}
    return {
        **placed(c, processes),
        "kind": constant(GpuKind.MEMCPY.value, len(c["start"])),
        "name": categorical(code, named),
        "bytes": c["bytes"],
        "copy_kind": categorical(c["copyKind"], copies),
        "src_kind": categorical(c["srcKind"], memory),
        "dst_kind": categorical(c["dstKind"], memory),
        "graph_node_id": c["graphNodeId"],
    }


def _titled(memory: dict[int, str], kind: int) -> str:
    return memory.get(kind, "").title() or "Unknown"


def _memsets(db: Database, processes: Processes) -> dict[str, Any]:
    c = db.integers(MEMSETS, (*PLACE, "bytes", "graphNodeId"), needs=TIMES)
    return {
        **placed(c, processes),
        "kind": constant(GpuKind.MEMSET.value, len(c["start"])),
        "name": constant("Memset (Device)", len(c["start"])),
        "bytes": c["bytes"],
        "graph_node_id": c["graphNodeId"],
    }


def _graphs(db: Database, processes: Processes) -> dict[str, Any]:
    c = db.integers(GRAPHS, (*PLACE, "graphId"), needs=TIMES)
    return {
        **placed(c, processes),
        "kind": constant(GpuKind.GRAPH.value, len(c["start"])),
        "name": constant("CUDA graph", len(c["start"])),
        "graph_id": c["graphId"],
    }
