"""XPlane, the protobuf that XLA's profiler writes: `tsl/profiler/protobuf/xplane.proto` of https://github.com/openxla/xla."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.sources.jax.planes import Event, Line, Plane, Stat, Stats
from advisor.sources.protobuf import Value, fields, message, real, text, whole

# Numbers of fields. XSpace: planes.
_PLANES = 1
# XPlane: id 1, name, lines, event_metadata, stat_metadata, stats.
_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = 2, 3, 4, 5, 6
# XLine: id, name, timestamp_ns, events; display_name 11.
_LINE_ID, _LINE_NAME, _LINE_TIME_NS, _EVENTS, _DISPLAY_NAME = 1, 2, 3, 4, 11
# XEvent: metadata_id, offset_ps, duration_ps, stats.
_METADATA_ID, _OFFSET_PS, _DURATION_PS, _STATS = 1, 2, 3, 4
# XStat: metadata_id, then one of: double, uint64, int64, str, bytes, ref.
_STAT_ID, _DOUBLE, _UINT64, _INT64, _STRING, _REFERENCE = 1, 2, 3, 4, 5, 7



def recognises(head: bytes) -> bool:
    """Whether a file begins as an XSpace does: with a plane whose id, if any, comes before its name."""
    if not head.startswith(b"\x0a"):
        return False
    # The plane goes on behind what is at hand: only its first fields can be read.
    at = 1 + _varint_bytes(head[1:])
    if head[at : at + 1] == b"\x08":
        at += 1 + _varint_bytes(head[at + 1 :])
    size = head[at + 1] if len(head) > at + 1 else 0
    name = head[at + 2 : at + 2 + size]
    return head[at : at + 1] == b"\x12" and 0 < size < 128 and len(name) == size and bool(re.match(rb"/(device|host):|Task Environment$", name))


def _varint_bytes(data: bytes) -> int:
    return next((i + 1 for i, byte in enumerate(data[:10]) if byte < 128), 10)


def planes(data: memoryview) -> Iterator[Plane]:
    """The planes of an XSpace, in order; lines and events are decoded as they are asked for. Raises ValueError where they are damaged."""
    for number, value in fields(data):
        if number == _PLANES:
            yield _plane(message(value))


def _plane(data: memoryview) -> Plane:
    name, lines, events, raw_stats = "", [], {}, []
    names: dict[int, str] = {}
    for number, value in fields(data):
        if number == _NAME:
            name = text(value)
        elif number == _LINES:
            lines.append(message(value))
        elif number == _EVENT_METADATA:
            key, entry = _entry(value)
            events[key] = entry
        elif number == _STAT_METADATA:
            key, entry = _entry(value)
            names[key] = next((text(v) for n, v in fields(entry) if n == 2), "")
        elif number == _PLANE_STATS:
            raw_stats.append(value)
    titles = {key: next((text(v) for n, v in fields(entry) if n == 2), "") for key, entry in events.items()}
    return Plane(name, (_line(line, titles, names) for line in lines), dict(_stat(v, names) for v in raw_stats))


def _entry(value: Value) -> tuple[int, memoryview]:
    """Key and value of a map's entry."""
    key, entry = 0, memoryview(b"")
    for number, part in fields(message(value)):
        if number == 1:
            key = whole(part)
        elif number == 2:
            entry = message(part)
    return key, entry


def _line(data: memoryview, titles: dict[int, str], names: dict[int, str]) -> Line:
    number, name, shown, start_ns = 0, "", "", 0
    events = []
    for field, value in fields(data):
        if field == _EVENTS:
            events.append(message(value))
        elif field == _LINE_ID:
            number = _signed(whole(value))
        elif field == _LINE_NAME:
            name = text(value)
        elif field == _DISPLAY_NAME:
            shown = text(value)
        elif field == _LINE_TIME_NS:
            start_ns = _signed(whole(value))
    return Line(number, name or shown, (_event(event, start_ns, titles, names) for event in events))


def _event(data: memoryview, line_ns: int, titles: dict[int, str], names: dict[int, str]) -> Event:
    key = offset = duration = 0
    stats: Stats = {}
    for number, value in fields(data):
        if number == _METADATA_ID:
            key = whole(value)
        elif number == _OFFSET_PS:
            offset = _signed(whole(value))
        elif number == _DURATION_PS:
            duration = _signed(whole(value))
        elif number == _STATS:
            stat, found = _stat(value, names)
            stats[stat] = found
    return Event(titles.get(key, ""), line_ns + offset / 1000, duration / 1000, stats)


def _stat(value: Value, names: dict[int, str]) -> tuple[str, Stat]:
    key, found = 0, ""
    stat: Stat = found
    for number, part in fields(message(value)):
        if number == _STAT_ID:
            key = whole(part)
        elif number == _DOUBLE:
            stat = real(part)
        elif number == _UINT64:
            stat = whole(part)
        elif number == _INT64:
            stat = _signed(whole(part))
        elif number == _STRING:
            stat = text(part)
        elif number == _REFERENCE:
            stat = names.get(whole(part), "")
    return names.get(key, ""), stat


def _signed(number: int) -> int:
    """A varint as the 64 bits of a signed number."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number
