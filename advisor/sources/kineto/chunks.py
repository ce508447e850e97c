"""Cuts the text of a trace into pieces of whole events, and finds the text around them.

Cuts are guessed from the separator that the file itself uses, and the decode validates every guess: a
prefix of a list of events that was cut anywhere but after a whole event is not JSON. If a guess is wrong, the
exact structure decides. If the text itself is broken, `salvage` keeps as much as possible."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

from advisor.sources.kineto.events import MalformedError
from advisor.sources.kineto.salvage import Salvaged, salvage
from advisor.sources.kineto.structure import Objects, brackets, objects

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


QUEUED = 3
"""Pieces given at once to a process or to each thread: the decoded piece, and two in the queue, so that it never waits."""
MOST_PENDING = 3 * QUEUED
"""Pieces that may wait for one that is decoded elsewhere, some megabytes: of three threads. More wait for the one that reads and merges."""


class Elsewhere(Protocol[T_co]):
    """Decodes pieces at the same time and gives the results in order (see `helper` and `threads`)."""

    @property
    def closed(self) -> bool: ...

    @property
    def free(self) -> bool: ...

    @property
    def ready(self) -> bool: ...

    def submit(self, piece: bytes) -> bool: ...

    def result(self) -> T_co | None: ...

    def close(self) -> None: ...


CHUNK_BYTES = 960 << 10
"""Text decoded at once. From 0.25 to 4 MiB it makes no difference to the time; this fits into the pipe to a helper."""

# An event is a few hundred bytes, with a long call stack a few thousand: beyond this it is a quote that was never closed.
MAX_EVENT_BYTES = 32 << 20

# Metadata before and after the events is a few kilobytes; a file without events must not be read into memory whole.
MAX_HEADER_BYTES = 8 << 20
MAX_TRAILER_BYTES = 16 << 20

_SAMPLE_BYTES = 1 << 17  # of which the separator of events is learned: some hundreds of them
_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"')
_BLANK = b" \t\r\n"


def find_events(text: bytes) -> int:
    """Start of the list of events (after its bracket) in the text of a file, or -1.

    That is the top-level member `traceEvents`, even if the name occurs elsewhere, or a list at the top level."""
    body = text.lstrip(_BLANK)
    if body.startswith(b"["):
        return len(text) - len(body) + 1
    keys = [match.span() for match in _KEY.finditer(text)]
    if not keys:
        return -1
    found = brackets(text[: keys[-1][1]])
    at = np.array([start for start, _ in keys], np.int64)
    right = np.flatnonzero(~found.in_string(at) & (found.depth_at(at) == 1))
    return keys[int(right[0])][1] if right.size else -1


def learn_separator(text: bytes, found: Objects) -> bytes:
    """The most frequent text from an event's closing brace through the next event's first key; b"" without two events."""
    seen: Counter[bytes] = Counter()
    for end, start in zip(found.ends[:-1].tolist(), found.starts[1:].tolist(), strict=False):  # broken text: not each has both
        key = _FIRST_KEY.match(text, start)
        seen[text[end - 1 : key.end() if key else start + 1]] += 1
    return seen.most_common(1)[0][0] if seen else b""


class _Pending(msgspec.Struct, Generic[T]):
    """A piece without a delivered result, and the position in the text before its last block was read."""

    piece: bytes
    before: tuple[bytes, int, int]
    gap: bytes = b""
    """The text between it and what comes after it."""
    value: T | MalformedError | None = None
    """None while it is decoded elsewhere."""


def _settled(entry: _Pending[T], decode: Callable[[bytes], T], elsewhere: Elsewhere[T]) -> T:
    if isinstance(entry.value, MalformedError):
        raise entry.value
    value = entry.value if entry.value is not None else elsewhere.result()
    return value if value is not None else decode(entry.piece)


class Text:
    """The text of a trace: `header` up to the events, the events, `trailer` after them.

    `read(n)` gives the next n bytes, fewer only at the end.
    """

    def __init__(self, read: Callable[[int], bytes], chunk_bytes: int = CHUNK_BYTES) -> None:
        self._source = read
        self._again = b""  # read ahead and given back
        self._chunk = chunk_bytes
        self._separator = b""
        self._buffer = b""
        self._offset = 0  # of the buffer in the uncompressed file
        self._lost = False
        self.end = 0
        """Byte of the uncompressed file after the last event that is done with."""
        self.header = b""
        self.trailer = b""
        self.found = False
        """Whether there is a list of events."""
        self.closed = False
        """Whether that list has its end."""
        self.whole = False
        """Whether nothing of it is missing: it has its end, or is a list at the top level, which needs none."""
        self.bad = 0
        """Events that no parser could make sense of."""
        self.first_bad = -1
        """Byte of the uncompressed file at which the first of them starts."""
        self._find_header()

    @property
    def bare(self) -> bool:
        """Whether the events are a list at the top level."""
        return self.header.strip(_BLANK) == b"["

    def _find_header(self) -> None:
        text, want = b"", max(self._chunk, 1)
        while True:
            block = self._read(want)
            text += block
            start = find_events(text)
            if start >= 0:
                self.header, self._buffer, self._offset, self.found = text[:start], text[start:], start, True
                return
            if not block or len(text) > MAX_HEADER_BYTES:
                self.header = text
                return
            want = len(text)  # twice as much each time: the whole search stays linear

    def _read(self, n: int) -> bytes:
        if not self._again:
            return self._source(n)
        block, self._again = self._again[:n], self._again[n:]
        return block + self._source(n - len(block)) if len(block) < n else block

    def decoded(self, decode: Callable[[bytes], T], *elsewhere: Elsewhere[T]) -> Iterator[T]:
        """Decode all events, piece by piece. `decode` raises MalformedError for any text but `{…}, {…}`.

        Pieces decoded elsewhere have the same cuts and come in the same order. Who closes that gets its other pieces decoded here."""
        want, ended = self._chunk, not self.found
        while not (ended and not self._buffer.strip(_BLANK + b",")):
            for other in elsewhere:
                if self._separator and want == self._chunk and not (ended or self._lost) and other.free:
                    yield from self._together(decode, other)
            block = b"" if ended else self._read(want)
            ended = not block
            before = self._offset
            piece, rest = (b"", self._buffer) if ended else self._cut(block)
            try:
                if piece:
                    yield decode(piece)
                    self._buffer = rest
                    self._advance(0, len(piece))
                else:
                    self._buffer = rest
            except MalformedError:
                piece, self._buffer = b"", piece + rest
            if self._lost:
                yield from self._salvage(decode, ended)
            elif not piece:
                yield from self._exact(decode, ended)
            if self.closed:
                break
            progressed = self._offset > before
            if ended and not progressed:
                break
            want = self._chunk if progressed else min(2 * max(want, len(self._buffer)), MAX_EVENT_BYTES)
        self._take_trailer()

    def _together(self, decode: Callable[[bytes], T], elsewhere: Elsewhere[T]) -> Iterator[T]:
        """Decode pieces here and elsewhere while every guess is right and that is open; then are before the first piece that is not done."""
        pending: deque[_Pending[T]] = deque()
        more = True
        while more or pending:
            if more:
                before = self._buffer, self._offset, self.end
                block = self._read(self._chunk)
                piece, rest = self._cut(block) if block else (b"", b"")
                more = bool(piece)
                if piece:
                    entry: _Pending[T] = _Pending(piece, before)
                    if not (elsewhere.free and elsewhere.submit(piece)):
                        try:
                            entry.value = decode(piece)
                        except MalformedError as error:
                            entry.value, more = error, False
                    pending.append(entry)
                    self._buffer = rest
                    self._advance(0, len(piece))
                    entry.gap = rest[: len(rest) - len(self._buffer)]
                else:
                    self._again = block + self._again
                    self._buffer = before[0]
            while pending and (not more or len(pending) > MOST_PENDING or pending[0].value is not None or elsewhere.ready):
                try:
                    value = _settled(pending[0], decode, elsewhere)
                except MalformedError:
                    self._give_back(pending)
                    elsewhere.close()
                    return
                pending.popleft()
                yield value
                if elsewhere.closed:
                    if pending:
                        self._give_back(pending)
                    return

    def _give_back(self, pending: deque[_Pending[T]]) -> None:
        """Be before these pieces again."""
        text = b"".join([part for entry in pending for part in (entry.piece, entry.gap)]) + self._buffer
        self._buffer, self._offset, self.end = pending[0].before
        self._again = text[len(self._buffer) :] + self._again

    def _cut(self, block: bytes) -> tuple[bytes, bytes]:
        """The buffer and the text read after it, cut at the last separator; nothing and all of it if none is known or found."""
        cut = block.rfind(self._separator) if self._separator and not self._lost else -1
        if cut >= 0:  # mostly: the block is copied once
            return b"".join((self._buffer, memoryview(block)[: cut + 1])), block[cut + 1 :]
        self._buffer += block
        piece = b"" if self._lost else self._guess()
        return piece, self._buffer[len(piece) :]

    def _guess(self) -> bytes:
        """The buffer up to the last separator in it."""
        if not self._separator:
            sample = self._buffer[:_SAMPLE_BYTES]
            self._separator = learn_separator(sample, objects(sample))
        cut = self._buffer.rfind(self._separator) if self._separator else -1
        return self._buffer[: cut + 1]

    def _advance(self, n: int, done: int = 0) -> None:
        """Leave out the next n bytes, after `done` that are out of the buffer already."""
        self._buffer = self._buffer[n:]
        self._offset += done + n
        self.end = self._offset if done + n else self.end
        blank = len(self._buffer) - len(self._buffer.lstrip(_BLANK + b","))
        self._buffer = self._buffer[blank:]
        self._offset += blank

    def _exact(self, decode: Callable[[bytes], T], ended: bool) -> Iterator[T]:
        """Decode the whole events that the exact structure shows; salvage if that is not JSON."""
        found = objects(self._buffer)
        last = int(found.ends[-1]) if found.starts.size and found.ends.size else 0  # brackets of two kinds that close each other are no event
        if last:
            try:
                yield decode(self._buffer[int(found.starts[0]) : last])
            except MalformedError:
                yield from self._salvage(decode, ended)
                return
        if found.stop >= 0:
            self.closed = True
            self._advance(last)
        elif last:
            self._advance(last)
        elif ended or not found.sound or len(self._buffer) >= MAX_EVENT_BYTES:
            yield from self._salvage(decode, ended)

    def _salvage(self, decode: Callable[[bytes], T], ended: bool) -> Iterator[T]:
        patient = not ended and len(self._buffer) < MAX_EVENT_BYTES
        kept: Salvaged = salvage(self._buffer, patient, ended, self._lost)
        if kept.bad and not self.bad:
            self.first_bad = self._offset + kept.first_bad
        self.bad += kept.bad
        self._lost = kept.lost
        if kept.events:
            yield decode(b",".join(kept.events))
        self.closed = kept.closed
        self._advance(kept.used)

    def _take_trailer(self) -> None:
        """Keep the text after the events; nothing if the list was not closed."""
        self.whole = self.closed or (self.bare and not self._buffer.strip(_BLANK + b","))
        if self.closed:
            rest = self._buffer + self._read(MAX_TRAILER_BYTES)
            self.trailer = rest.lstrip(_BLANK + b",").removeprefix(b"]")
            while self._read(CHUNK_BYTES):
                pass  # the stream's own total and limit still count
        self._buffer = b""
