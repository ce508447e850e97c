"""The Chrome trace that JAX writes beside its XPlane: cut at a million events, and without the device's description."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from advisor.errors import TraceError
from advisor.sources.jax.planes import Event, Line, Plane, Stat

MOST_EVENTS = 1_000_000
"""The exporter keeps no more than these."""

_PROCESS = re.compile(rb'"name"\s*:\s*"/(device:\w+:\d+|host:\w+)[^"]*"')


class _Event(msgspec.Struct):
    ph: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    name: str = ""
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def recognises(head: bytes) -> bool:
    """Whether JSON begins with processes that are named as XLA's profiler names planes."""
    return b'"process_name"' in head and bool(_PROCESS.search(head))


def decoded(data: bytes) -> list[_Event]:
    """The events as they stand. Raises TraceError where the text is damaged."""
    try:
        return msgspec.json.decode(data, type=_Trace).events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"the JSON of a JAX profile is damaged: {error}", "Copy or record it again, or give the .xplane.pb beside it.") from None


def planes(data: bytes) -> tuple[list[Plane], int]:
    """The processes as planes, and how many spans there are. Raises TraceError where the text is damaged."""
    events = decoded(data)
    processes = {e.pid: str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "process_name"}
    threads = {(e.pid, e.tid): str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "thread_name"}
    by_thread: dict[tuple[int, int], list[_Event]] = {}
    spans = [e for e in events if e.ph == "X"]
    for event in spans:
        by_thread.setdefault((event.pid, event.tid), []).append(event)
    made = []
    for pid, name in processes.items():
        lines = [Line(tid, threads.get((p, tid), ""), _events(found)) for (p, tid), found in by_thread.items() if p == pid]
        made.append(Plane(name, lines))
    return made, len(spans)


def _events(events: list[_Event]) -> Iterator[Event]:
    for e in events:
        yield Event(str(e.args.get("long_name", e.name)), e.ts * 1000, e.dur * 1000, {k: typed(v) for k, v in e.args.items()})


def typed(value: Any) -> Stat:
    """Numbers stand as strings in `args`."""
    if isinstance(value, (int, float)):
        return value
    found = str(value)
    return int(found) if found.removeprefix("-").isdecimal() and len(found) < 20 else found
