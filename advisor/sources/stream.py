"""Uncompressed bytes from a file, plain or packed with gzip or zstd, with a limit against bombs."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec
from isal import igzip_lib

from advisor.errors import TraceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = tuple(bytes((kind,)) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))
"""Frames that hold no content, as pzstd and seekable zstd write: RFC 8878, 3.1.2."""
DEFAULT_MAX_BYTES = 16 << 30
"""Uncompressed bytes above which a file is refused: four times the largest trace we know of."""

# Deflate cannot pack tighter than 1032:1, and real traces pack 10:1 to 40:1. A kilobyte of bomb may cost no more than a second.
BOMB_RATIO = 250
BOMB_FLOOR = 32 << 20

# igzip_lib.IsalError, which its stubs do not type as an exception.
_DAMAGED: tuple[type[Exception], ...] = (igzip_lib.IsalError, zstd.ZstdError)  # type: ignore[assignment]


class _Packing(msgspec.Struct, frozen=True):
    """A compression: the first bytes of each member, all of equal length, the factory of its unpacker, and the command that unpacks a file."""

    begins: tuple[bytes, ...]
    unpacker: Callable[[], Any]
    command: str


_GZIP = _Packing((GZIP_MAGIC,), lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), "gunzip -k")
_ZSTD = _Packing((ZSTD_MAGIC, *ZSTD_SKIPPABLE), zstd.ZstdDecompressor, "zstd -dk")


READ_BYTES = 1 << 18  # bytes at once: more reads no faster
_MOST_READ = 1 << 26
"""Greatest number of bytes read at once: Python allocates the requested size before it knows how much there is."""
_FED = 1 << 14
"""Bytes handed to the unpacker at once. At the end of a member the rest is copied, and a file may consist of ends of members."""
# A damaged block loses the output that was under way: keep it small.
_INFLATE = 1 << 17

Progress = Callable[[int, "int | None"], None]


class Stream:
    """Reads `file` as uncompressed bytes.

    `size` is the size of the file in bytes if known; `progress(done, size)` is called with bytes of the file.
    `truncated` describes a fault of the compression once the end is reached, "" if there is none."""

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
        self.trailing = ""
        """Bytes after the last whole member that are neither padding nor another member, "" if there are none: known once the end is reached."""
        first = self._read_file()
        self._packing = next((packing for packing in (_GZIP, _ZSTD) if first.startswith(packing.begins)), None)
        self._inflater = self._packing.unpacker() if self._packing else None
        self._input, self._at = first, 0

    @property
    def compressed(self) -> bool:
        """Whether the file is packed, with gzip or zstd."""
        return self._packing is not None

    @property
    def unpacked_by(self) -> str:
        """The command that unpacks the file next to it."""
        return self._packing.command if self._packing else ""

    @property
    def expected(self) -> int:
        """Number of uncompressed bytes, as far as known by now."""
        return max(self.total, self.total * self._size // max(self.packed, 1)) if self._size else self.total

    def peek(self, n: int) -> bytes:
        """The next `n` bytes, fewer at the end, without taking them."""
        head = self.read(n)
        self._ready = head + self._ready
        return head

    def read(self, n: int) -> bytes:
        """Take the next `n` bytes; fewer only at the end.

        Raises TraceError if the file unpacks to more than the limit.
        """
        parts, have = [self._ready] if self._ready else [], len(self._ready)
        while have < n and not self._ended:
            block = self._inflate() if self._packing else self._plain(n - have)
            if not self.total:
                block = block.removeprefix(codecs.BOM_UTF8)  # which some editors and shells put before a text
            self.total += len(block)
            self._check_limit()
            parts.append(block)
            have += len(block)
        data = b"".join(parts)
        self._ready = data[n:]
        return data[:n]

    def _read_file(self, n: int = READ_BYTES) -> bytes:
        try:
            block = self._file.read(n)
        except OSError as error:
            raise TraceError(f"the file cannot be read: {error.strerror or error}", "Check the disk and copy the file again.") from None
        self.packed += len(block)
        if self._progress is not None:
            self._progress(self.packed, self._size)
        return block

    def _plain(self, n: int) -> bytes:
        block, self._input = self._input or self._read_file(min(max(n, READ_BYTES), _MOST_READ)), b""
        self._ended = not block
        return block

    def _inflate(self) -> bytes:
        """A block of output, b"" if more input is needed or the end is reached."""
        inflater = self._inflater
        assert inflater is not None
        if inflater.eof:
            return self._next_member(len(inflater.unused_data))
        block = b""
        if inflater.needs_input:
            block = self._fed()
            if not block:
                self._stop(f"its compressed data stops at byte {self.packed:,} of the file, before its end")
                return b""
        try:
            return bytes(inflater.decompress(block, _INFLATE))
        except _DAMAGED as error:
            self._stop(f"its compressed data is damaged before byte {self.packed:,} of the file ({error})")
            return b""

    def _fed(self) -> bytes:
        """The next bytes as they lie in the file, b"" at its end."""
        if self._at >= len(self._input):
            self._input, self._at = self._read_file(), 0
        block = self._input[self._at : self._at + _FED]
        self._at += len(block)
        return block

    def _next_member(self, unused: int) -> bytes:
        """Continue with the next member, `unused` bytes back. Zeros after the last member are padding, as on tapes. Other bytes are left and
        reported, as gunzip does."""
        assert self._packing is not None
        begins = self._packing.begins
        self._at -= unused
        while len(self._input) - self._at < len(begins[0]) and (more := self._read_file()):
            self._input, self._at = self._input[self._at :] + more, 0
        if self._input.startswith(begins, self._at):
            self._inflater = self._packing.unpacker()
            return b""
        self._ended, at, rest = True, self.packed - (len(self._input) - self._at), self._input[self._at :]
        while rest and not rest.strip(b"\0"):
            at, rest = self.packed, self._read_file()
        if rest:
            self.trailing = f"what follows byte {at:,} of the file is neither padding nor packed as what is before it, and was not read"
        return b""

    def _stop(self, why: str) -> None:
        self.truncated = why
        self._ended = True

    def _check_limit(self) -> None:
        if self.total > self._max_bytes:
            raise TraceError(
                f"the file holds more than {self._max_bytes:,} bytes{' uncompressed' if self._packing else ''}, the limit",
                f"If you trust it, raise the limit above that (--max-gib on the command line, max_bytes in Python, now {self._max_bytes:,}).",
            )
        # Whoever raises the limit above its default says that they trust the file.
        trusted = self._max_bytes > DEFAULT_MAX_BYTES
        if self._packing and not trusted and self.total > BOMB_FLOOR and self.total > BOMB_RATIO * self.packed:
            raise TraceError(
                f"the file unpacks to more than {BOMB_RATIO} times its size ({self.packed:,} to {self.total:,} bytes so far), as no trace does",
                f"It looks like a bomb. If you trust it, raise the limit: --max-gib {DEFAULT_MAX_BYTES / 2**30 + 1:.0f}, or max_bytes above {DEFAULT_MAX_BYTES:,}.",
            )
