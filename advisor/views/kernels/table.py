"""One row a measured kernel: what limits it, in a sentence and in numbers."""

from __future__ import annotations

import math

import msgspec

from advisor.knowledge.counts import SHOWN
from advisor.knowledge.op_tokens import families
from advisor.knowledge.shares import MOST
from advisor.knowledge.stalls import NO_STALL, STALLS
from advisor.report.kernels import Counted, KernelRow, Occupancy
from advisor.report.numbers import counted, percent
from advisor.views.kernels.checks import checks
from advisor.views.kernels.counters import atomics, dram_bytes, stalls, thread_ops, waits_for_atomics
from advisor.views.kernels.fill import fill
from advisor.views.kernels.limits import COMPUTE, DRAM, L1, L2, memory_busy
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels


class MeasuredTable(msgspec.Struct, frozen=True):
    """Rows of the report, most time first."""

    rows: tuple[KernelRow, ...]

    @classmethod
    def build(cls, measured: MeasuredKernels) -> MeasuredTable:
        whole = measured.total_us
        return cls(tuple(_row(kernel, whole) for kernel in measured.kernels))


def _row(kernel: MeasuredKernel, whole_us: float) -> KernelRow:
    profile, found = kernel.profile, kernel.occupancy
    counters = _counted(kernel)
    family = families.family(profile.name)
    waits = {name: share for name, share in stalls(profile).items() if name not in NO_STALL}
    dur_us = profile.duration_us or 0.0
    return KernelRow(
        name=kernel.name,
        family=str(family.value),
        precision=families.precision(profile.name) if family in _PRODUCTS else "",
        calls=kernel.launches,
        total_us=kernel.total_us,
        mean_us=kernel.total_us / kernel.launches,
        share=kernel.total_us / whole_us if whole_us else 0.0,
        occupancy_pct=100 * (found.achieved or 0.0) if found else 0.0,
        gbps=rate if counters.dram_bytes and dur_us and math.isfinite(rate := counters.dram_bytes / dur_us / 1e3) else 0.0,
        tflops=(counters.flops or 0.0) / 1e12,
        dur_us=dur_us,
        grid=kernel.grid,
        block=kernel.block,
        limiter=kernel.limits.limiter,
        stalls=dict(list(waits.items())[:SHOWN]),
        occupancy=Occupancy(found.theoretical, found.achieved, found.limiter, found.limits) if found else None,
        counted=counters,
    )


_PRODUCTS = (families.Family.GEMM, families.Family.CONV, families.Family.ATTENTION)


def _counted(kernel: MeasuredKernel) -> Counted:
    profile, limits = kernel.profile, kernel.limits
    moved = dram_bytes(profile)
    flops = _flops(kernel)
    peak = kernel.peaks.bytes_per_s if kernel.peaks else None
    shared = [profile.get(f"launch__shared_mem_per_block_{part}") for part in ("static", "dynamic")]
    registers = profile.get("launch__registers_per_thread")
    seconds = (profile.duration_us or 0.0) / 1e6
    return Counted(
        compute=limits.busy.get(COMPUTE),
        memory=memory_busy(profile, limits),
        dram=limits.busy.get(DRAM),
        l2=limits.busy.get(L2),
        l1=limits.busy.get(L1),
        dram_bytes=moved,
        dram_bound_us=moved / peak * 1e6 if moved is not None and peak else None,
        waves=kernel.waves,
        threads=profile.threads or None,
        registers=None if registers is None else int(registers),
        shared_bytes=None if all(s is None for s in shared) else int(sum(s or 0.0 for s in shared)),
        capability=profile.capability if any(profile.capability) else (),
        flops=flops,
        intensity=flops * seconds / moved if flops and moved and seconds else None,
        verdict=verdict(kernel),
        checks=checks(kernel),
    )


def _flops(kernel: MeasuredKernel) -> float | None:
    """FLOP a second of CUDA cores, FP64 and FP32: an FMA counts twice."""
    hz = kernel.profile.get("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second", "gpc__cycles_elapsed.avg.per_second")
    ops = [(thread_ops(kernel.profile, f"{kind}{op}"), 2 if op == "fma" else 1) for kind in "df" for op in ("add", "mul", "fma")]
    if hz is None or all(n is None for n, _ in ops):
        return None
    return hz * sum((n or 0.0) * weight for n, weight in ops)


_LIMITED = {COMPUTE: "computing", DRAM: "DRAM", L2: "L2", L1: "L1 and shared memory"}


def verdict(kernel: MeasuredKernel) -> str:
    """Why the kernel takes as long as it does, in a sentence; "" if nothing was collected that tells."""
    limiter = kernel.limits.limiter
    if not limiter:
        return _few_blocks(kernel).strip()
    if limiter in _LIMITED:
        return f"Limited by {_LIMITED[limiter]}, at {kernel.limits.busy[limiter]:.0%} of its peak."
    highest, queued = kernel.limits.highest, atomics(kernel.profile)
    if queued and queued.busiest and queued.busiest > highest and waits_for_atomics(kernel.profile):
        busy = f"A single L2 slice is busy with atomic operations for {queued.busiest:.0%} of the time, nothing else is (at most {percent(highest)} of a peak)."
        return busy + _few_blocks(kernel)
    waits = next(((name, share) for name, share in stalls(kernel.profile).items() if name not in NO_STALL), None)
    why = f"a warp {STALLS[waits[0]]} for {waits[1]:.0%} of its time" if waits else "it waits"
    return f"Nothing is busy (at most {percent(highest)} of a peak): {why}.{_few_blocks(kernel)}"


FEW = MOST
"""Blocks that fill no more of the device than this are said, however short the kernel: no unit can be busy then."""


def _few_blocks(kernel: MeasuredKernel) -> str:
    """How few blocks there are for the device, "" if they fill more than half of it."""
    if not kernel.profile.blocks or not kernel.sm_count or fill(kernel) > FEW:
        return ""
    threads = f" of {counted(kernel.profile.threads, 'thread')}" if kernel.profile.threads else ""
    return f" It runs {counted(kernel.profile.blocks, 'block')}{threads} on {kernel.sm_count} SMs."
