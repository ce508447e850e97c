"""Uncompressed bytes from a file, plain or packed with gzip or zstd, with a limit against bombs."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from isal import igzip_lib

from advisor.errors import TraceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
DEFAULT_MAX_BYTES = 16 << 30
"""Uncompressed bytes above which a file is refused: four times the largest trace we know of."""

# Deflate cannot pack tighter than 1032:1, and real traces pack 10:1 to 40:1. A kilobyte of bomb may cost no more than a second.
_BOMB_RATIO = 250
_BOMB_FLOOR = 32 << 20

# igzip_lib.IsalError, which its stubs do not type as an exception.
_DAMAGED: tuple[type[Exception], ...] = (igzip_lib.IsalError, zstd.ZstdError)  # type: ignore[assignment]


def _unpacker(first: bytes) -> tuple[bytes, Any]:
    """What the packing of a file that starts so begins with, and what unpacks it: both the same methods. None where it is not packed."""
    if first.startswith(GZIP_MAGIC):
        return GZIP_MAGIC, igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    if first.startswith(ZSTD_MAGIC):
        return ZSTD_MAGIC, zstd.ZstdDecompressor()
    return b"", None


_READ = 1 << 18
_MOST_READ = 1 << 26
"""Read at once, however much is asked for: Python sets aside what is asked before it knows how much there is."""
# A damaged block loses the output that was under way: keep it small.
_INFLATE = 1 << 17

Progress = Callable[[int, "int | None"], None]


class Stream:
    """Reads `file` as uncompressed bytes.

    `size` is the size of the file in bytes where known; `progress(done, size)` is called with bytes of the file.
    `truncated` says what is wrong with the compression once the end is reached, "" if nothing is.
    """

    def __init__(self, file: BinaryIO, size: int | None = None, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None) -> None:
        self._file = file
        self._size = size
        self._max_bytes = max_bytes
        self._progress = progress
        self._ready = b""
        self._ended = False
        self.total = 0
        """Uncompressed bytes so far, those that were only peeked at included."""
        self.packed = 0
        """Bytes of the file read so far."""
        self.truncated = ""
        first = self._read_file()
        self._magic, self._inflater = _unpacker(first)
        self._input = first

    @property
    def compressed(self) -> bool:
        """Whether the file is packed, with gzip or zstd."""
        return bool(self._magic)

    @property
    def unpacked_by(self) -> str:
        """The command that unpacks the file beside it."""
        return "zstd -dk" if self._magic == ZSTD_MAGIC else "gunzip -k"

    @property
    def expected(self) -> int:
        """Uncompressed bytes in all, as far as it can be told by now."""
        return max(self.total, self.total * self._size // max(self.packed, 1)) if self._size else self.total

    def peek(self, n: int) -> bytes:
        """The next `n` bytes, fewer at the end, without taking them."""
        head = self.read(n)
        self._ready = head + self._ready
        return head

    def read(self, n: int) -> bytes:
        """Take the next `n` bytes; fewer only at the end.

        Raises TraceError where the file unpacks to more than the limit.
        """
        parts, have = [self._ready] if self._ready else [], len(self._ready)
        while have < n and not self._ended:
            block = self._inflate() if self._magic else self._plain(n - have)
            if not self.total:
                block = block.removeprefix(codecs.BOM_UTF8)  # which some editors and shells put before a text
            self.total += len(block)
            self._check_limit()
            parts.append(block)
            have += len(block)
        data = b"".join(parts)
        self._ready = data[n:]
        return data[:n]

    def _read_file(self, n: int = _READ) -> bytes:
        try:
            block = self._file.read(n)
        except OSError as error:
            raise TraceError(f"the file cannot be read: {error.strerror or error}", "Check the disk and copy the file again.") from None
        self.packed += len(block)
        if self._progress is not None:
            self._progress(self.packed, self._size)
        return block

    def _plain(self, n: int) -> bytes:
        block, self._input = self._input or self._read_file(min(max(n, _READ), _MOST_READ)), b""
        self._ended = not block
        return block

    def _inflate(self) -> bytes:
        """One block of output, b"" where more input is needed or the end is reached."""
        inflater = self._inflater
        assert inflater is not None
        if inflater.eof:
            return self._next_member(inflater.unused_data)
        block = b""
        if inflater.needs_input:
            block, self._input = self._input or self._read_file(), b""
            if not block:
                self._stop(f"its compressed data stops at byte {self.packed:,} of the file, before its end")
                return b""
        try:
            return bytes(inflater.decompress(block, _INFLATE))
        except _DAMAGED as error:
            self._stop(f"its compressed data is damaged before byte {self.packed:,} of the file ({error})")
            return b""

    def _next_member(self, unused: bytes) -> bytes:
        """Go on with the next member; padding and anything else after the last one is ignored, as gunzip does."""
        following = unused or self._read_file()
        while self._magic.startswith(following[: len(self._magic)]) and 0 < len(following) < len(self._magic) and (more := self._read_file()):
            following += more
        if following.startswith(self._magic):
            _, self._inflater = _unpacker(following)
            self._input = following
        else:
            self._ended = True
        return b""

    def _stop(self, why: str) -> None:
        self.truncated = why
        self._ended = True

    def _check_limit(self) -> None:
        if self.total > self._max_bytes:
            raise TraceError(
                f"the file holds more than {self._max_bytes:,} bytes{' uncompressed' if self._magic else ''}, the limit",
                f"If you trust it, raise the limit above that (--max-gib on the command line, max_bytes in Python, now {self._max_bytes:,}).",
            )
        # Whoever raises the limit above its default says that they trust the file.
        trusted = self._max_bytes > DEFAULT_MAX_BYTES
        if self._magic and not trusted and self.total > _BOMB_FLOOR and self.total > _BOMB_RATIO * self.packed:
            raise TraceError(
                f"the file unpacks to more than {_BOMB_RATIO} times its size ({self.packed:,} to {self.total:,} bytes so far), as no trace does",
                f"It looks like a bomb. If you trust it, set max_bytes above {DEFAULT_MAX_BYTES:,}.",
            )
