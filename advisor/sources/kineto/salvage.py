"""Keeps as many events as possible from text that is not JSON.

Traces of users contain NaN and Infinity, raw control characters, bytes that are not UTF-8, and lone surrogates. The
standard library can still read these. They also contain unescaped quotes inside names, which nothing can read: such an event is
dropped, and reading continues at the next event."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from advisor.sources.kineto.events import MalformedError, parse

# From one event to the next in any layout, commas that are missing or doubled included.
_GAP = re.compile(rb'\}[\s,]*(?=\{\s*")')
_EVENT_START = re.compile(rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|bp|s)"\s*:')
_BETWEEN = re.compile(r"[\s,]*")
_LIST_END = re.compile(r"\s*\]")

# The end of the list after an event that is lost: other members of the file follow, or nothing.
_END_AFTER_LOST = re.compile(rb'\}\s*\](?=\s*(?:,\s*"\w+"\s*:|\}?\s*\Z))')

# A gap inside an event (a list of objects among its arguments) is bridged by joining this many candidates at most.
_JOIN = 4

_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


class Salvaged(msgspec.Struct):
    """Events that `parse` accepts; length of the processed text; number of lost events, and position of the first."""

    events: list[bytes] = msgspec.field(default_factory=list)
    used: int = 0
    closed: bool = False
    bad: int = 0
    first_bad: int = -1
    lost: bool = False
    """Whether what follows may still be part of an event that is lost."""


class _Read(msgspec.Struct, frozen=True):
    """The content of a candidate: its events, and whether the list ended after them, with the position in bytes."""

    events: list[bytes]
    list_end: int = -1


_REST = _Read([])


def salvage(text: bytes, patient: bool, ended: bool, lost: bool = False) -> Salvaged:
    """Read the events of `text` in turn; `lost` is that of the text before it.

    `ended`: the file ends with it. Then an incomplete last event counts as cut off, not as
    lost. `patient`: more text is available for an event that may continue."""
    kept = Salvaged(lost=lost)
    starts = [0, *(match.end() for match in _GAP.finditer(text))]
    bounds = [*starts, len(text)]
    last = len(starts) - 1
    i = 0
    while i <= last:
        if i == last and not ended and (patient or i):
            break
        read, joined = _read_joined(text, bounds, i, last if ended else last - 1)
        if read is not None and kept.lost and not _is_event(read.events[0]):
            # What is left of an event that was lost: objects within its arguments.
            read, joined = _REST, 1
        if read is None:
            if patient and i + _JOIN > last:
                break
            if i == last and ended and not _close_after_lost(kept, text, bounds[i]):
                break
            if not kept.lost or _EVENT_START.match(text, bounds[i]):
                kept.bad += 1
                kept.first_bad = bounds[i] if kept.first_bad < 0 else kept.first_bad
            kept.lost = True
            if kept.closed:
                return kept
        else:
            kept.lost = kept.lost and read is _REST
            kept.events += read.events
            if read.list_end >= 0:
                kept.closed, kept.used = True, bounds[i] + read.list_end
                return kept
        i += joined
    kept.used = bounds[min(i, last + 1)]
    return kept


def _is_event(text: bytes) -> bool:
    """Whether an object looks like an event: all have a phase and a process."""
    event = parse(text)[0]
    return len(event.ph) == 1 and event.pid is not None


def _close_after_lost(kept: Salvaged, text: bytes, start: int) -> bool:
    """Whether the list ends after the file's last event, which is lost; false if that event is merely cut off."""
    end = _END_AFTER_LOST.search(text, start)
    if end is not None:
        kept.closed, kept.used = True, end.end() - 1
    return end is not None


def _read_joined(text: bytes, bounds: list[int], i: int, last: int) -> tuple[_Read | None, int]:
    """Read the candidate `i`, joined with those after it if it is not valid alone."""
    for joined in range(1, max(min(_JOIN, last - i + 1), 1) + 1):
        read = _read(text[bounds[i] : bounds[i + joined]])
        if read is not None:
            return read, joined
    return None, 1


def _read(candidate: bytes) -> _Read | None:
    body = candidate.rstrip(b" \t\r\n,")
    if not body.endswith(b"}") or _parses(body) is False:
        return _read_leniently(candidate)
    return _Read([body])


def _read_leniently(candidate: bytes) -> _Read | None:
    """Read objects as the standard library does, until the list ends or nothing is left; None if not even a single object can be read."""
    text = candidate.decode("utf-8", "surrogateescape")
    events: list[bytes] = []
    at = 0
    while at < len(text):
        if events and (end := _LIST_END.match(text, at)):
            return _Read(events, len(text[: end.end() - 1].encode("utf-8", "surrogateescape")))
        try:
            start = _skip(text, at)
            item, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        if isinstance(item, dict):
            events.append(_rewrite(item, text[start:at]))
        at = _skip(text, at) if not _LIST_END.match(text, at) else at
    return _Read(events) if events else None


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _rewrite(item: dict[str, Any], text: str) -> bytes:
    """The event as `parse` accepts it: unchanged if possible, which keeps every digit."""
    original = text.encode("utf-8", "surrogateescape")
    return original if _parses(original) else json.dumps(item, ensure_ascii=False).encode("utf-8", "replace")


def _parses(text: bytes) -> bool:
    try:
        return bool(parse(text))
    except MalformedError:
        return False
