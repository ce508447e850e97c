"""The Chrome trace that JAX writes next to its XPlane: cut at a million events, and without the device's description."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.knowledge import formats
from advisor.sources.jax.planes import NUMBERS, OF_OPS, TEXTS, Events, Line, Plane, Stat, Stats, agreeing
from advisor.sources.jax.texts import Texts
from advisor.sources.limits import LARGEST
from advisor.sources.sniff import refused

MOST_EVENTS = 1_000_000
"""The exporter keeps no more than these."""

_LATEST_US = LARGEST / 1e6
"""Times in picoseconds that 64 bits hold."""


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


def decoded(data: bytes) -> list[_Event]:
    """The events of the file, unchanged. Raises TraceError if the text is damaged."""
    try:
        return msgspec.json.decode(data, type=_Trace).events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"the JSON of a JAX profile is damaged: {error}", "Copy or record it again, or give the .xplane.pb next to it.") from None


def planes(data: bytes, texts: Texts) -> tuple[list[Plane], int]:
    """The processes as planes, and how many spans there are. Raises TraceError if the text is damaged."""
    events = decoded(data)
    processes = {e.pid: str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "process_name"}
    if known := formats.of_spans([("", name) for name in processes.values()]):
        raise refused(known, "the file")
    threads = {(e.pid, e.tid): str(e.args.get("name", "")) for e in events if e.ph == "M" and e.name == "thread_name"}
    by_thread: dict[tuple[int, int], list[_Event]] = {}
    spans = [e for e in events if e.ph == "X"]
    start_us = min((e.ts for e in spans), default=0.0)
    start_us = start_us if abs(start_us) < _LATEST_US else 0.0
    for event in spans:
        by_thread.setdefault((event.pid, event.tid), []).append(event)
    made = []
    for pid, name in processes.items():
        lines = [
            Line(tid, threads.get((p, tid), ""), int(start_us * 1000), [_events(found, int(start_us * 1000), texts)], texts)
            for (p, tid), found in by_thread.items() if p == pid
        ]  # fmt: skip
        said = _said([event for (p, _), found in by_thread.items() if p == pid for event in found]) if name.startswith("/device:TPU") else {}
        made.append(Plane(name, lines, titles=said))
    return made, len(spans)


def _said(events: list[_Event]) -> dict[str, Stats]:
    """What ops say of themselves, by their names: here each event of theirs does."""
    found: dict[str, Stats] = {}
    for event in events:
        said = {key: typed(value) for key, value in event.args.items() if key in OF_OPS}
        if said:
            name = _name(event)
            found[name] = agreeing(found.get(name, {}), said)
    return found


def _name(event: _Event) -> str:
    return str(event.args.get("long_name", event.name))


def _events(events: list[_Event], start_ns: int, texts: Texts) -> Events:
    stats: dict[str, Ints] = {}
    for row, event in enumerate(events):
        for key, value in event.args.items():
            stat = key.lower()
            if stat in NUMBERS or stat in TEXTS:
                column = stats.setdefault(stat, np.full(len(events), -1, np.int64))
                column[row] = _number(value) if stat in NUMBERS else texts.code(str(value))
    name = np.array([texts.code(_name(e)) for e in events], np.int64)
    return Events(name, _picoseconds([e.ts for e in events], start_ns), _picoseconds([e.dur for e in events], 0), stats)


def _picoseconds(times_us: list[float], start_ns: int) -> Ints:
    """Times since a start; a value beyond 64 bits becomes the largest number."""
    found = np.clip(times_us, -2 * _LATEST_US, 2 * _LATEST_US) * 1000 - start_ns
    good = np.abs(found) < _LATEST_US * 1000
    return np.where(good, np.rint(np.where(good, found, 0) * 1000), 2**62).astype(np.int64)


def _number(value: Any) -> int:
    """The number in a string of `args`; -1 if it is no number."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 19 else -1


def typed(value: Any) -> Stat:
    """Numbers in `args` are strings."""
    if isinstance(value, (int, float)):
        return value
    found = str(value)
    return int(found) if found.removeprefix("-").isdecimal() and len(found) < 20 else found
