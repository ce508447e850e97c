"""A second reader of Kineto traces to compare the first one with: the standard library and plain loops, slow and short.

Times are exact: Decimal microseconds to integer nanoseconds. Tables are lists of dicts, in the order of their starts.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

CATEGORIES = {
    "cpu_ops": ["cpu_op", "Operator"],
    "gpu_ops": ["kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"],
    "api_calls": ["cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime"],
    "python_calls": ["python_function"],
    "annotations": ["user_annotation"],
    "gpu_annotations": ["gpu_user_annotation"],
    "syncs": ["cuda_sync"],
    "overheads": ["overhead"],
}
TABLE = {category: table for table, categories in CATEGORIES.items() for category in categories}


def ns(us: Any) -> int:
    return int((Decimal(us) * 1000).quantize(Decimal(1), ROUND_HALF_EVEN))


def integer(value: Any) -> int:
    if isinstance(value, str):
        found = re.search(r"-?\d+", value)
        return int(found[0]) if found else -1
    return -1 if value is None else int(value)


def text(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=float)


def product(value: Any) -> int:
    return math.prod(value) if isinstance(value, list) and value else -1


def read(data: bytes) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """The tables of a trace that is valid JSON, and the nanoseconds of its earliest event."""
    document = json.loads(data, parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    tables: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        ph, args = event.get("ph"), event.get("args") or {}
        table = TABLE.get(event.get("cat", "")) if ph == "X" else None
        if ph == "i" and event["name"] == "[memory]":
            table = "memory"
        elif ph == "M" and event["name"] == "thread_name" and isinstance(event["pid"], int) and isinstance(event["tid"], int):
            table = "threads"
        elif ph == "X" and event.get("cat") == "mtia_ccp_events" and event["name"] not in ("event_wait", "event_record"):
            table = "gpu_ops"
        if table == "cpu_ops" and re.match(r"ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#", event["name"]):
            table = "annotations"
        if table:
            tables.setdefault(table, []).append(row(table, event, args))
    earliest = min(r["start_us"] for rows in tables.values() for r in rows if "start_us" in r)
    for name in tables:
        if name != "threads":
            tables[name].sort(key=lambda r: r["start_us"])
        for r in tables[name]:
            if "start_us" in r:
                r["start_us"] -= earliest
    return tables, earliest


def row(table: str, event: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """One event as a row; times still absolute nanoseconds."""
    thread = {"pid": integer(event["pid"]), "tid": integer(event["tid"])}
    if table == "threads":
        return {**thread, "name": args["name"]}
    start = {"start_us": ns(event["ts"])}
    if table == "memory":
        keys = {"address": "Addr", "bytes": "Bytes", "allocated_bytes": "Total Allocated", "reserved_bytes": "Total Reserved"}
        keys |= {"device_type": "Device Type", "device": "Device Id"}
        return {**thread, **start, **{column: integer(args.get(key)) for column, key in keys.items()}}
    duration = ns(event.get("dur", 0))
    times = {**start, "dur_us": duration if 0 <= duration <= 7 * 86400 * 10**9 else 0}
    named = {"name": event["name"], **thread, **times}
    pid = event["pid"] if isinstance(event["pid"], int) else 0
    device = {"device": integer(args.get("device", pid)), "stream": integer(args.get("stream", event["tid"]))}
    device["stream"] = integer(args.get("original_stream", device["stream"]))
    device["stream"] = -1 if device["stream"] == 2**32 - 1 else device["stream"]
    linked = {
        "correlation": integer(args.get("correlation")),
        "external_id": integer(args.get("External id", args.get("external id"))),
    }
    if table == "api_calls":
        return {**named, **linked, "error": -1}  # Kineto does not record it
    if table == "python_calls":
        keys = {"python_id": "Python id", "parent_id": "Python parent id", "module_id": "Python module id"}
        return {**named, **{column: integer(args.get(key)) for column, key in keys.items()}}
    if table == "cpu_ops":
        spelled = re.fullmatch(r"(.*::\w+)\.(\w+)", event["name"])
        named |= {"name": spelled[1] if spelled else event["name"], "overload": spelled[2] if spelled else ""}
        keys = {"dims": "Input Dims", "types": "Input type", "strides": "Input Strides", "concrete": "Concrete Inputs"}
        plain = {"kernel_file": "kernel_file", "call_stack": "Call stack", "module": "Module Hierarchy"}
        sent, came = args.get("Dst Rank"), args.get("Src Rank")
        group = args.get("Process Group Ranks", "[]")
        return {
            **named, "external_id": linked["external_id"],
            "peer": f"to {sent} of {group}" if sent is not None else f"from {came} of {group}" if came is not None else "",
            "sequence": integer(args.get("Sequence number")), "forward_thread": integer(args.get("Fwd thread id")),
            **{column: text(args.get(key)) for column, key in keys.items()},
            **{column: args.get(key, "") for column, key in plain.items()},
        }  # fmt: skip
    if table == "gpu_ops":
        return {"name": event["name"], **times, **device, **linked, **gpu_op(event, args)}
    if table == "gpu_annotations":
        return {"name": event["name"], **times, **device}
    if table == "syncs":
        waits = integer(args.get("wait_on_stream"))
        return {
            "kind": args.get("cuda_sync_kind", event["name"]), **times, **device, "correlation": linked["correlation"],
            "waits_on_stream": -1 if waits == 2**32 - 1 else waits,
            "waits_on_correlation": integer(args.get("wait_on_cuda_event_record_corr_id")),
        }  # fmt: skip
    return named


def gpu_op(event: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    kind = event["cat"].lower().removeprefix("gpu_")
    if kind == "mtia_ccp_events":
        kind = "memcpy" if event["name"] == "dma_request" else "kernel"
    direction = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH"}.get(args.get("direction", ""), "")
    copy = re.match(r"Memcpy (\w+) \((\w+) -> (\w+)\)", event["name"]) if kind == "memcpy" else None
    memory = {"Pageable": "pageable", "Pinned": "pinned", "Device": "device"}
    occupancy = args.get("est. achieved occupancy %")
    return {
        "kind": kind,
        "bytes": integer(args.get("bytes", args.get("size"))),
        "copy_kind": copy[1] if copy else direction,
        "src_kind": memory.get(copy[2], "") if copy else "",
        "dst_kind": memory.get(copy[3], "") if copy else "",
        "grid_blocks": product(args.get("grid")),
        "block_threads": product(args.get("block")),
        "registers": integer(args.get("registers per thread")),
        "shared_bytes": integer(args.get("shared memory")),
        "occupancy_pct": math.nan if occupancy is None else float(occupancy),
        "graph_id": integer(args.get("graph id")) or -1,
        "graph_node_id": integer(args.get("graph node id")) or -1,
        "collective": args.get("Collective name", ""),
        "collective_dtype": args.get("dtype", ""),
        "group_size": integer(args.get("Group size")),
        "in_elements": integer(args.get("In msg nelems")),
        "out_elements": integer(args.get("Out msg nelems")),
        "group": str(args.get("Process Group Name", "")),
        "group_ranks": args.get("Process Group Ranks", ""),
        "collective_sequence": integer(args.get("Seq")),
        "communicator": str(args.get("Comms Id", "")),
        "in_split": args.get("In split size", ""),
        "out_split": args.get("Out split size", ""),
    }


def read_path(path: Path) -> tuple[dict[str, list[dict[str, Any]]], int]:
    data = path.read_bytes()
    return read(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
