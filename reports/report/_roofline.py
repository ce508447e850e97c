"""How near kernels come to what their GPU can do, from a report's kernel rows and the datasheet of its device."""

from __future__ import annotations

from typing import NamedTuple

from advisor.knowledge.devices import Peaks, find
from advisor.report.model import KernelRow, Report

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


class Reach(NamedTuple):
    """FLOP/byte and the share of the roofline that is reached; the side of the ridge that it lies on."""

    intensity: float
    share: float
    memory_side: bool


def peaks_of(report: Report) -> Peaks | None:
    """The datasheet of the report's GPUs; None where they differ or are unknown."""
    names = {device.name for device in report.devices}
    return find(names.pop()) if len(names) == 1 else None


def reach(row: KernelRow, peaks: Peaks | None) -> Reach | None:
    """Where a kernel stands under its roofline; None where its work or the device's rates are not known."""
    if peaks is None or not peaks.bytes_per_s or row.gbps <= 0:
        return None
    rate = peaks.flops_per_s(row.precision or "fp32")
    by_bytes = row.gbps * 1e9 / peaks.bytes_per_s
    by_flops = row.tflops * 1e12 / rate if rate else 0.0
    intensity = row.tflops * 1e3 / row.gbps
    ridge = peaks.ridge(row.precision or "fp32")
    return Reach(intensity, max(by_bytes, by_flops), ridge is None or intensity < ridge)


class Standing(NamedTuple):
    """Time-weighted over kernels whose work is known. Shares are of the GPU's busy time."""

    known: float
    memory: float
    """Of it, in kernels left of the ridge."""
    reached: float
    """Mean share of the roofline."""


def standing(report: Report) -> Standing | None:
    """How all kernels with known work stand together; None where none is known."""
    peaks = peaks_of(report)
    found = [(row.total_us, at) for row in report.kernels if (at := reach(row, peaks))]
    spent = sum(us for us, _ in found)
    busy = sum(row.total_us for row in report.kernels)
    if spent <= 0 or busy <= 0:
        return None
    memory = sum(us for us, at in found if at.memory_side)
    return Standing(spent / busy, memory / spent, sum(us * min(at.share, 1.0) for us, at in found) / spent)
