"""A small trace in every layout that writers use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Events = list[dict[str, Any]]

METADATA = {
    "schemaVersion": 1,
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
         "warpSize": 32, "numSms": 132}
    ],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "cuda_driver_version": 13000,
    # The name of the list, and all that surrounds events, inside strings of the metadata.
    "note": '{"traceEvents": [{"ph": "X"}, {"ph": "Y"}]}, },{"ph" \\" }]',
    "baseTimeNanoseconds": 1790857026000000000,
}  # fmt: skip


def x(category: str, name: str, ts: float, dur: float = 1.0, pid: Any = 7, tid: Any = 8, **args: Any) -> dict[str, Any]:
    """A span; underscores in the names of arguments stand for blanks."""
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {**event, "args": {key.replace("_", " "): value for key, value in args.items()}} if args else event


EVENTS: Events = [
    x("user_annotation", "ProfilerStep#3", 4346407436942.376, 9080.991),
    {**x("cpu_op", 'aten::"mm" \\', 4346407437026.454, 111.286), "args": {
        "External id": 5, "Sequence number": 9, "Fwd thread id": 0, "Input Dims": [[8, 504], [], [[2, 3], [4]]],
        "Input type": ["float", "", "TensorList"], "Input Strides": [[504, 1], [], []],
        "Concrete Inputs": ["[1, \"}, {\\\"ph\\\"\"]", "", "False"], "Call stack": "a.py(1): f;b.py(2): g", "stream": 0,
    }},
    x("cuda_runtime", "cudaLaunchKernel", 4346407437030.001, 5.5, correlation=11, cbid=211),
    {**x("kernel", "void k<float>(int)", 4346407437040.0, 17.123, 0, 7), "args": {
        "External id": 5, "device": 0, "context": 1, "stream": 7, "correlation": 11, "registers per thread": 32,
        "shared memory": 16384, "grid": [4, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 62, "graph id": 0,
        "occupancy": {"limits": [{"a": 1}, {"ph": 2}], "limitingFactors": "BLOCKS"},
    }},
    {"ph": "s", "id": 11, "pid": 7, "tid": 8, "ts": 4346407437030.001, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 11, "pid": 0, "tid": 7, "ts": 4346407437040.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {**x("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 4346407437060.5, 3, 0, 20), "args": {
        "device": 0, "stream": 172722288, "correlation": 12, "bytes": 4096}},
    {**x("gpu_memset", "Memset (Device)", 4346407437070.5, 0.7, 0, 7), "args": {"device": 0, "stream": 7, "bytes": 64}},
    x("python_function", "t.py(3): <module> ☃ é", 4346407436950.0, 8000, Python_id=2, Python_parent_id=None, Python_module_id=0),
    x("python_function", "train.py(9): step", 4346407436951.0, 7000, Python_id=3, Python_parent_id=2),
    x("gpu_user_annotation", "ProfilerStep#3", 4346407437039.999, 60, 0, 7, External_id=4),
    {**x("cuda_sync", "Stream Sync", 4346407437080.0, 2.25, 0, 1000007), "args": {
        "cuda_sync_kind": "Stream Sync", "stream": 7, "correlation": 13, "device": 0, "wait_on_stream": 4294967295}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 8, "ts": 4346407437027.001, "args": {
        "Total Reserved": 2048, "Total Allocated": 1024, "Bytes": -512, "Device Id": 0, "Device Type": 1,
        "Addr": 140320923857408, "Ev Idx": 1}},
    x("overhead", "Command Buffer Full", 4346407437090.002, 2.25, -1, 0),
    {"name": "process_name", "ph": "M", "ts": 4346407436532.81, "pid": 7, "tid": 0, "args": {"name": "python"}},
    {"name": "thread_name", "ph": "M", "ts": 4346407436532.81, "pid": 7, "tid": 8, "args": {"name": "thread 8 (python)"}},
    {"name": "thread_name", "ph": "M", "ts": 4346407436532.81, "pid": "Spans", "tid": "x", "args": {"name": "spans"}},
    {"ph": "X", "cat": "Trace", "ts": 4346407436532.81, "dur": 9.5, "pid": "Spans", "tid": "PyTorch Profiler", "name": "P (0)"},
    {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 4346407446532.81},
]  # fmt: skip


def kineto(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    """Kineto's own: some keys on a line, arguments on one, metadata first."""
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in metadata.items())
    return "\n{\n" + head + '  "traceEvents": [\n' + ",\n".join(map(_kineto_event, events)) + '\n  ],\n  "traceName": "t.json"\n}\n'


def _kineto_event(event: dict[str, Any]) -> str:
    def some(*keys: str) -> str:
        return ", ".join(f"{json.dumps(key)}: {json.dumps(event[key])}" for key in keys if key in event)

    first, second = some("ph", "cat", "s", "id", "name", "pid", "tid"), some("ts", "dur", "bp")
    args = ',\n    "args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }" if "args" in event else ""
    return "  {\n    " + first + ",\n    " + second + args + "\n  }"


def torch213(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    """Each key on its own line, metadata events first."""
    ordered = [e for e in events if e["ph"] == "M"] + [e for e in events if e["ph"] != "M"]
    return "{" + json.dumps(metadata)[1:-1] + ', "traceEvents": [\n' + ",\n".join(json.dumps(e, indent=2) for e in ordered) + "\n]\n}"


def indented(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    return json.dumps({**metadata, "traceEvents": events}, indent=4)


def compact(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    return json.dumps({**metadata, "traceEvents": events}, separators=(",", ":"), ensure_ascii=False)


def events_first(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    """The list first, then members that hold objects that look like events."""
    return json.dumps({"traceEvents": events, "others": [x("cpu_op", "no event", 1.0)] * 5, **metadata})


def turned(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    """Keys of events in an order that changes from one to the next."""

    def turn(i: int, event: dict[str, Any]) -> dict[str, Any]:
        keys = list(event)
        return {key: event[key] for key in keys[i % len(keys) :] + keys[: i % len(keys)]}

    return json.dumps({**metadata, "traceEvents": [turn(i, event) for i, event in enumerate(events)]})


def carriage_returns(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    return indented(events, metadata).replace("\n", "\r\n")


def bare(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    return "[\n" + ",\n".join(map(json.dumps, events)) + "\n]"


def bare_without_end(events: Events = EVENTS, metadata: dict[str, Any] = METADATA) -> str:
    return "[\n" + "".join(json.dumps(event) + ",\n" for event in events)


LAYOUTS: dict[str, Callable[..., str]] = {
    layout.__name__: layout for layout in (kineto, torch213, indented, compact, events_first, turned, carriage_returns, bare, bare_without_end)
}
