"""A binary with the file and line of its kernel and the flags of its compiler: all that stays of a kernel's binary in a redacted report.

A 64-bit ELF file with an empty kernel, a table of names, a single-row line table (DWARF 4, section 6.2), and the compiler's note.
`sources/ncu/lines.py` and `flags.py` read it."""

from __future__ import annotations

import struct

from advisor.recordings.kernel_profiles import Flags
from advisor.sources.ncu.flags import NOTE, note_of

_NOTE = NOTE.encode()
_NAMES = b"\0.text.k\0.debug_line\0" + _NOTE + b"\0.shstrtab\0"
_HEADER = 64  # bytes of an ELF header, 64 bits
_OPERANDS = bytes([0, 1, 1, 1, 1, 0, 0, 0, 1])
"""How many operands the standard opcodes take."""
_COPY, _ADVANCE_LINE = 1, 3  # DWARF 5: DW_LNS_copy and DW_LNS_advance_line


def binary_of(place: tuple[str, int] | None, flags: Flags | None = None) -> bytes:
    """The binary of a kernel at that file and line, compiled so."""
    table = _line_table(*place) if place else b"" if flags is None or not flags.lines else bytes(4)
    said = [(b".debug_line", table), (_NOTE, note_of(flags) if flags else b"")]
    sections = [(b"", b""), (b".text.k", b"\0"), *(section for section in said if section[1]), (b".shstrtab", _NAMES)]
    at, heads, held = _HEADER, [], b""
    for name, data in sections:
        heads.append(struct.pack("<IIQQQQ24x", _NAMES.index(name + b"\0"), 1 if data else 0, 0, 0, at, len(data)))
        held, at = held + data, at + len(data)
    return b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", at) + bytes(10) + struct.pack("<HHH", 64, len(heads), len(heads) - 1) + held + b"".join(heads)


def _line_table(file: str, line: int) -> bytes:
    """Smallest step 1, single ops, rows are statements, line base 0, line range 1. No folders, a single file. Then the line and the row."""
    head = bytes([1, 1, 1, 0, 1, len(_OPERANDS) + 1]) + _OPERANDS + b"\0" + file.encode().replace(b"\0", b"") + b"\0" + bytes(3) + b"\0"
    body = struct.pack("<HI", 4, len(head)) + head + bytes([_ADVANCE_LINE]) + _signed(line - 1) + bytes([_COPY])
    return struct.pack("<I", len(body)) + body


def _signed(number: int) -> bytes:
    """SLEB128 of a number that is not negative."""
    out = bytearray()
    while number > 63:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
