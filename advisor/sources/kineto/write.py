"""A timeline as Kineto's JSON, as far as that format can express it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import Floats
from advisor.recordings.columns import Categorical, Column, Table
from advisor.recordings.timeline import TABLES, GpuKind, Timeline
from advisor.report.numbers import counted
from advisor.sources.kineto.events import Args
from advisor.sources.measured import as_recorded

_KEY = {field.name: field.encode_name for field in msgspec.structs.fields(Args)}
"""What Kineto calls each argument."""

_CATEGORY = {
    "cpu_ops": "cpu_op",
    "api_calls": "cuda_runtime",
    "python_calls": "python_function",
    "annotations": "user_annotation",
    "gpu_annotations": "gpu_user_annotation",
    "syncs": "cuda_sync",
    "overheads": "overhead",
}
_OF_GPU = {GpuKind.KERNEL.value: "kernel", GpuKind.MEMCPY.value: "gpu_memcpy", GpuKind.MEMSET.value: "gpu_memset"}
_DRIVER = re.compile(r"cu[A-Z]")

_ARGUMENT = {
    "gpu_ops": {
        "grid_blocks": "grid", "block_threads": "block", "occupancy_pct": "occupancy", "collective_dtype": "dtype",
        **{name: name for name in (
            "device", "stream", "correlation", "external_id", "bytes", "copy_kind", "src_kind", "dst_kind", "registers", "shared_bytes", "graph_id", "graph_node_id",
            "collective", "group_size", "in_elements", "out_elements", "group", "group_ranks", "collective_sequence", "communicator", "in_split", "out_split",
        )},
    },
    "cpu_ops": {name: name for name in (
        "external_id", "sequence", "forward_thread", "dims", "types", "strides", "concrete", "kernel_file", "call_stack", "module",
    )},
    "api_calls": {name: name for name in ("correlation", "external_id")},
    "python_calls": {name: name for name in ("python_id", "parent_id", "module_id")},
    "gpu_annotations": {name: name for name in ("device", "stream")},
    "syncs": {"kind": "sync_kind", **{name: name for name in ("device", "stream", "correlation", "waits_on_stream", "waits_on_correlation")}},
    "memory": {"bytes": "memory_bytes", "device": "device_id", **{name: name for name in ("address", "allocated_bytes", "reserved_bytes", "device_type")}},
}  # fmt: skip
"""The argument that each column is written as."""

_JSON = ("dims", "types", "strides", "concrete")
_SIGNED = ("memory_bytes",)
"""Arguments for which -1 is a value."""
_PEER = re.compile(r"(to|from) (\S+) of (.*)")


def write(timeline: Timeline) -> bytes:
    """The trace as JSON. What Kineto's format has no place for, `not_held` names."""
    source = timeline.source
    devices = [
        {
            "id": d.id, "name": d.name, "totalGlobalMem": d.memory_bytes, "computeMajor": d.compute_capability[0], "computeMinor": d.compute_capability[1],
            "numSms": d.sm_count, "warpSize": d.warp_size,
        }
        for d in timeline.devices
    ]  # fmt: skip
    ranks = {"rank": source.rank, "world_size": source.world_size}
    whole: dict[str, Any] = {"schemaVersion": 1, **source.metadata, "deviceProperties": devices}
    if any(value is not None for value in ranks.values()):
        whole["distributedInfo"] = {key: value for key, value in ranks.items() if value is not None}
    if source.unprofiled_step_us or source.frameworks:
        whole["advisor_recording"] = as_recorded(source.unprofiled_step_us, source.frameworks, source.loops)
    events = [event for name in TABLES for event in _events(timeline, name)]
    return msgspec.json.encode({**whole, "baseTimeNanoseconds": timeline.base_ns, "traceEvents": events})


def not_held(timeline: Timeline) -> list[str]:
    """What of a timeline Kineto's JSON cannot say, with how much of it there is."""
    lost = {name: len(getattr(timeline, name)) for name in TABLES if name not in (*_CATEGORY, "gpu_ops", "memory", "threads")}
    lost["graphs recorded as a single span"] = int((timeline.gpu_ops["kind"] == GpuKind.GRAPH.value).sum())
    lost["errors of calls"] = int((timeline.api_calls["error"] > 0).sum())
    return [f"{counted(rows, 'row')} of {name}" if name in TABLES else f"{rows:,} {name}" for name, rows in lost.items() if rows]


def _events(timeline: Timeline, name: str) -> Iterator[dict[str, Any]]:
    frame: Table = getattr(timeline, name)
    if name == "threads":
        yield from (
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": named}}
            for pid, tid, named in zip(*(frame[of].tolist() for of in ("pid", "tid", "name")), strict=True)
        )
        return
    if name not in _CATEGORY and name not in ("gpu_ops", "memory"):
        return
    if name == "gpu_ops":
        frame = frame[frame["kind"] != GpuKind.GRAPH.value]
    arguments = [_argument(frame[column], _KEY[field], field) for column, field in _ARGUMENT.get(name, {}).items()]
    args: list[dict[str, Any]] = [{} for _ in range(len(frame))]
    for key, rows, values in arguments:
        for row, value in zip(rows, values, strict=True):
            args[row][key] = value
    if name == "cpu_ops":
        _add_peers(frame["peer"], args)
    place = ("device", "stream") if name in ("gpu_ops", "gpu_annotations", "syncs") else ("pid", "tid")
    times = [_microseconds(frame["start_us"]), _microseconds(frame["dur_us"]) if "dur_us" in frame else [None] * len(frame)]
    named = zip(_categories(name, frame), _names(name, frame), frame[place[0]].tolist(), frame[place[1]].tolist(), *times, args, strict=True)
    for category, text, pid, tid, start, lasts, said in named:
        event = {"ph": "X" if lasts is not None else "i", "cat": category, "name": text, "pid": pid, "tid": tid, "ts": start, "args": said}
        yield event if lasts is None else {**event, "dur": lasts}


def _categories(name: str, frame: Table) -> list[str]:
    if name == "gpu_ops":
        return [_OF_GPU[kind] for kind in frame["kind"]]
    if name == "api_calls":
        return ["cuda_driver" if _DRIVER.match(call) else "cuda_runtime" for call in frame["name"]]
    return [_CATEGORY.get(name, "cpu_instant_event")] * len(frame)


def _names(name: str, frame: Table) -> list[str]:
    if name == "cpu_ops":
        return [f"{op}.{overload}" if overload else op for op, overload in zip(frame["name"], frame["overload"], strict=True)]
    return ["[memory]"] * len(frame) if name == "memory" else frame["kind" if name == "syncs" else "name"].tolist()


def _microseconds(times: Floats) -> list[msgspec.Raw]:
    """As decimals of a thousandth, which a double does not always hold."""
    ns = np.rint(times * 1000).astype(np.int64)
    return [msgspec.Raw(b"%d.%03d" % divmod(one, 1000)) for one in ns.tolist()]


def _argument(column: Column, key: str, field: str) -> tuple[str, list[int], list[Any]]:
    """The rows with a recorded value of a column, and the text to write."""
    if isinstance(column, Categorical):
        texts = [_raw(text) if field in _JSON else text for text in column.categories]
        codes = column.codes
        rows = np.flatnonzero(np.array([bool(text) for text in texts], bool)[codes])
        return key, rows.tolist(), [texts[code] for code in codes[rows].tolist()]
    values = column
    rows = np.flatnonzero(~np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), bool) if field in _SIGNED else values != -1)
    chosen = values[rows].tolist()
    return key, rows.tolist(), [[value, 1, 1] for value in chosen] if field in ("grid", "block") else chosen


def _raw(text: str) -> msgspec.Raw | None:
    """Recorded JSON, unchanged; None for other text, or if it was not recorded."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return msgspec.Raw(text.encode())


def _add_peers(peers: Categorical, args: list[dict[str, Any]]) -> None:
    for row, peer in enumerate(peers.tolist()):
        if found := _PEER.match(peer):
            args[row][_KEY["target_rank" if found[1] == "to" else "source_rank"]] = found[2]
            args[row][_KEY["group_ranks"]] = found[3]
