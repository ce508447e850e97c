"""A timeline as ROCm's tools would have recorded it: rocpd and rpd databases, rocprofv3's JSON. Schemas after ROCm's own files, without the
tables and columns that nothing here fills.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from advisor.recordings.columns import Table
from advisor.recordings.timeline import GpuKind, Timeline

ID = "_0000a3f1_17c2"
"""What rocpd puts behind the names of tables."""
PID = 4100

_ROCPD = {
    "metadata": "id INTEGER, tag TEXT, value TEXT",
    "string": "id INTEGER, guid TEXT, string TEXT",
    "info_node": "id INTEGER, hash BIGINT, machine_id TEXT, hostname TEXT",
    "info_process": "id INTEGER, nid INTEGER, pid INTEGER, command TEXT, environment JSONB",
    "info_agent": "id INTEGER, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT, extdata JSONB",
    "info_kernel_symbol": "id INTEGER, nid INTEGER, pid INTEGER, kernel_name TEXT, display_name TEXT",
    "event": "id INTEGER, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB",
    "region": "id INTEGER, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": "id INTEGER, nid INTEGER, pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER, queue_id INTEGER, stream_id INTEGER, "
    "start BIGINT, end BIGINT, group_segment_size INTEGER, workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER, "
    "grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, event_id INTEGER",
    "memory_copy": "id INTEGER, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, dst_agent_id INTEGER, "
    "src_agent_id INTEGER, size INTEGER, queue_id INTEGER, stream_id INTEGER, event_id INTEGER",
}
_RPD = {
    "rocpd_metadata": "id INTEGER, tag TEXT, value TEXT",
    "rocpd_string": "id INTEGER, string TEXT",
    "rocpd_ustring": "id INTEGER, string TEXT",
    "rocpd_api": "id INTEGER, pid INTEGER, tid INTEGER, start INTEGER, end INTEGER, apiName_id INTEGER, category_id INTEGER, args_id INTEGER",
    "rocpd_op": "id INTEGER, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER, start INTEGER, end INTEGER, description_id INTEGER, opType_id INTEGER",
    "rocpd_api_ops": "id INTEGER, api_id INTEGER, op_id INTEGER",
    "rocpd_kernelapi": "api_ptr_id INTEGER, stream TEXT, gridX INTEGER, gridY INTEGER, gridZ INTEGER, workgroupX INTEGER, workgroupY INTEGER, "
    "workgroupZ INTEGER, groupSegmentSize INTEGER",
    "rocpd_copyapi": "api_ptr_id INTEGER, stream TEXT, size INTEGER, kind INTEGER",
}
_DIRECTION = {"HtoD": ("HOST", "DEVICE"), "DtoH": ("DEVICE", "HOST"), "DtoD": ("DEVICE", "DEVICE"), "HtoH": ("HOST", "HOST")}
CPU, GPU = 1, 5
"""Agents: of a node's, the host and the GPU that is its first."""
_KINDS = ("NONE", "HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "MEMORY_COPY", "KERNEL_DISPATCH")


class _Numbers(dict[str, int]):
    def __missing__(self, text: str) -> int:
        self[text] = number = len(self) + 1
        return number


def hip(name: str) -> str:
    """CUDA's call under HIP's name."""
    return "hip" + name.removeprefix("cuda").removeprefix("cu")


def rows(timeline: Timeline) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Kernels, copies, calls and ranges, times in whole ns."""
    base = timeline.base_ns

    def of(rows: Table) -> list[Any]:
        start = np.rint(rows["start_us"] * 1000).astype("int64") + base
        whole = rows.with_columns(start=start, end=start + np.rint(rows["dur_us"] * 1000).astype("int64"))
        return [SimpleNamespace(**dict(zip(whole, row, strict=True))) for row in zip(*(whole[name].tolist() for name in whole), strict=True)]

    ops = timeline.gpu_ops
    kernels = ops[ops["kind"].isin((GpuKind.KERNEL.value, GpuKind.MEMSET.value))]
    return of(kernels), of(ops[ops["kind"] == GpuKind.MEMCPY.value]), of(timeline.api_calls), of(timeline.annotations)


def _fill(path: Path, schema: dict[str, str], tables: dict[str, list[tuple[Any, ...]]]) -> None:
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size = 1024")
    for name, columns in schema.items():
        db.execute(f'CREATE TABLE "{name}" ({columns})')
        found = tables.get(name, [])
        if found:
            db.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(found[0]))})', found)
    db.commit()
    db.execute("VACUUM")
    db.close()


def rocpd(timeline: Timeline, path: Path, command: str = "python train.py", queues_only: bool = False) -> None:
    """The database that rocprofv3 writes. queues_only: as of a version that recorded no streams."""
    kernels, copies, calls, ranges = rows(timeline)
    texts, symbols = _Numbers(), _Numbers()
    made: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _ROCPD}

    def event(category: str, stack: int, said: str = "") -> int:
        made["event"].append((len(made["event"]) + 1, texts[category], stack, stack, 0, json.dumps({"message": said}) if said else "{}"))
        return len(made["event"])

    place = (1, PID)
    for at, row in enumerate(calls):
        made["region"].append((at + 1, *place, row.tid, row.start, row.end, texts[hip(row.name)], event("HIP_RUNTIME_API_EXT", row.correlation)))
    for at, row in enumerate(ranges):
        number = 1_000_000 + at
        made["region"].append((number, *place, row.tid, row.start, row.end, texts["roctxThreadRangeA"], event("MARKER_CORE_RANGE_API", number, row.name)))
    for at, row in enumerate(kernels):
        threads = max(row.block_threads, 1)
        stream, queue = (0, row.stream) if queues_only else (row.stream, 1)
        made["kernel_dispatch"].append((
            at + 1, *place, 0, GPU + row.device, symbols[row.name], queue, stream, row.start, row.end, max(row.shared_bytes, 0), threads, 1, 1,
            max(row.grid_blocks, 1) * threads, 1, 1, event("KERNEL_DISPATCH", row.correlation),
        ))  # fmt: skip
    for at, row in enumerate(copies):
        source, target = _DIRECTION[row.copy_kind]
        agents = [GPU + row.device if end == "DEVICE" else CPU for end in (target, source)]
        name = texts[f"MEMORY_COPY_{source}_TO_{target}"]
        made["memory_copy"].append((at + 1, *place, 0, row.start, row.end, name, *agents, row.bytes, None, row.stream, event("MEMORY_COPY", row.correlation)))
    devices = sorted({row.device for row in (*kernels, *copies)})
    about = json.dumps({"cu_count": 304, "wave_front_size": 64})
    made["info_agent"] = [(CPU, 1, PID, "CPU", 0, 0, "EPYC", "EPYC", "{}")]
    made["info_agent"] += [(GPU + d, 1, PID, "GPU", GPU + d, d, "gfx942", "AMD Instinct MI300X", about) for d in devices]
    made["info_node"], made["info_process"] = [(1, 1, "m", "host")], [(PID, 1, PID, command, "{}")]
    made["metadata"] = [(1, "schema_version", "3")]
    made["string"] = [(number, "g", text) for text, number in texts.items()]
    made["info_kernel_symbol"] = [(number, *place, f"{text}.kd", text) for text, number in symbols.items()]
    _fill(path, {f"rocpd_{name}{ID}": columns for name, columns in _ROCPD.items()}, {f"rocpd_{name}{ID}": found for name, found in made.items()})


def rpd(timeline: Timeline, path: Path) -> None:
    """The database that rocmProfileData writes."""
    kernels, copies, calls, ranges = rows(timeline)
    texts, said = _Numbers(), _Numbers()
    made: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _RPD}
    number = {row.correlation: row.correlation for row in calls}
    for row in calls:
        made["rocpd_api"].append((row.correlation, PID, row.tid, row.start, row.end, texts[hip(row.name)], texts[""], said[""]))
    for at, row in enumerate(ranges):
        made["rocpd_api"].append((10_000_000 + at, PID, row.tid, row.start, row.end, texts["UserMarker"], texts[""], said[row.name]))
    for row in (*kernels, *copies):
        kind = "KernelExecution" if row.kind != GpuKind.MEMCPY.value else "Copy{}To{}".format(*(end.title() for end in _DIRECTION[row.copy_kind]))
        op = len(made["rocpd_op"]) + 1
        name = texts[row.name if row.kind != GpuKind.MEMCPY.value else ""]
        made["rocpd_op"].append((op, row.device, 0, 0, row.start, row.end, name, texts[kind]))
        if row.correlation not in number:
            continue
        made["rocpd_api_ops"].append((op, row.correlation, op))
        if row.kind == GpuKind.MEMCPY.value:
            made["rocpd_copyapi"].append((row.correlation, hex(row.stream), row.bytes, 1))
        elif number.pop(row.correlation, None) is not None:
            made["rocpd_kernelapi"].append(
                (row.correlation, hex(row.stream), max(row.grid_blocks, 1), 1, 1, max(row.block_threads, 1), 1, 1, max(row.shared_bytes, 0))
            )
            number[row.correlation] = row.correlation
    made["rocpd_string"] = [(code, text) for text, code in texts.items()]
    made["rocpd_ustring"] = [(code, text) for text, code in said.items()]
    made["rocpd_metadata"] = [(1, "schema_version", "3")]
    seen: set[int] = set()
    made["rocpd_kernelapi"] = [row for row in made["rocpd_kernelapi"] if not (row[0] in seen or seen.add(row[0]))]
    _fill(path, _RPD, made)


def sdk_json(timeline: Timeline, command: str = "train.py") -> dict[str, Any]:
    """What rocprofv3 writes as JSON."""
    kernels, copies, calls, ranges = rows(timeline)
    operations = _Numbers()
    symbols = _Numbers()

    def handle(number: int) -> dict[str, int]:
        return {"handle": number}

    def record(kind: str, operation: int, row: Any, correlation: int) -> dict[str, Any]:
        return {
            "size": 184, "kind": _KINDS.index(kind), "operation": operation, "thread_id": int(getattr(row, "tid", PID)),
            "correlation_id": {"internal": int(correlation), "external": 0}, "start_timestamp": int(row.start), "end_timestamp": int(row.end),
        }  # fmt: skip

    def dispatch(row: Any) -> dict[str, Any]:
        threads = max(int(row.block_threads), 1)
        return {
            "agent_id": handle(900 + int(row.device)), "queue_id": handle(1), "kernel_id": symbols[row.name], "group_segment_size": max(int(row.shared_bytes), 0),
            "workgroup_size": {"x": threads, "y": 1, "z": 1}, "grid_size": {"x": max(int(row.grid_blocks), 1) * threads, "y": 1, "z": 1},
        }  # fmt: skip

    copied = ["MEMORY_COPY_NONE", *(f"MEMORY_COPY_{source}_TO_{target}" for source, target in _DIRECTION.values())]

    def copy(row: Any) -> dict[str, Any]:
        source, target = _DIRECTION[row.copy_kind]
        at = copied.index(f"MEMORY_COPY_{source}_TO_{target}")
        ends = [handle(900 + int(row.device) if end == "DEVICE" else 800) for end in (target, source)]
        more = {"stream_id": handle(int(row.stream)), "dst_agent_id": ends[0], "src_agent_id": ends[1], "bytes": int(row.bytes)}
        return {**record("MEMORY_COPY", at, row, row.correlation), **more}

    records = {
        "kernel_dispatch": [
            {**record("KERNEL_DISPATCH", 2, row, row.correlation), "dispatch_info": dispatch(row), "stream_id": handle(int(row.stream))} for row in kernels
        ],
        "hip_api": [record("HIP_RUNTIME_API", operations[hip(row.name)] - 1, row, row.correlation) for row in calls],
        "hsa_api": [],
        "marker_api": [record("MARKER_CORE_RANGE_API", 0, row, 5_000_000 + at) for at, row in enumerate(ranges)],
        "memory_copy": [copy(row) for row in copies],
    }
    devices = sorted({int(row.device) for row in (*kernels, *copies)})
    agents = [{"id": handle(800), "type": 1, "name": "EPYC", "product_name": "EPYC"}]
    agents += [
        {
            "id": handle(900 + d),
            "type": 2,
            "name": "gfx942",
            "product_name": "AMD Instinct MI300X",
            "cu_count": 304,
            "wave_front_size": 64,
            "logical_node_type_id": d,
        }
        for d in devices
    ]
    strings = {
        "buffer_records": [
            {
                "kind": kind,
                "operations": {"HIP_RUNTIME_API": list(operations), "MARKER_CORE_RANGE_API": ["roctxThreadRangeA"], "MEMORY_COPY": copied}.get(kind, []),
            }
            for kind in _KINDS
        ],
        "marker_api": [{"key": 5_000_000 + at, "value": row.name} for at, row in enumerate(ranges)],
    }
    symbol = [{"kernel_id": number, "kernel_name": f"{name}.kd", "formatted_kernel_name": name} for name, number in symbols.items()]
    node = {"machine_id": "m", "hostname": "host"}
    process = {
        "metadata": {"node": node, "pid": PID, "command": [command], "config": {"output_path": "/home/user/out"}}, "agents": agents, "strings": strings,
        "kernel_symbols": symbol, "buffer_records": records,
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [process]}
