"""Proton's files with the data that the reader uses: kernels, scopes and their numbers, named as everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from advisor.errors import TraceError
from advisor.sources.proton import trace, tree
from advisor.sources.redact.names import Names
from advisor.sources.sniff import is_json, is_proton_tree
from advisor.sources.stream import Stream

_METRICS = ("time (ns)", "count", "flops", "flops8", "flops16", "flops32", "flops64", "bytes", "cycles", "normalized_cycles")
_OF_DEVICES = ("clock_rate", "memory_clock_rate", "bus_width", "num_sms")
_CATEGORIES, _KINDS = ("kernel", "scope", "metric"), ("CUDA", "HIP")


def redacted(stream: Stream, head: bytes, path: str, names: Names) -> Iterator[bytes]:
    """A trace or a tree to give away. Raises TraceError if it is damaged."""
    data = b"".join(iter(lambda: stream.read(1 << 24), b""))
    if stream.truncated:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")
    if not is_proton_tree(head):
        trace.read(data, path)
        return _lines(data, names)
    tree.read(data, path)
    value = msgspec.json.decode(data) if is_json(head) else msgspec.msgpack.decode(data)
    nodes = [_node(value[0], names), *map(_devices, value[1:])]
    return iter((json.dumps(nodes).encode() if is_json(head) else msgspec.msgpack.encode(nodes),))


def _lines(data: bytes, names: Names) -> Iterator[bytes]:
    found, _ = trace._events(data)
    lanes = [event for event in found if event.ph == "M" and event.name == "thread_name"][:1]
    made = [{"args": {"name": "GPU Stream"}, "name": "thread_name", "ph": "M", "pid": 0, "tid": trace._DEVICES} for _ in lanes]
    yield b'{"displayTimeUnit":"us","traceEvents":['
    # The root's stack stands near the start, by which the file is known again.
    spans = sorted((event for event in found if event.ph == "X" and event.cat in _CATEGORIES), key=lambda event: event.cat != "kernel")
    yield ",".join(json.dumps(one, separators=(",", ":")) for one in (*(_event(event, names) for event in spans), *made)).encode()
    yield b"]}\n"


def _event(event: Any, names: Names) -> dict[str, Any]:
    stack = event.args.get("call_stack")
    stack = [str(name) for name in stack] if isinstance(stack, list) else []
    name = names.kernel(event.name) if event.cat == "kernel" else names.range(event.name)
    metrics = event.args.get("metrics")
    args: dict[str, Any] = {"call_stack": ["ROOT", *(names.range(one) for one in stack[1:-1]), name]}
    if isinstance(metrics, dict):
        args["metrics"] = {key: metrics[key] for key in _METRICS if key in metrics and trace.number(metrics[key]) >= 0}
        args["metrics"] = {key: trace.number(value) for key, value in args["metrics"].items()}
    lane = event.tid if isinstance(event.tid, int) else 0
    return {"args": args, "cat": event.cat, "dur": event.dur, "name": name, "ph": "X", "pid": 0, "tid": lane, "ts": event.ts}


def _node(root: Any, names: Names) -> dict[str, Any]:
    """The tree again, without recursion."""
    made: dict[str, Any] = {}
    todo = [(root, made)]
    while todo:
        node, copy = todo.pop()
        frame, metrics, below = (node.get(key) for key in ("frame", "metrics", "children"))
        name = str(frame.get("name", "")) if isinstance(frame, dict) else ""
        metrics = metrics if isinstance(metrics, dict) else {}
        kept: dict[str, Any] = {key: trace.number(metrics[key]) for key in _METRICS if key in metrics and trace.number(metrics[key]) >= 0}
        if "device_id" in metrics:
            kept |= {"device_id": _digits(metrics["device_id"]), "device_type": metrics.get("device_type") if metrics.get("device_type") in _KINDS else "CUDA"}
        copy |= {"frame": {"name": "ROOT" if node is root else _named(name, kept, names), "type": "function"}, "metrics": kept, "children": []}
        for child in below if isinstance(below, list) else ():
            if isinstance(child, Mapping):
                again: dict[str, Any] = {}
                copy["children"].append(again)
                todo.append((child, again))
    return made


def _named(name: str, metrics: dict[str, Any], names: Names) -> str:
    return names.kernel(name) if "time (ns)" in metrics else names.range(name)


def _digits(value: object) -> str:
    text = str(value)
    return text if text.isdecimal() and len(text) < 6 else "0"


def _devices(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: {
            _digits(number): {
                **{key: trace.number(about[key]) for key in _OF_DEVICES if key in about and trace.number(about[key]) >= 0},
                "arch": _digits(about.get("arch")),
            }
            for number, about in devices.items()
            if isinstance(about, Mapping)
        }
        for kind, devices in value.items()
        if kind in _KINDS and isinstance(devices, Mapping)
    }
