"""A kernel's place in its program: the first line in the line table of its binary.

Triton writes that table (DWARF's `.debug_line`, which ptxas keeps) for every kernel, nvcc with -lineinfo. In a binary of several kernels
rows cannot be assigned here, so only binaries with a single kernel have a line."""

from __future__ import annotations

import struct
from typing import NamedTuple

from advisor.sources.ncu.elf import LARGEST_BINARY, sections_of


class Line(NamedTuple):
    file: str
    line: int


def first_line(binary: memoryview) -> Line | None:
    """Line of the only kernel in an ELF file; None if it has several or no table. Never raises."""
    try:
        return _first_line(binary)
    except (struct.error, LookupError, ValueError, ArithmeticError):
        return None


def _first_line(binary: memoryview) -> Line | None:
    sections = sections_of(binary)
    if sum(name.startswith(".text.") for name in sections) != 1 or ".debug_line" not in sections:
        return None
    return _Table(sections[".debug_line"][:LARGEST_BINARY]).first()


class _Table:
    """The first unit of a line table of DWARF 2 to 4 ("Line Number Information", section 6.2)."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def first(self) -> Line | None:
        """File and line of the first row with a file."""
        _, version, header = struct.unpack_from("<IHI", self._data)
        if not 2 <= version <= 4:
            return None
        program = 10 + header
        self._at = 10 + (2 if version == 4 else 1)
        _, base, line_range, opcodes = struct.unpack_from("<BbBB", self._data, self._at)
        self._at += 4
        operands = bytes(self._data[self._at : self._at + opcodes - 1])
        self._at += opcodes - 1
        folders = ["", *iter(self._text, "")]
        files = [""]
        while name := self._text():
            folder = self._number()
            self._number(), self._number()
            files.append(f"{folders[folder]}/{name}" if folder and not name.startswith("/") else name)
        self._at = program
        file = line = 1
        while self._at < len(self._data):
            opcode = self._byte()
            if opcode >= opcodes:
                line += base + (opcode - opcodes) % line_range
                return Line(files[file], line)
            if opcode == 0:
                length = self._number()
                self._at += length
            elif opcode == 1:  # a row as it stands
                if line > 0:
                    return Line(files[file], line)
            elif opcode == 3:
                line += self._signed()
            elif opcode == 4:
                file = self._number()
            elif opcode == 9:
                self._at += 2
            else:
                for _ in range(operands[opcode - 1]):
                    self._number()
        return None

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _text(self) -> str:
        start = self._at
        while self._byte():
            pass
        return bytes(self._data[start : self._at - 1]).decode("utf-8", "replace")

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:
                return value

    def _signed(self) -> int:
        start = self._at
        value = self._number()
        bits = 7 * (self._at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value
