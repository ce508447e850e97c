"""A protobuf message walked from its beginning to its end as it comes, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.errors import TraceError
from advisor.intervals import Ints
from advisor.sources.jax import wire
from advisor.sources.limits import LONGEST_VARINT
from advisor.sources.stream import Stream

_BLOCK = 4 << 20
"""Bytes that are held at once; larger makes nothing faster."""

_LONGEST_EVENT = 256 << 20
"""No field that is taken whole is larger than this: a length that says so is damage."""

_OPEN = 1 << 62  # beyond every position: the field's end is not known yet


class Walk:
    """A position in a stream of bytes, and the next fields. Raises ValueError if there is no message."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._data = b""
        self._here = 0
        self._before = 0

    @property
    def offset(self) -> int:
        """Bytes from the beginning of the stream."""
        return self._before + self._here

    def fields(self, end: int = _OPEN) -> Iterator[tuple[int, int, int]]:
        """Number of each field up to `end`, its number (0 for bytes) and its end. Bytes that a consumer leaves are skipped."""
        while self.offset < end and (end != _OPEN or self._fill(1)):
            number, value, stop = self.field(end)
            yield number, value, stop
            self.pass_to(stop)

    def field(self, end: int) -> tuple[int, int, int]:
        """The field that begins here: number, value (0 for bytes, which come next), if it stops."""
        key = self._varint()
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError("a field has the number 0")
        value = size = 0
        if kind == 0:
            value = self._varint()
        elif kind == 2:
            size = self._varint()
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has wire type {kind}, which is none")
        stop = self.offset + size
        if stop > end:
            raise ValueError(f"a field says that it has {size:,} bytes where {max(end - self.offset, 0):,} are left")
        return number, value, stop

    def tag(self, end: int) -> int:
        """The first byte of what begins here, -1 at `end`."""
        if self.offset >= end:
            return -1
        self._need(1)
        return self._data[self._here]

    def take(self, stop: int) -> memoryview:
        """The bytes from here to `stop`."""
        size = stop - self.offset
        if size > _LONGEST_EVENT:
            raise ValueError(f"a field says that it has {size:,} bytes")
        self._need(size)
        taken = memoryview(self._data[self._here : self._here + size])
        self._here += size
        return taken

    def pass_to(self, stop: int) -> None:
        """Go on at `stop`."""
        while self.offset < stop:
            self._need(1)
            self._here += min(stop - self.offset, len(self._data) - self._here)

    def records(self, end: int, tag: int) -> tuple[bytes, Ints, Ints]:
        """The consecutive whole messages of a repeated field in a block: its bytes, and the messages' begins and ends."""
        self._fill(min(end - self.offset, _BLOCK))
        while True:
            limit = min(len(self._data), end - self._before)
            data = self._data[self._here : limit] + wire.PADDING
            starts, stops = wire.records(data, 0, limit - self._here, tag)
            if len(starts):
                self._here += int(stops[-1])
                return data, starts, stops
            if limit == end - self._before or limit - self._here > _LONGEST_EVENT:
                raise ValueError("a message goes on behind the end of what holds it")
            self._need(limit - self._here + 1)

    def _varint(self) -> int:
        value = 0
        for i in range(LONGEST_VARINT):
            self._need(1)
            byte = self._data[self._here]
            self._here += 1
            value |= (byte & 127) << (7 * i)
            if byte < 128:
                return value
        raise ValueError("a number does not end")

    def _need(self, size: int) -> None:
        if not self._fill(size):
            raise ValueError(f"it stops at byte {self._before + len(self._data):,}, inside a message")

    def _fill(self, size: int) -> bool:
        """Whether so many bytes are at hand, once more were read."""
        left = len(self._data) - self._here
        if left >= size:
            return True
        more = self._stream.read(max(_BLOCK, size - left))
        self._before += self._here
        self._data, self._here = self._data[self._here :] + more, 0
        if len(self._data) < size and self._stream.truncated:
            raise TraceError(f"the file is cut off: {self._stream.truncated}", "Copy the file again, or record it again.")
        return len(self._data) >= size
