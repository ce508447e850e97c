"""Files of formats that are decoded in a single piece: their size has a limit, because the decoded objects take several times as much memory."""

from __future__ import annotations

from advisor.errors import TraceError
from advisor.sources.stream import Stream

MOST_BYTES = 500_000_000
"""Unpacked. Measured at 20 MB, the process grows by 7 times a flight recorder's dump, 8 times a tree of Proton and 11 times its trace."""


def read_whole(stream: Stream, path: str, most_bytes: int | None = None) -> bytes:
    """All bytes of a file. Raises TraceError beyond the limit, before anything is decoded."""
    most = MOST_BYTES if most_bytes is None else most_bytes
    parts, held = [], 0
    while part := stream.read(1 << 24):
        held += len(part)
        if held > most:
            raise too_large(path, most)
        parts.append(part)
    return b"".join(parts)


def too_large(path: str, most_bytes: int) -> TraceError:
    """Why a file beyond the limit is not decoded."""
    told = f"{path} unpacks to more than {most_bytes / 1e6:,.0f} MB, and files of this format are decoded in memory as a whole"
    return TraceError(told, "Record fewer steps, or a single process.")
