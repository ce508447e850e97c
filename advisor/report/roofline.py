"""How near kernels come to what their GPU can do, from a report's kernel rows and the datasheet of its device."""

from __future__ import annotations

from typing import NamedTuple

from advisor.knowledge.devices import Peaks, find, own
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.step import Rates

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


class Reach(NamedTuple):
    """FLOP/byte and the share of the roofline that is reached; the side of the ridge that it lies on."""

    intensity: float
    share: float
    memory_side: bool


def peaks_of(report: Report) -> Peaks | None:
    """The datasheet of the report's GPUs, or the rates that the analysis was given; None if they differ or are unknown."""
    names = {device.name for device in report.devices}
    if len(names) != 1:
        return None
    device = report.devices[0]
    return own(device.name, device.rates, device.rates_from) if device.rates else find(device.name)


def reach(row: KernelRow, peaks: Peaks | None) -> Reach | None:
    """Where a kernel is under its roofline; None if its work or the device's rates are not known."""
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
    """How all kernels with known work stand together; None if none is known."""
    peaks = peaks_of(report)
    found = [(row.total_us, at) for row in report.kernels if (at := reach(row, peaks))]
    spent = sum(us for us, _ in found)
    busy = sum(row.total_us for row in report.kernels)
    if spent <= 0 or busy <= 0:
        return None
    memory = sum(us for us, at in found if at.memory_side)
    return Standing(spent / busy, memory / spent, sum(us * min(at.share, 1.0) for us, at in found) / spent)


def rates(report: Report) -> Rates | None:
    """How much of the peaks the kernels use, over the time in which the GPU works and over the step; None if nothing is known.

    Each kernel counts by its time: the share of the peak arithmetic rate of its precision, of the memory's rate, and its active
    warps. Work is known from the recorded shapes, so it is estimated, not measured.
    """
    peaks, rows = peaks_of(report), report.kernels
    busy = sum(row.total_us for row in rows)
    window = sum(time.window_us for time in report.time or ())
    if busy <= 0 or window <= 0:
        return None
    known = [row for row in rows if row.gbps > 0 or row.tflops > 0]
    flops = [row.total_us * row.tflops * 1e12 / rate for row in known if peaks and (rate := peaks.flops_per_s(row.precision or "fp32"))]
    moved = [row.total_us * row.gbps * 1e9 / peaks.bytes_per_s for row in known if peaks and peaks.bytes_per_s]
    warps = [(row.total_us, row.occupancy_pct) for row in rows if row.occupancy_pct > 0]
    working = min(busy / window, 1.0)
    return Rates(
        known=sum(row.total_us for row in known) / busy,
        flops_busy=sum(flops) / busy if flops else None,
        flops_step=working * sum(flops) / busy if flops else None,
        bytes_busy=sum(moved) / busy if moved else None,
        bytes_step=working * sum(moved) / busy if moved else None,
        active_warps=sum(us * pct for us, pct in warps) / sum(us for us, _ in warps) / 100 if warps else None,
        basis="estimated",
    )
