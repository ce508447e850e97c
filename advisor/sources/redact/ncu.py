"""Kernels and their counters, written anew: as the report or the raw CSV page that Nsight Compute would write of nothing else."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from advisor.errors import TraceError
from advisor.recordings.kernel_profiles import KernelProfile, KernelProfiles
from advisor.sources.ncu import report, tables
from advisor.sources.ncu.report import DEVICE_NAME
from advisor.sources.protobuf import written
from advisor.sources.redact.names import Names, device
from advisor.sources.redact.ncu_lines import binary_of
from advisor.sources.sniff import NCU_MAGIC
from advisor.sources.stream import Stream

_COUNTER = re.compile(
    r"(?:gpu|gpc|tpc|sm|smsp|l1tex|lts|ltc|dram|fbpa|fe|idc|sys|pcie|nvlrx|nvltx|nvl\w{0,4}|ctc|device|launch|derived|memory|inst|thread|remark|smem|mcc)_+[a-z0-9_.]{1,150}"
)
"""The unit, then its property: names of the tool."""
_WHO = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC")


_NAMED = (5, 6, 7)
"""Of a result the kernel's name: mangled, without and with its arguments."""
_REQUIRED = b"".join(written(number, 0) for number in (2, 3, 4)) + written(8, 3) + written(9, b"".join(written(axis, 0) for axis in (1, 2, 3)))
"""Fields that are not read, but that every result in NVIDIA's format has: call, program, kernel's number, dimensions and offset."""


def redacted(stream: Stream, head: bytes, path: str, names: Names) -> Iterator[bytes]:
    """The kernels of a report or a page to give away. Raises TraceError if it is damaged."""
    is_report = head.startswith(NCU_MAGIC)
    profiles = report.read(stream, path) if is_report else tables.read(stream, path)
    if profiles.damage:
        raise TraceError(f"{path} is damaged: {profiles.damage}", "Copy or record the report again.")
    return (_report if is_report else _page)(profiles, names)


def _metrics(kernel: KernelProfile) -> dict[str, float]:
    return {name: value for name, value in kernel.metrics.items() if _COUNTER.fullmatch(name)}


def _report(profiles: KernelProfiles, names: Names) -> Iterator[bytes]:
    header = written(1, 7)
    yield b"NVR\0" + struct.pack("<I", len(header)) + header
    told = dict.fromkeys((k.source, k.flags) for k in profiles.kernels if k.source or k.flags)
    binaries = {binary: i for i, binary in enumerate(told, 1)}
    if binaries:
        renamed = ((source and (names.path(source[0]), source[1]), flags, i) for (source, flags), i in binaries.items())
        yield _block(1, [written(1, i) + written(4, binary_of(source, flags)) for source, flags, i in renamed])
    for kernel in profiles.kernels:
        metrics = _metrics(kernel)
        strings = [*metrics, DEVICE_NAME]
        values = [written(3, value) for value in metrics.values()] + [written(1, device(profiles.devices.get(kernel.device, "")))]
        held = b"".join(written(13, written(1, i) + written(2, value)) for i, value in enumerate(values))
        sizes = b"".join(written(n, b"".join(written(axis, size) for axis, size in enumerate(dim, 1))) for n, dim in ((10, kernel.grid), (11, kernel.block)))
        binary = binaries.get((kernel.source, kernel.flags))
        placed = written(15, written(1, binary) if binary else b"")
        name = names.kernel(kernel.name)
        called = written(1, kernel.process) + _REQUIRED + b"".join(written(number, name) for number in _NAMED)
        result = called + sizes + held + placed + written(23, kernel.stream)
        yield _block(2, [result], written(4, b"".join(written(1, text) for text in strings)))


def _block(number: int, messages: list[bytes], more: bytes = b"") -> bytes:
    """Messages of the same kind: 1 sources, 2 results."""
    body = b"".join(struct.pack("<I", len(one)) + one for one in messages)
    block = written(number, len(messages)) + more + written(5, len(body))
    return struct.pack("<I", len(block)) + block + body


def _page(profiles: KernelProfiles, names: Names) -> Iterator[bytes]:
    metrics = list(dict.fromkeys(name for kernel in profiles.kernels for name in _metrics(kernel)))
    yield _line([*_WHO, DEVICE_NAME, *metrics])
    yield _line([""] * (len(_WHO) + 1 + len(metrics)))  # of units: all are the tool's base ones
    for i, kernel in enumerate(profiles.kernels):
        who = [
            i,
            kernel.process,
            "",
            "",
            names.kernel(kernel.name),
            1,
            kernel.stream,
            kernel.block,
            kernel.grid,
            kernel.device,
            ".".join(map(str, kernel.capability)),
        ]
        held = _metrics(kernel)
        yield _line([*who, device(profiles.devices.get(kernel.device, "")), *(repr(held[name]) if name in held else "" for name in metrics)])


def _line(row: list[object]) -> bytes:
    quoted = ",".join('"' + str(cell).replace('"', '""') + '"' for cell in row)
    return f"{quoted}\n".encode()
