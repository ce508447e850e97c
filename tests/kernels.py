"""Measured kernels in a line, and reports of Nsight Compute written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.recordings.kernel_profiles import KernelProfile, KernelProfiles
from advisor.recordings.recording import Recording
from advisor.report.model import Report

NAMES = {
    "us": "gpu__time_duration.sum",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "threads": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "sectors": "memory_l2_theoretical_sectors_global",
    "excess": "derived__memory_l2_theoretical_sectors_global_excessive",
    "shared": "memory_l1_wavefronts_shared",
    "conflicts": "derived__memory_l1_wavefronts_shared_excessive",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block_dynamic",
    "sms": "launch__sm_count",
    "reds": "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    "atomic_busiest": "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed",
    "atomic_mean": "lts__d_atomic_input_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "local": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "loads": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "fp64": "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    **{
        name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
        for name in ("long_scoreboard", "short_scoreboard", "mio_throttle", "barrier", "wait", "selected")
    },
}
"""Short names of the metrics that tests give."""


def kernel(name: str = "k", *, grid: int = 4096, block: int = 256, capability: tuple[int, int] = (9, 0), **metrics: float) -> KernelProfile:
    """A healthy kernel on an H200, 100 µs long, limited by DRAM, with the metrics given (by short or full name) instead."""
    base: dict[str, float] = {
        "us": 100.0,
        "dram": 80,
        "l2": 50,
        "l1": 30,
        "compute": 30,
        "issue": 30,
        "registers": 32,
        "sms": 132,
    }
    held = {NAMES.get(key, key): value for key, value in {**base, **metrics}.items()}
    held[NAMES["us"]] *= 1000
    return KernelProfile(name, (grid, 1, 1), (block, 1, 1), 0, capability, 7, 1, held)


def judged(rule: str, *kernels: KernelProfile, device: str = "NVIDIA H200", **options: object) -> Report:
    """What a rule says of kernels."""
    profiles = KernelProfiles("k.ncu-rep", "ncu-rep", 1, kernels, {0: device})
    report = run(Recording("kernels", "k.ncu-rep", (profiles,)), [built_in()[rule]], {rule: options})
    assert not report.failed, report.failed
    return report


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str | float) -> bytes:
    """A protobuf field: an int as varint, a float as double, bytes and text with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def result(name: str, metrics: Mapping[int, bytes], grid: Sequence[int] = (10, 2, 1), block: Sequence[int] = (256, 1, 1)) -> bytes:
    """A profile result; `metrics`: encoded value by the index of its name."""
    dims = [field(n, b"".join(field(i, v) for i, v in enumerate(dim, 1))) for n, dim in ((10, grid), (11, block))]
    values = [field(13, field(1, index) + field(2, value)) for index, value in metrics.items()]
    return field(1, 77) + field(7, name) + b"".join(dims) + b"".join(values) + field(15, field(2, "source text")) + field(23, 7)


def block(results: Sequence[bytes] = (), strings: Sequence[str] | None = None, payload: bytes = b"", session: bytes = b"") -> bytes:
    """A block of a report: results, or another payload. `strings` None: an empty table."""
    body = payload or b"".join(struct.pack("<I", len(r)) + r for r in results)
    table = b"".join(field(1, s) for s in strings or ())
    header = (field(2, len(results)) if results else b"") + (field(3, session) if session else b"") + field(4, table) + field(5, len(body))
    return struct.pack("<I", len(header)) + header + body


def report(*blocks: bytes) -> bytes:
    header = field(1, 7)
    return b"NVR\0" + struct.pack("<I", len(header)) + header + b"".join(blocks)


SESSION = field(9, field(1, "/home/somebody/secret.py") + field(4, "AWS_SECRET=hunter2")) + field(11, "ncu --secret-flag")
NAMES_HELD = ("gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "device__attribute_display_name")


def plain_report() -> bytes:
    """Two kernels: the first block has the strings, the second an empty table; a session with secrets; one metric is NaN."""
    first = result("void f<int>(float*)", {0: field(3, 5000.0), 1: field(3, 12.5), 2: field(1, "NVIDIA H200")})
    second = result("g", {0: field(5, 7000), 1: field(3, float("nan"))})
    return report(block(session=SESSION), block(payload=b"\x01" * 40), block([first], NAMES_HELD), block([second]))
