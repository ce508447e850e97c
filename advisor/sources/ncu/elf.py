"""The sections of a kernel's binary."""

from __future__ import annotations

import struct
from collections.abc import Iterator

LARGEST_BINARY = 1 << 22
"""Bytes of a binary that are looked at: a Triton kernel's has some ten thousand, a library's many millions."""

_ELF = b"\x7fELF\x02\x01"


def sections_of(binary: memoryview) -> dict[str, memoryview]:
    """Sections by name; none for other than 64-bit ELF files. Raises struct.error, LookupError, ValueError or ArithmeticError if it is damaged."""
    return dict(_sections(binary)) if bytes(binary[:6]) == _ELF else {}


def _sections(binary: memoryview) -> Iterator[tuple[str, memoryview]]:
    """System V ABI, "Sections"."""
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", binary, start + i * size) for i in range(count)]
    names = binary[heads[names_at][4] : heads[names_at][4] + heads[names_at][5]]
    for head in heads:
        name = bytes(names[head[0] : head[0] + 256]).split(b"\0", 1)[0]
        yield name.decode("utf-8", "replace"), binary[head[4] : head[4] + head[5]]
