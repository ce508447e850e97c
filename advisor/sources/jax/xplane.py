"""XPlane, the protobuf that XLA's profiler writes: `tsl/profiler/protobuf/xplane.proto` of https://github.com/openxla/xla.

The file is read twice, in pieces: events have numbers for their names, and the table of numbers comes after them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.sources.jax import wire
from advisor.sources.jax.planes import NUMBERS, OF_OPS, TEXTS, Events, Line, Plane, Stat, Stats, agreeing
from advisor.sources.jax.texts import Texts, distinct
from advisor.sources.jax.walk import Walk
from advisor.sources.protobuf import Value, fields, message, numbers_of, real, text, whole

SPACE, PLANE, LINE, EVENT, STAT, TITLE = map(numbers_of, ("XSpace", "XPlane", "XLine", "XEvent", "XStat", "XEventMetadata"))

_EVENT_TAG = LINE.events << 3 | 2
_PROGRAM = "Hlo Proto"
_DESCRIBED = ("/host:metadata", "/device:TPU")
"""Planes with titles that have stats of their own."""


class Head(msgspec.Struct):
    """The data of a plane besides its events. titles, names: of events and of stats, by number. said: stats of the titles."""

    name: str = ""
    titles: dict[int, str] = msgspec.field(default_factory=dict)
    names: dict[int, str] = msgspec.field(default_factory=dict)
    stats: Stats = msgspec.field(default_factory=dict)
    programs: dict[str, memoryview] = msgspec.field(default_factory=dict)
    said: dict[str, Stats] = msgspec.field(default_factory=dict)


def heads(walk: Walk) -> list[Head]:
    """The data of each plane of an XSpace besides its events, which are skipped. Raises ValueError if it is damaged."""
    return [_head(walk, stop) for number, _, stop in walk.fields() if number == SPACE.planes]


def _head(walk: Walk, end: int) -> Head:
    head = Head()
    raw_stats, raw_titles = [], []
    for number, _, stop in walk.fields(end):
        if number == PLANE.name:
            head.name = text(walk.take(stop))
        elif number == PLANE.event_metadata:
            key, entry = _entry(walk.take(stop))
            title, stats = "", []
            for n, value in fields(entry):
                if n == TITLE.name:
                    title = text(value)
                elif n == TITLE.stats:
                    stats.append(message(value))
            head.titles[key] = title
            if stats and head.name.startswith(_DESCRIBED):
                raw_titles.append((title, stats))
        elif number == PLANE.stat_metadata:
            key, entry = _entry(walk.take(stop))
            head.names[key] = next((text(v) for n, v in fields(entry) if n == TITLE.name), "")
        elif number == PLANE.stats:
            raw_stats.append(walk.take(stop))
    head.stats = dict(_stat(value, head.names) for value in raw_stats)
    head.programs = {title: proto for title, stats in raw_titles if (proto := _program(stats, head.names)) is not None}
    if head.name.startswith("/device:"):
        for title, stats in raw_titles:
            said = {key: stat for key, stat in (_stat(stat, head.names) for stat in stats) if key in OF_OPS}
            head.said[title] = agreeing(head.said.get(title, {}), said)
    return head


def _entry(value: Value) -> tuple[int, memoryview]:
    """Key and value of a map's entry."""
    key, entry = 0, memoryview(b"")
    for number, part in fields(message(value)):
        if number == 1:
            key = whole(part)
        elif number == 2:
            entry = message(part)
    return key, entry


def _stat(value: Value, names: dict[int, str]) -> tuple[str, Stat]:
    key = 0
    stat: Stat = ""
    for number, part in fields(message(value)):
        if number == STAT.metadata_id:
            key = whole(part)
        elif number == STAT.double_value:
            stat = real(part)
        elif number == STAT.uint64_value:
            stat = whole(part)
        elif number == STAT.int64_value:
            stat = _signed(whole(part))
        elif number == STAT.str_value:
            stat = text(part)
        elif number == STAT.ref_value:
            stat = names.get(whole(part), "")
    return names.get(key, ""), stat


def _program(stats: list[memoryview], names: dict[int, str]) -> memoryview | None:
    """The serialised program among the stats of a title, None if there is none."""
    for stat in stats:
        parts: dict[int, Value] = dict(fields(stat))
        if names.get(whole(parts.get(STAT.metadata_id, 0))) == _PROGRAM and STAT.bytes_value in parts:
            return message(parts[STAT.bytes_value])
    return None


def _signed(number: int) -> int:
    """A varint as the 64 bits of a signed number."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def planes(walk: Walk, heads: list[Head], texts: Texts) -> Iterator[Plane]:
    """The planes of an XSpace, in order. Each is read before the next is asked for; so are its lines, and their events.

    Raises ValueError if they are damaged, as they are read.
    """
    ordered = iter(heads)
    for number, _, stop in walk.fields():
        if number == SPACE.planes:
            head = next(ordered)
            yield Plane(head.name, _lines(walk, stop, _Reader(head, texts)), head.stats, head.programs, head.said)


def _lines(walk: Walk, end: int, reader: _Reader) -> Iterator[Line]:
    for number, _, stop in walk.fields(end):
        if number == PLANE.lines:
            yield _line(walk, stop, reader)


def _line(walk: Walk, end: int, reader: _Reader) -> Line:
    """A line with its head decoded, which comes before its events."""
    number, name, start_ns = 0, "", 0
    while walk.tag(end) != _EVENT_TAG:
        kind, value, stop = walk.field(end)
        if kind == LINE.id:
            number = _signed(value)
        elif kind == LINE.name:
            name = text(walk.take(stop))
        elif kind == LINE.timestamp_ns:
            start_ns = _signed(value)
        walk.pass_to(stop)
        if stop >= end:
            break
    return Line(number, name, start_ns, reader.events(walk, end), reader.texts)


class _Reader:
    """Decodes events of a plane with known names."""

    def __init__(self, head: Head, texts: Texts) -> None:
        self.head, self.texts = head, texts
        # Ids are signed in the format: one that does not fit names nothing.
        wanted = {key: name for key, name in head.names.items() if key < 1 << 63 and (name.lower() in NUMBERS or name.lower() in TEXTS)}
        self.wanted = np.array(sorted(wanted), np.int64)
        self.slots = [wanted[key].lower() for key in sorted(wanted)]
        self.codes: dict[int, dict[int, int]] = {TITLE.name: {}, STAT.ref_value: {}}

    def events(self, walk: Walk, end: int) -> Iterator[Events]:
        """The events of a line up to its end, a block at a time."""
        while walk.offset < end:
            if walk.tag(end) != _EVENT_TAG:
                _, _, stop = walk.field(end)
                walk.pass_to(stop)
                continue
            yield self.decode(*walk.records(end, _EVENT_TAG))

    def decode(self, data: bytes, start: Ints, stop: Ints) -> Events:
        """Whole events in a block."""
        columns = {number: np.zeros(len(start), np.int64) for number in (EVENT.metadata_id, EVENT.offset_ps, EVENT.duration_ps)}
        stats = []
        for found in wire.in_turn(data, start, stop):
            for number in range(int(found.number.min()), min(int(found.number.max()), EVENT.stats) + 1):
                part = found.select_field(number, 2 if number == EVENT.stats else 0)
                if number == EVENT.stats:
                    stats.append(part)
                else:
                    columns[number][part.messages] = part.value
        name = self._named(columns[EVENT.metadata_id], TITLE.name)
        return Events(name, columns[EVENT.offset_ps], columns[EVENT.duration_ps], self._stats(data, len(start), stats) if stats and self.slots else {})

    def _stats(self, data: bytes, n: int, found: list[wire.Fields]) -> dict[str, Ints]:
        owner, start, stop = (np.concatenate([getattr(f, column) for f in found]) for column in ("messages", "start", "stop"))
        key, kind, value, begin, end = (np.zeros(len(owner), np.int64) for _ in range(5))
        for part in wire.in_turn(data, start, stop):
            is_key = part.number == STAT.metadata_id
            key[part.messages[is_key]] = part.value[is_key]
            rest = ~is_key
            rows = part.messages[rest]
            kind[rows], value[rows], begin[rows], end[rows] = part.number[rest], part.value[rest], part.start[rest], part.stop[rest]
        slot = np.minimum(np.searchsorted(self.wanted, key), len(self.wanted) - 1)
        slot[self.wanted[slot] != key] = -1
        columns: dict[str, Ints] = {}
        for i, name in enumerate(self.slots):
            rows = np.flatnonzero(slot == i)
            if len(rows):
                read = self._numbers if name in NUMBERS else self._texts
                columns.setdefault(name, np.full(n, -1, np.int64))[owner[rows]] = read(data, kind[rows], value[rows], begin[rows], end[rows])
        return columns

    def _numbers(self, data: bytes, kind: Ints, value: Ints, begin: Ints, end: Ints) -> Ints:
        """Numbers, also in texts; -1 for other values and for numbers with more than 63 bits."""
        found = np.where((kind == STAT.uint64_value) | (kind == STAT.int64_value), np.maximum(value, -1), -1)
        for row in np.flatnonzero((kind == STAT.str_value) | (kind == STAT.ref_value)).tolist():
            spelled = self._text(data, int(kind[row]), int(value[row]), int(begin[row]), int(end[row]))
            found[row] = int(spelled) if spelled.isdecimal() and len(spelled) < 19 else -1
        return found

    def _texts(self, data: bytes, kind: Ints, value: Ints, begin: Ints, end: Ints) -> Ints:
        found = np.full(len(kind), -1, np.int64)
        named = kind == STAT.ref_value
        found[named] = self._named(value[named], STAT.ref_value)
        for row in np.flatnonzero(~named).tolist():
            found[row] = self.texts.code(self._text(data, int(kind[row]), int(value[row]), int(begin[row]), int(end[row])))
        return found

    def _text(self, data: bytes, kind: int, value: int, begin: int, end: int) -> str:
        if kind == STAT.str_value:
            return data[begin:end].decode("utf-8", "replace")
        return self.head.names.get(value, "") if kind == STAT.ref_value else str(value)

    def _named(self, numbers: Ints, what: int) -> Ints:
        """Codes of the names that numbers represent."""
        known, names = self.codes[what], self.head.titles if what == TITLE.name else self.head.names
        first, group = distinct(numbers)
        codes = []
        for number in numbers[first].tolist():
            code = known.get(number)
            if code is None:
                code = known[number] = self.texts.code(names.get(number, ""))
            codes.append(code)
        return np.array(codes, np.int64)[group]
