"""A file as every source gets it: opened, its first bytes looked at, nothing taken yet."""

from __future__ import annotations

from typing import Protocol

import msgspec

from advisor.errors import TraceError
from advisor.recordings.recording import Recording
from advisor.sources.stream import Stream

STDIN = "-"
STANDARD_INPUT = "standard input"


class Opened(msgspec.Struct, frozen=True):
    """path: of the file, or `STANDARD_INPUT`. stream: its bytes, unpacked if they are packed. head: the first of them.
    size_bytes: of the file as it lies, 0 if that is not known. max_bytes: the most that it may hold unpacked.
    processes: how many may read it at once. unpack: the command that unpacks the archive which holds it, "" if none does."""

    path: str
    stream: Stream
    head: bytes
    size_bytes: int
    max_bytes: int
    processes: int = 1
    unpack: str = ""

    @property
    def reopens(self) -> bool:
        """Whether its path opens it again."""
        return self.path != STANDARD_INPUT and not self.unpack

    def check_size(self) -> None:
        """Raise TraceError where the file as it lies is larger than the limit, for sources that open it themselves."""
        if self.size_bytes > self.max_bytes:
            raise TraceError(
                f"{self.path} holds {self.size_bytes:,} bytes, more than {self.max_bytes:,}, the limit",
                f"If you trust it, raise the limit above that (--max-gib on the command line, max_bytes in Python, now {self.max_bytes:,}).",
            )

    def check_seekable(self, what: str) -> None:
        """Raise TraceError where a source must open the file by its path, but it is piped in or compressed."""
        if self.path == STANDARD_INPUT:
            raise TraceError(f"{what} cannot be read from standard input", "Give the path of the file.")
        if unpack := self.unpack or self.stream.unpacked_by:
            raise TraceError(f"{self.path} is {what}, compressed, and cannot be opened directly", f"Unpack it first: {unpack} {self.path}")


class Source(Protocol):
    """What a source's package holds; and `CHECKED`, where its recordings were checked for damage before they were written."""

    def record(self, opened: Opened, /) -> Recording:
        """What the file holds. Raises TraceError if it is damaged or holds nothing to analyse."""
