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

    size_bytes: of the file on disk, 0 if unknown. max_bytes: greatest unpacked size.

    processes: greatest number of reading threads and processes. unpack: the command that unpacks its archive, "" if it is in none."""

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
        """Raise TraceError if the file on disk is larger than the limit, for sources that open it themselves."""
        if self.size_bytes > self.max_bytes:
            raise TraceError(
                f"{self.path} holds {self.size_bytes:,} bytes, more than {self.max_bytes:,}, the limit",
                f"If you trust it, raise the limit above that (--max-gib on the command line, max_bytes in Python, now {self.max_bytes:,}).",
            )

    def check_seekable(self, what: str) -> None:
        """Raise TraceError if a source must open the file by its path, but it is piped in or compressed."""
        if self.path == STANDARD_INPUT:
            raise TraceError(f"{what} cannot be read from standard input", "Give the path of the file.")
        if unpack := self.unpack or self.stream.unpacked_by:
            raise TraceError(f"{self.path} is {what}, compressed, and cannot be opened directly", f"Unpack it first: {unpack} {self.path}")


class Source(Protocol):
    """Content of a source's package. It has `CHECKED` if its recordings were checked for damage before they were written."""

    def record(self, opened: Opened, /) -> Recording:
        """The content of the file. Raises TraceError if it is damaged or holds nothing to analyze."""
