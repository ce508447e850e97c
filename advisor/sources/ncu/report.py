"""Reports: `.ncu-rep`, and `.ncu-repz`, which is the same packed with zstd.

A report is `NVR\\0`, a header, then blocks until the end. Each block is a header and a payload of messages, each after its length
(Nsight Compute Customization Guide, "Report File Format"). Field numbers are from the schema that the tool ships.
Disassembly, most of the file, is skipped, and so is the session: environment and command line. From a kernel's binary, only its line
and its compiler's flags are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import Dim, Flags, KernelProfile, KernelProfiles, counted
from advisor.sources.ncu.elf import LARGEST_BINARY
from advisor.sources.ncu.flags import flags_of
from advisor.sources.ncu.lines import Line, first_line
from advisor.sources.protobuf import Value, fields, message, real, text, whole
from advisor.sources.sniff import NCU_MAGIC
from advisor.sources.stream import READ_BYTES, Stream

_LARGEST = 1 << 30
"""Bytes of a header or payload: a whole profile of a kernel has about a million, the largest strings a few."""

DEVICE_NAME, _CAPABILITY = "device__attribute_display_name", "device__attribute_compute_capability_"


class Cut(Exception):
    """The file ends inside a block."""


class Binary(NamedTuple):
    """Facts from a kernel's binary."""

    line: Line | None
    flags: Flags | None


NO_BINARY = Binary(None, None)
Profiled = tuple[KernelProfile, str, int]
"""A kernel, the name of the device it ran on, and the reference of its binary."""


def read(stream: Stream, path: str) -> KernelProfiles:
    """The kernels of a report; a truncated report gives those before its end. Raises TraceError if it holds none."""
    waiting: list[tuple[memoryview, Sequence[str]]] = []
    found: list[Profiled | int] = []
    binaries: dict[int, Binary] = {}
    damage = ""
    try:
        for result, strings in results(stream, binaries):
            if _largest_name(result) < len(strings):
                found.append(_kernel(result, strings))
            else:  # a block further on may name it
                found.append(len(waiting))
                waiting.append((result, strings))
    except Cut:
        damage = stream.truncated or f"it ends inside a block, after {len(found)} kernels"
    except (ValueError, IndexError) as error:
        damage = f"a block after {len(found)} kernels cannot be read: {error}"
    kernels: list[tuple[KernelProfile, int]] = []
    devices: dict[int, str] = {}
    unfinished = 0
    try:
        for one in found:
            kernel, name, binary = _kernel(*waiting[one]) if isinstance(one, int) else one
            if not kernel.blocks and kernel.duration_us is None:
                unfinished += 1  # ncu writes a launch before it has measured it, and may be stopped in between
                continue
            kernels.append((kernel, binary))
            if name:
                devices[kernel.device] = name
    except (ValueError, IndexError) as error:
        damage = damage or f"a block after {len(kernels)} kernels cannot be read: {error}"
    if unfinished and not damage:
        damage = f"ncu ended before {unfinished} more launch{'es were' if unfinished > 1 else ' was'} measured"
    if damage and not kernels:
        raise TraceError(f"{path} is damaged: {damage}", "Copy or record the report again.")
    known = ((kernel, binaries.get(binary, NO_BINARY)) for kernel, binary in kernels)
    whole_kernels = tuple(replace(kernel, source=binary.line, flags=binary.flags) for kernel, binary in known)
    return KernelProfiles(path, "ncu-rep", stream.packed, whole_kernels, devices, damage)


def results(stream: Stream, binaries: dict[int, Binary] | None = None) -> Iterator[tuple[memoryview, Sequence[str]]]:
    """Each profile result as a message, with the strings that it refers to. The list of strings grows with the blocks, since a block may use names
    of later blocks. `binaries` receives facts from the kernels' binaries, by their references."""
    _take(stream, len(NCU_MAGIC))
    _take(stream, _size(stream))
    strings: list[str] = []
    while stream.peek(1):
        results = payload = sources = 0
        for number, value in fields(_take(stream, _size(stream))):
            if number == 1:
                sources = whole(value)
            elif number == 2:
                results = whole(value)
            elif number == 4 and (table := _strings(message(value))):
                # A table goes on where the ones before end; one that begins as they do is whole by itself.
                strings = table if table[:1] == strings[:1] else strings
                strings += table if table is not strings else []
            elif number == 5:
                payload = whole(value)
        if not results:
            _skip(stream, payload - (_note_each(stream, payload, binaries) if sources and binaries is not None else 0))
            continue
        rest = _take(stream, payload)
        for source in range(sources):  # a block may hold both: sources come first
            if len(rest) < 4 or (size := 4 + struct.unpack("<I", rest[:4])[0]) > len(rest):
                raise ValueError(f"source {source + 1} of {sources} is longer than its block")
            with suppress(ValueError):
                _note(rest[4:size], {} if binaries is None else binaries)
            rest = rest[size:]
        while rest:
            if len(rest) < 4:
                raise ValueError("a message has no length")
            size = struct.unpack("<I", rest[:4])[0]
            if size > len(rest) - 4:
                raise ValueError(f"a result says that it has {size:,} bytes where {len(rest) - 4:,} are left")
            yield rest[4 : 4 + size], strings
            rest = rest[4 + size :]


def _note_each(stream: Stream, payload: int, binaries: dict[int, Binary]) -> int:
    """Note facts from the binaries in a block of sources. Returns the number of bytes read."""
    done = 0
    while payload - done >= 4:
        size = _size(stream)
        done += 4
        if size > min(payload - done, LARGEST_BINARY):
            break
        with suppress(ValueError):  # a source that cannot be read costs its line and flags, and nothing else
            _note(_take(stream, size), binaries)
        done += size
    return done


def _note(source: memoryview, binaries: dict[int, Binary]) -> None:
    """Facts from the binary in a source, by the reference that results use."""
    reference = 0
    for number, value in fields(source):
        if number == 1 and isinstance(value, int):
            reference = value
        elif number == 4:
            if not isinstance(value, int):
                binaries[reference] = Binary(first_line(value), flags_of(value))
            return


def _size(stream: Stream) -> int:
    return struct.unpack("<I", _take(stream, 4))[0]


def _take(stream: Stream, n: int) -> memoryview:
    if n > _LARGEST:
        raise ValueError(f"a block says that it has {n:,} bytes")
    data = stream.read(n)
    if len(data) < n:
        raise Cut
    return memoryview(data)


def _skip(stream: Stream, n: int) -> None:
    while n > 0:
        n -= len(_take(stream, min(n, READ_BYTES)))


def _strings(table: memoryview) -> list[str]:
    return [text(value) for number, value in fields(table) if number == 1]


def _largest_name(result: memoryview) -> int:
    """The last of the strings that a result's metrics are named by, -1 if it has none."""
    metrics = (value for number, value in fields(result) if number == 13)
    return max((whole(part) for value in metrics for number, part in fields(message(value)) if number == 1), default=-1)


def _kernel(result: memoryview, strings: Sequence[str]) -> Profiled:
    """The content of a profile result."""
    binary = 0
    numbers: dict[int, int] = {}
    names: dict[int, str] = {}
    dims: dict[int, Dim] = {10: (0, 0, 0), 11: (0, 0, 0)}
    metrics: dict[str, float] = {}
    texts: dict[str, str] = {}
    for number, value in fields(result):
        if number == 13:
            _metric(message(value), strings, metrics, texts)
        elif number in (5, 6, 7):
            names[number] = _name(value, strings)
        elif number in dims:
            dims[number] = _dim(message(value))
        elif number == 15:
            binary = next((v for n, v in fields(message(value)) if n == 1 and isinstance(v, int)), 0)
        elif number in (1, 23):
            numbers[number] = _stream_id(value) if number == 23 else whole(value)
    capability = tuple(int(metrics.get(f"{_CAPABILITY}{part}", 0)) for part in ("major", "minor"))
    kernel = KernelProfile(
        name=names.get(7) or names.get(6) or names.get(5) or "(no name)",
        grid=dims[10],
        block=dims[11],
        device=int(metrics.get("device__attribute_device_index", 0)),
        capability=(capability[0], capability[1]),
        stream=numbers.get(23, 0),
        process=numbers.get(1, 0),
        metrics=metrics,
    )
    return kernel, texts.get(DEVICE_NAME, ""), binary


def _stream_id(value: Value) -> int:
    return value if isinstance(value, int) else next((whole(v) for n, v in fields(value) if n == 1 and isinstance(v, int)), 0)


def _name(value: Value, strings: Sequence[str]) -> str:
    """A name is in the message, or in the string table (older reports)."""
    return strings[value] if isinstance(value, int) else text(value)


def _dim(value: memoryview) -> Dim:
    size = {number: whole(v) for number, v in fields(value)}
    return size.get(1, 1), size.get(2, 1), size.get(3, 1)


def _metric(value: memoryview, strings: Sequence[str], metrics: dict[str, float], texts: dict[str, str]) -> None:
    """Add a metric to `metrics`, or to `texts` if it is a text. Its values by instruction are left out."""
    name = ""
    for number, part in fields(value):
        if number == 1:
            index = whole(part)
            if index >= len(strings):
                raise ValueError("a metric has no name: the table of strings is missing or too short")
            name = strings[index]
        elif number == 2:
            for kind, held in fields(message(part)):
                if kind == 1:
                    texts[name] = text(held)
                elif kind in (2, 3, 4, 5):
                    known = counted(real(held) if kind in (2, 3) else float(whole(held)))
                    if known is not None:
                        metrics[name] = known
