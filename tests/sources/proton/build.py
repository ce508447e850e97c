"""What Proton's newer writers put out, after their sources: a trace with lanes, scopes of the host and metadata, and a tree in MessagePack."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import msgspec


def kernel(name: str, ts: float, dur: float, *scopes: str, stream: int = 7, device: int = 0, **metrics: str) -> dict[str, Any]:
    args: dict[str, Any] = {"call_stack": ["ROOT", *scopes, name]}
    if metrics:
        args["metrics"] = metrics
    return {"args": args, "cat": "kernel", "dur": dur, "name": name, "ph": "X", "pid": 0, "tid": 200_000 + 1_000_000 * device + stream, "ts": ts}


def scope(name: str, ts: float, dur: float, thread: int = 1) -> dict[str, Any]:
    return {"args": {"call_stack": ["ROOT", name]}, "cat": "scope", "dur": dur, "name": name, "ph": "X", "pid": 0, "tid": thread, "ts": ts}


def lane(tid: int, name: str) -> dict[str, Any]:
    return {"args": {"name": name}, "name": "thread_name", "ph": "M", "pid": 0, "tid": tid}


def trace(*events: dict[str, Any], lanes: bool = True) -> bytes:
    head = [{"args": {"name": "Trace"}, "name": "process_name", "ph": "M", "pid": 0, "tid": 0}, lane(200_007, "GPU Stream 7")] if lanes else []
    return (json.dumps({"displayTimeUnit": "us", "traceEvents": [*head, *events]}, separators=(",", ":")) + "\n").encode()


def node(name: str, *children: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    """Metrics by their names with underscores for what no keyword can hold: `time__ns_`."""
    said = {key.replace("time__ns_", "time (ns)"): value for key, value in metrics.items()}
    return {"frame": {"name": name, "type": "function"}, "metrics": said, "children": list(children)}


DEVICES = {"CUDA": {"0": {"clock_rate": 1_980_000, "memory_clock_rate": 3_201_000, "bus_width": 6016, "arch": "90", "num_sms": 132}}}


def tree(*children: dict[str, Any], devices: dict[str, Any] | None = None) -> list[Any]:
    return [node("ROOT", *children, time__ns_=0, count=0), deepcopy(DEVICES) if devices is None else devices]


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def ran(name: str, ns: int, count: int, **metrics: Any) -> dict[str, Any]:
    return node(name, time__ns_=ns, count=count, device_id="0", device_type="CUDA", **metrics)
