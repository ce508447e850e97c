"""A Kineto trace as changes take it apart and put it together: its events as they were written, their times in whole nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import AdvisorError
from advisor.knowledge.structs import replace
from advisor.sources import columns, load
from advisor.sources.kineto.fields import GPU_KINDS, TABLE_OF
from advisor.sources.kineto.write import not_held, write
from advisor.sources.paths import open_binary
from advisor.sources.sniff import SNIFF_BYTES, source_of
from advisor.sources.stream import Stream

Event = dict[str, Any]

ON_DEVICE = frozenset((*GPU_KINDS, "gpu_user_annotation"))
"""Categories of spans that are timed by the device's clock."""
CALLS = frozenset(category for category, table in TABLE_OF.items() if table == "api_calls")
ON_HOST = frozenset(category for category, table in TABLE_OF.items() if table in ("api_calls", "cpu_ops", "python_calls", "annotations"))
"""Categories of spans that a thread of the host runs."""


@dataclass(frozen=True)
class Recorded:
    """A trace. head: the members around its events."""

    head: dict[str, Any]
    events: list[Event]

    def map_events(self, change: Callable[[Event], Event | None]) -> Recorded:
        """The trace with every event replaced by `change`, which drops events by returning None."""
        return self.with_events(made for event in self.events if (made := change(event)) is not None)

    def with_events(self, events: Iterable[Event]) -> Recorded:
        """The same members around other events."""
        return replace(self, events=list(events))

    def write(self, path: Path) -> None:
        """Write it, not compressed."""
        path.write_bytes(msgspec.json.encode({**self.head, "traceEvents": self.events}))


SUFFIXES = (".json", ".json.gz", ".json.zst", columns.SUFFIX)
_EVENTS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"advisor_recording"', b'"ph"')


def traces_below(directory: Path) -> list[Path]:
    """Every file below a directory that begins like a Kineto trace, or like the columns of a trace, ordered by path."""
    return sorted(path for path in directory.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file() and _begins_as_trace(path))


def _begins_as_trace(path: Path) -> bool:
    file, size = open_binary(str(path))
    with file:
        head = Stream(file, size).peek(SNIFF_BYTES)
    found = source_of(head)
    return found == "columns" or (found == "kineto" and any(key in head for key in _EVENTS))


def read(path: Path) -> Recorded | None:
    """The trace at a path. None if it is damaged, or its events are not as PyTorch writes them: they are then not understood well enough to change them."""
    try:
        found = msgspec.json.decode(_of_columns(path) if columns.named_as_columns(path) else _text(path))
    except (AdvisorError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    listed = found if isinstance(found, list) else found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(listed, list) or not all(isinstance(event, dict) and _timed(event) for event in listed):
        return None
    head = {key: value for key, value in found.items() if key != "traceEvents"} if isinstance(found, dict) else {}
    return Recorded(head, listed)


def _text(path: Path) -> bytes:
    file, size = open_binary(str(path))
    with file:
        stream = Stream(file, size)
        return b"".join(iter(lambda: stream.read(1 << 22), b""))


def _of_columns(path: Path) -> bytes:
    """The columns as Kineto's JSON again; nothing if that cannot hold them."""
    timeline = load(path)
    return b"" if timeline.source.format != "kineto" or not_held(timeline) else write(timeline)


def _timed(event: Event) -> bool:
    """Whether its times are numbers, as all exporters of PyTorch write them."""
    return all(isinstance(event.get(key, 0), (int, float)) for key in ("ts", "dur")) and isinstance(event.get("args", {}), dict)


def nanoseconds(us: float) -> int:
    """Whole nanoseconds: the product of both would need more bits than a float has."""
    whole = math.floor(us)
    return whole * 1000 + round((us - whole) * 1000)


def begins(event: Event) -> int:
    return nanoseconds(event["ts"])


def ends(event: Event) -> int:
    return begins(event) + nanoseconds(event.get("dur", 0))


def moved_event(event: Event, start_ns: int, end_ns: int | None = None) -> Event:
    """The event at another time, with another length if an end is given."""
    moved = {**event, "ts": start_ns / 1000}
    return moved if end_ns is None else {**moved, "dur": (end_ns - start_ns) / 1000}


def arguments(event: Event) -> dict[str, Any]:
    return event.get("args", {})


def spans(trace: Recorded, categories: frozenset[str]) -> Iterator[Event]:
    """Spans of these categories, in the file's order."""
    return (event for event in trace.events if event.get("ph") == "X" and event.get("cat") in categories)


def on_device(event: Event) -> bool:
    return event.get("cat") in ON_DEVICE or (event.get("ph") == "f" and event.get("cat") == "ac2g")
