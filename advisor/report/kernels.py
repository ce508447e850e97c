"""What the report says of kernels: their time, their occupancy, and what hardware counters say of them."""

from __future__ import annotations

from typing import Literal

import msgspec


class UtilizationRow(msgspec.Struct, frozen=True):
    """Mean of a hardware counter over the window, in percent of its peak."""

    device: int
    unit: str
    mean_pct: float
    samples: int


class Occupancy(msgspec.Struct, frozen=True):
    """Warps on an SM over those that it holds, 0 to 1: `theoretical` those that fit, `achieved` those that were there,
    None if nobody counted. `limiter`: what keeps more from fitting: registers, shared memory, threads or blocks.
    `limits`: the blocks that registers, shared memory, threads and the SM itself allow."""

    theoretical: float
    achieved: float | None = None
    limiter: str = ""
    limits: tuple[int, ...] = ()


class Check(msgspec.Struct, frozen=True):
    """A question about a measured kernel. Without counters the answer is neither good nor bad: `record_with` collects them."""

    check: str
    status: Literal["ok", "concern", "not collected"]
    detail: str
    record_with: str = ""


class Counted(msgspec.Struct, frozen=True):
    """What hardware counters say of a kernel; None if they were not collected. Shares of the peak are 0 to 1."""

    compute: float | None = None
    memory: float | None = None
    dram: float | None = None
    l2: float | None = None
    l1: float | None = None
    dram_bytes: float | None = None
    dram_bound_us: float | None = None
    """What moving those bytes takes at the device's peak."""
    waves: float | None = None
    threads: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    capability: tuple[int, ...] = ()
    """The device's compute capability, major and minor."""
    flops: float | None = None
    """A second, FP64 and FP32 of CUDA cores."""
    intensity: float | None = None
    """FLOP a byte of DRAM."""
    verdict: str = ""
    checks: tuple[Check, ...] = ()


class KernelRow(msgspec.Struct, frozen=True):
    """GPU ops of the same name and family in the window, or separately measured launches of a kernel with the same grid.

    Rates are 0 if unknown, never NaN.
    """

    name: str
    family: str
    precision: str
    calls: int
    total_us: float
    mean_us: float
    share: float
    """Of the device's busy time."""
    op: str = ""
    occupancy_pct: float = 0.0
    active_sms: float = 0.0
    """Share of the SMs that have a block of it, by its grid and weighted by time; 0 if no grid was recorded."""
    gbps: float = 0.0
    tflops: float = 0.0
    dur_us: float = 0.0
    """Per launch: the median of separate measurements, else the mean."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    limiter: str = ""
    """Its limit: compute, dram, l2, l1, or latency; "" without counters."""
    stalls: dict[str, float] = {}
    """Share of a warp's time by what it waits for, most first."""
    occupancy: Occupancy | None = None
    counted: Counted | None = None
