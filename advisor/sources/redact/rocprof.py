"""Recordings of ROCm's tools, written as rocprofv3's JSON: kernels, copies, calls and ranges, with the data that the reader uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from advisor.recordings.columns import Table
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.sources.nsys.ranges import Numbers
from advisor.sources.redact.names import Names, device

_KINDS = ("NONE", "HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "MEMORY_COPY", "KERNEL_DISPATCH")
_ENDS = {"H": "HOST", "D": "DEVICE", "P": "PEER"}
_HOST, _GPUS = 1, 2
"""Agents: the host, and the first of the GPUs."""
_MARKERS = 1 << 40
"""Correlation ids above all ids of a recording: each range has its own, which leads to its text."""


def redacted(timeline: Timeline, names: Names) -> Iterator[bytes]:
    """The file, as text of JSON."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    operations, symbols, copied = Numbers(), Numbers(), Numbers()
    kernels, copies = ops[ops["kind"] != GpuKind.MEMCPY.value], ops[ops["kind"] == GpuKind.MEMCPY.value]
    ranges = _ranges(timeline, names)
    records = {
        "kernel_dispatch": [_kernel(row, at, symbols, names) for row, at in _rows(kernels, timeline)],
        "hip_api": [_record("HIP_RUNTIME_API", operations[names.call(row.name)], row.tid, row.correlation, at) for row, at in _rows(calls, timeline)],
        "marker_api": [_record("MARKER_CORE_RANGE_API", 0, tid, _MARKERS + i, at) for i, (_, tid, at) in enumerate(ranges)],
        "memory_copy": [_copy(row, at, copied) for row, at in _rows(copies, timeline)],
    }
    operation = {"HIP_RUNTIME_API": list(operations), "MARKER_CORE_RANGE_API": ["roctxThreadRangeA"], "MEMORY_COPY": list(copied)}
    strings = {
        "buffer_records": [{"kind": kind, "operations": operation.get(kind, [])} for kind in _KINDS],
        "marker_api": [{"key": _MARKERS + i, "value": text} for i, (text, _, _) in enumerate(ranges)],
    }
    symbol = [{"kernel_id": number, "formatted_kernel_name": name} for name, number in symbols.items()]
    pid = int(calls["pid"][0]) if len(calls) else 1
    process = {"metadata": {"pid": pid}, "agents": _agents(timeline), "strings": strings, "kernel_symbols": symbol, "buffer_records": records}
    yield json.dumps({"rocprofiler-sdk-tool": [process]}, separators=(",", ":")).encode()


_Span = tuple[int, int]


def _rows(frame: Table, timeline: Timeline) -> Iterator[tuple[Any, _Span]]:
    """Each row, and its start and end in ns."""
    for values in frame.rows():
        row = SimpleNamespace(**dict(zip(frame, values, strict=True)))
        start = timeline.base_ns + round(row.start_us * 1000)
        yield row, (start, start + round(row.dur_us * 1000))


def _record(kind: str, operation: int, thread: int, correlation: int, at: _Span) -> dict[str, Any]:
    return {
        "kind": _KINDS.index(kind), "operation": operation, "thread_id": int(thread), "correlation_id": {"internal": int(correlation)},
        "start_timestamp": at[0], "end_timestamp": at[1],
    }  # fmt: skip


def _kernel(row: Any, at: _Span, symbols: Numbers, names: Names) -> dict[str, Any]:
    threads, of_grid = int(row.block_threads), int(row.grid_blocks)
    sizes = {"workgroup_size": {"x": threads, "y": 1, "z": 1}, "grid_size": {"x": of_grid * threads, "y": 1, "z": 1}} if threads > 0 and of_grid > 0 else {}
    dispatch = {"agent_id": {"handle": _GPUS + int(row.device)}, "kernel_id": symbols[names.kernel(row.name)], "group_segment_size": int(row.shared_bytes)}
    return {
        **_record("KERNEL_DISPATCH", 0, -1, row.correlation, at),
        "dispatch_info": {**dispatch, "queue_id": {"handle": 1}, **sizes},
        "stream_id": {"handle": int(row.stream)},
    }


def _copy(row: Any, at: _Span, copied: Numbers) -> dict[str, Any]:
    source, target = (_ENDS.get(end, "") for end in (row.copy_kind[:1], row.copy_kind[-1:]))
    name = f"MEMORY_COPY_{source}_TO_{target}" if source and target else "MEMORY_COPY_NONE"
    gpu = {"handle": _GPUS + int(row.device)}
    return {
        **_record("MEMORY_COPY", copied[name], -1, row.correlation, at),
        "stream_id": {"handle": int(row.stream)}, "dst_agent_id": gpu, "src_agent_id": {"handle": _HOST}, "bytes": int(row.bytes),
    }  # fmt: skip


def _ranges(timeline: Timeline, names: Names) -> list[tuple[str, int, _Span]]:
    """Text, thread and time of each range; ops as `emit_nvtx` wrote them."""
    made = [(names.range(row.name).removeprefix("nccl:"), row.tid, at) for row, at in _rows(timeline.annotations, timeline)]
    for row, at in _rows(timeline.cpu_ops, timeline):
        overload = f".{names.op(row.overload)}" if row.overload else ""
        sizes = f", sizes = {row.dims}" if row.dims else ""
        made.append(
            (f"{names.op(row.name)}{overload}, seq = {row.sequence}{sizes}" if row.sequence >= 0 else f"{names.op(row.name)}{overload}{sizes}", row.tid, at)
        )
    return made


def _agents(timeline: Timeline) -> list[dict[str, Any]]:
    known = {one.id: one for one in timeline.devices}
    made = []
    for number in sorted(set(timeline.gpu_ops["device"].tolist())):
        one = known.get(number)
        about = {"product_name": device(one.name), "cu_count": one.sm_count, "wave_front_size": one.warp_size} if one else {}
        made.append({"id": {"handle": _GPUS + number}, "type": 2, "logical_node_type_id": number, **about})
    return made
