"""Files of formats that are decoded in a single piece: their size has a limit, because the decoded objects take several times as much memory."""

from __future__ import annotations

from advisor.errors import TraceError
from advisor.sources.stream import Stream

MOST_BYTES = 500_000_000
"""Unpacked bytes. Measured at 20 MB, the process grows by 7 times a flight recorder's dump, 8 times a tree of Proton, and 11 times its trace.
A larger trace of Proton is decoded in pieces and takes 4 times its size."""


def read_whole(stream: Stream, path: str, instead: str = "") -> bytes:
    """All bytes of a file. Raises TraceError beyond the limit, before anything is decoded. instead: how to record a smaller one."""
    data = read_up_to_limit(stream)
    if isinstance(data, PartlyRead):
        raise too_large(path, MOST_BYTES, instead)
    return data


class PartlyRead:
    """A file with its first parts already read."""

    def __init__(self, parts: list[bytes], rest: Stream) -> None:
        self._parts, self._rest = parts[::-1], rest

    def read(self, size: int, /) -> bytes:
        """The next part that was read before, whatever its size, then the rest."""
        return self._parts.pop() if self._parts else self._rest.read(size)


def read_up_to_limit(stream: Stream) -> bytes | PartlyRead:
    """All bytes of a file, or a reader of a larger file from its beginning."""
    parts, held = [], 0
    while part := stream.read(1 << 24):
        parts.append(part)
        held += len(part)
        if held > MOST_BYTES:
            return PartlyRead(parts, stream)
    return b"".join(parts)


def too_large(path: str, most_bytes: int, instead: str = "") -> TraceError:
    """Why a file beyond the limit is not decoded."""
    told = f"{path} unpacks to more than {most_bytes / 1e6:,.0f} MB, and files of this format are decoded in memory as a whole"
    return TraceError(told, instead or "Record fewer steps, or a single process.")
