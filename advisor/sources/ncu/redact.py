"""Reports and CSV pages that can be given away: kernels and their counters, nothing of whose machine, program or sources they were."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from advisor.errors import TraceError
from advisor.sources.ncu.report import DEVICE_NAME, Cut, is_report, results
from advisor.sources.ncu.tables import find_header, lines_of
from advisor.sources.protobuf import Value, fields, message, whole
from advisor.sources.stream import Stream

_LAUNCH = (5, 6, 7, 10, 11, 23)
"""Of a profile result: its names, grid, block and stream. Times, sources, sections, remarks, ranges and process stay behind."""
_METRIC = 13
_NUMBERS = (2, 3, 4, 5)
_WHOSE = ("Process ID", "Process Name", "Host Name", "Kernel Time")


def redact(stream: Stream, head: bytes, target: BinaryIO) -> None:
    """Write what is left of a report or a CSV page. Raises TraceError where it is damaged."""
    try:
        for block in _report(stream) if is_report(head) else _table(stream):
            target.write(block)
    except (ValueError, IndexError, Cut) as error:
        raise TraceError(f"the report is damaged: {error}", "Copy or record it again.") from None


def _report(stream: Stream) -> Iterator[bytes]:
    header = _field(1, 7)
    yield b"NVR\0" + struct.pack("<I", len(header)) + header
    before = b""
    for result, strings in results(stream):
        used: set[int] = set()
        kept = b"".join(_kept(result, strings, used))
        table = b"".join(_field(1, text if i in used else "") for i, text in enumerate(strings))
        body = struct.pack("<I", len(kept)) + kept
        block = _field(2, 1) + _field(4, b"" if table == before else table) + _field(5, len(body))
        before = table
        yield struct.pack("<I", len(block)) + block + body


def _kept(result: memoryview, strings: Sequence[str], used: set[int]) -> Iterator[bytes]:
    for number, value in fields(result):
        if number in _LAUNCH:
            if number in (5, 6, 7) and isinstance(value, int):
                used.add(value)
            yield _field(number, value)
        elif number == _METRIC and (metric := _metric(message(value), strings, used)):
            yield _field(number, metric)


def _metric(value: memoryview, strings: Sequence[str], used: set[int]) -> bytes:
    """Name and number, without the values by instruction; of texts only the device's name."""
    parts = dict(fields(value))
    name, held = whole(parts.get(1, -1)), parts.get(2)
    if held is None or not 0 <= name < len(strings):
        return b""
    if not any(kind in _NUMBERS for kind, _ in fields(message(held))) and strings[name] != DEVICE_NAME:
        return b""
    used.add(name)
    return _field(1, name) + _field(2, held)


def _field(number: int, value: Value | bytes | str) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else bytes(value)
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _table(stream: Stream) -> Iterator[bytes]:
    """The rows from the header on; what the program printed before it stays behind."""
    rows = csv.reader(lines_of(stream))
    header = find_header(rows)
    if header is None:
        raise ValueError("it holds no table")
    yield _line(header)
    hidden = {header.index(name) for name in _WHOSE if name in header}
    for row in rows:
        if len(row) > 1:
            yield _line(["0" if i in hidden and cell.isdigit() else "" if i in hidden else cell for i, cell in enumerate(row)])


def _line(row: Sequence[str]) -> bytes:
    quoted = ",".join('"' + cell.replace('"', '""') + '"' for cell in row)
    return f"{quoted}\n".encode()
