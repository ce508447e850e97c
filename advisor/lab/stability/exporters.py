"""Other exporters of the same recording: torch 2.15 has an exporter in Python, and a backend of its own for CUPTI."""

from __future__ import annotations

import re
from itertools import count
from random import Random

from advisor.lab.stability.events import CALLS, Event, Recorded, arguments
from advisor.sources.kineto.fields import GPU_KINDS

_COPY = re.compile(r"Memcpy (?P<kind>\w+) \((?P<source>[\w ]+) -> (?P<target>[\w ]+)\)")
_OF_A_GRAPH = re.compile(r"cudaGraphLaunch")
_COLLECTIVE = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "In split size", "Out split size", "Process Group Name")
_OF_CUPTI = {
    "kernel": (
        "device",
        "context",
        "stream",
        "correlation",
        "grid",
        "block",
        "registers per thread",
        "shared memory",
        "queued",
        "graph id",
        "original_stream",
        *_COLLECTIVE,
    ),
    "gpu_memcpy": ("device", "context", "stream", "correlation", "bytes", "graph id", "original_stream"),
    "gpu_memset": ("device", "context", "stream", "correlation", "bytes", "graph id", "original_stream"),
}
"""The fields of device work that both Kineto and `torch/profiler/_cuspy/trace.py` write: no op ids, no occupancy. For work of a graph
on its own lane, both give the original stream."""
_LANES = (101, 102, 103)
"""Lanes that annotations of a graph's kernels name; hardware streams have small numbers."""


def by_cupti(trace: Recorded, rng: Random) -> Recorded | None:
    """As torch 2.15 writes a recording of its own CUPTI backend (`CuspyConfig`): arguments of copies and fills give their kind, ops have no ids."""
    if not _on_cuda(trace):
        return None

    def written(event: Event) -> Event:
        category, args = event.get("cat"), arguments(event)
        if event.get("ph") != "X":
            return event
        if category in _OF_CUPTI:
            kept = {key: args[key] for key in _OF_CUPTI[category] if key in args}
            if "graph node id" in args:
                kept["graph node id"] = args["graph node id"] & 0xFFFFFFFF
            copy = _COPY.fullmatch(event["name"])
            if copy:
                kinds = {f"{end} kind": copy[name].lower().replace(" ", "_") for end, name in (("src", "source"), ("dst", "target"))}
                return {**event, "name": "Memcpy", "args": {**kept, "copy kind": copy["kind"], **kinds}}
            return {**event, "name": "Memset" if category == "gpu_memset" else event["name"], "args": kept}
        if category in CALLS:
            return {**event, "args": {key: args[key] for key in ("cbid", "correlation") if key in args}}
        return {**event, "args": {**args, "wait_on_stream": -1}} if "wait_on_stream" in args else event

    return trace.map_events(written)


def by_python(trace: Recorded, rng: Random) -> Recorded | None:
    """As torch 2.15 writes it from Python (`use_python_export`): threads without system names, devices without their registers."""
    if not _on_cuda(trace):
        return None

    def written(event: Event) -> Event:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            return {**event, "args": {"name": re.sub(r" \([^()]*\)$", "", str(arguments(event).get("name", "")))}}
        return event

    devices = [{key: value for key, value in device.items() if key != "regsPerBlock"} for device in trace.head.get("deviceProperties", ())]
    head = {**{key: value for key, value in trace.head.items() if key != "trace_id"}, "deviceProperties": devices}
    return Recorded(head, trace.map_events(written).events)


def graph_lanes(trace: Recorded, rng: Random) -> Recorded | None:
    """The work of CUDA graphs on lanes that their annotations name (`graph_lanes="all"`), next to its stream."""
    of_graphs = {arguments(e).get("correlation") for e in trace.events if e.get("cat") in CALLS and _OF_A_GRAPH.match(str(e.get("name", "")))} - {None}
    nodes, moved = count(1), set()

    def drawn(event: Event) -> Event:
        args = arguments(event)
        if event.get("ph") != "X" or event.get("cat") not in GPU_KINDS or args.get("correlation") not in of_graphs or "stream" not in args:
            return event
        lane, more = rng.choice(_LANES), {"graph id": 1, "graph node id": next(nodes)}
        moved.add((event.get("pid"), event.get("tid")))
        return {**event, "tid": lane, "args": {**more, **args, "stream": lane, "original_stream": args["stream"]}}

    made = trace.map_events(drawn)
    left = {(e.get("pid"), e.get("tid")) for e in made.events if e.get("cat") in GPU_KINDS}
    # A range over a stream on which no work is drawn any more is not written.
    orphaned = moved - left
    kept = made.map_events(lambda e: None if e.get("cat") == "gpu_user_annotation" and (e.get("pid"), e.get("tid")) in orphaned else e)
    return kept if moved else None


def _on_cuda(trace: Recorded) -> bool:
    """Whether calls of CUDA were recorded: neither exporter is for another maker's devices."""
    return any(e.get("cat") in ("cuda_runtime", "cuda_driver") and re.match(r"cu[A-Zd]", str(e.get("name", ""))) for e in trace.events)
