"""Twenty questions asked of every measured kernel, each answered or not collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from advisor.knowledge import occupancy
from advisor.knowledge.how_to_record import counters
from advisor.knowledge.occupancy import WARP
from advisor.knowledge.op_tokens.families import PRODUCTS, family
from advisor.knowledge.shares import FAR_APART, HARDLY_ANY, MOST
from advisor.knowledge.stalls import NO_STALL, STALLS, WORTH_SHOWING
from advisor.report.kernels import Check
from advisor.report.numbers import counted, large_count, size
from advisor.views.kernels.counters import (
    MEMORY_STALLS,
    SECTOR_BYTES,
    active_threads,
    atomics,
    global_access,
    local_share,
    pipe_busy,
    shared_bytes,
    shared_excess,
    stalls,
    thread_ops,
)
from advisor.views.kernels.limits import BUSY, COMPUTE, L1, L2, memory_busy
from advisor.views.kernels.measured import MeasuredKernel


class Answer(NamedTuple):
    """Whether that is a concern, and why."""

    concern: bool
    detail: str


def checks(kernel: MeasuredKernel) -> tuple[Check, ...]:
    """The answers, in a fixed order."""
    return tuple(_asked(kernel))


def _asked(kernel: MeasuredKernel) -> Iterator[Check]:
    for name, (question, section) in QUESTIONS.items():
        answer = question(kernel)
        if answer is None and not section:
            yield Check(name, "not collected", *NO_FLAGS)
        elif answer is None:
            page = kernel.profile.page
            told = f"this page lacks what section {section} has of it" if page == "details" else f"section {section} was not collected"
            yield Check(name, "not collected", told, counters((section,), page))
        else:
            yield Check(name, "concern" if answer.concern else "ok", answer.detail)


WASTE = 0.3
"""Part of the traffic that serves no data from which it is a fault: a kernel then keeps memory busy without need."""


def _wasteful(kernel: MeasuredKernel) -> bool:
    """Whether the kernel requests much more memory than it uses, so its memory waits do not show a well used device."""
    access = global_access(kernel.profile)
    return access is not None and access.excess >= WASTE


def _coalescing(kernel: MeasuredKernel) -> Answer | None:
    access = global_access(kernel.profile)
    if access is None:
        return None
    return Answer(access.excess >= WASTE, f"{access.excess:.0%} of the {SECTOR_BYTES}-byte sectors touched are excess")


def _conflicts(kernel: MeasuredKernel) -> Answer | None:
    excess = shared_excess(kernel.profile)
    return None if excess is None else Answer(excess >= 0.3, f"{excess:.0%} of shared memory's wavefronts are bank conflicts")


REREAD = FAR_APART
"""Times that a kernel loads each byte which DRAM sends, from which a tile in shared memory, loaded once, would spare the caches half the load."""


def _shared_memory(kernel: MeasuredKernel) -> Answer | None:
    parts = [kernel.profile.get(f"launch__shared_mem_per_block_{part}") for part in ("static", "dynamic")]
    if all(part is None for part in parts):
        return None
    if used := sum(part or 0.0 for part in parts):
        return Answer(False, f"{size(used)} of it a block")
    access, read = global_access(kernel.profile), kernel.profile.get("dram__bytes_read.sum")
    if access is None or access.load_bytes_ideal is None or read is None:
        return None
    times = access.load_bytes_ideal / read if read else 0.0
    cached = kernel.limits.limiter in (L1, L2)
    often = f"{times:.1f} times" if times >= 1.5 else "once"
    told = f"none is used; each byte that DRAM sends is loaded {often}" if read else "none is used, and DRAM sends nothing"
    return Answer(cached and times >= REREAD, f"{told}, and {kernel.limits.limiter.upper()} limits the kernel" if cached else told)


def _occupancy(kernel: MeasuredKernel) -> Answer | None:
    found = kernel.occupancy
    if found is None:
        return None
    achieved = "" if found.achieved is None else f", {found.achieved:.0%} achieved"
    few = min(found.theoretical, 1.0 if found.achieved is None else found.achieved) < ENOUGH
    busy = kernel.limits.highest >= BUSY
    told = f"{found.theoretical:.0%} theoretical, limited by {found.limiter}{achieved}"
    return Answer(few and not busy, f"{told}, which keeps a unit busy all the same" if few and busy else told)


ENOUGH = MOST
"""Of the warps that an SM holds: 50 to 75 % hide the latency of most kernels, and more seldom help (Best Practices Guide, "Occupancy")."""


def _limits(kernel: MeasuredKernel) -> Answer | None:
    found, registers = kernel.occupancy, kernel.profile.get("launch__registers_per_thread")
    if found is None or len(found.limits) != len(occupancy.LIMITERS):
        return None
    fits = dict(zip(occupancy.LIMITERS, found.limits, strict=True))
    most = fits.pop(occupancy.BLOCKS)
    fit = ", ".join(f"{counted(blocks, 'block')} by {limit}" for limit, blocks in fits.items())
    held = found.limiter in (occupancy.REGISTERS, occupancy.SHARED) and found.theoretical < ENOUGH and kernel.limits.highest < BUSY
    uses = [f"{counted(int(registers), 'register')} a thread"] if registers is not None else []
    uses += [f"{size(shared)} of shared memory a block"] if (shared := shared_bytes(kernel.profile)) else []
    return Answer(held, f"an SM takes {fit}, {most} at most" + (f". It uses {' and '.join(uses)}" if uses else ""))


def _warp_size(kernel: MeasuredKernel) -> Answer | None:
    threads = kernel.profile.threads
    if not threads:
        return None
    warps, odd = -(-threads // WARP), threads % WARP
    told = f"blocks of {counted(threads, 'thread')} are {counted(warps, 'warp')}"
    return Answer(bool(odd), f"{told}, of the last of which {WARP - odd} lanes are empty" if odd else told)


OPTIMISED = 3
"""The level of optimisation that ptxas takes if none is asked for."""
NO_FLAGS = ("a .ncu-rep holds the kernel's binary, and newer compilers leave their flags in it; this file says none", "ncu --set full -o report COMMAND")


def _flags(kernel: MeasuredKernel) -> Answer | None:
    flags = kernel.profile.flags
    if flags is None:
        return None
    how = "for a debugger (-G)" if flags.debug else f"with -O{flags.level}"
    target = f" for {flags.arch}" if flags.arch else ""
    most = f", at most {counted(flags.max_registers, 'register')} a thread" if flags.max_registers else ""
    lines = "with" if flags.lines else "without"
    told = f"ptxas compiled it {how}{target}{most}, {lines} line numbers (-lineinfo); whether --use_fast_math was given leaves no mark"
    return Answer(flags.debug or flags.level < OPTIMISED, told)


def _divergence(kernel: MeasuredKernel) -> Answer | None:
    active = active_threads(kernel.profile)
    return None if active is None else Answer(active < 0.75 * WARP, f"{active:.1f} of {WARP} threads take part in an instruction")


def _spills(kernel: MeasuredKernel) -> Answer | None:
    share = local_share(kernel.profile)
    if share is not None:
        return Answer(share >= 0.1, f"{share:.0%} of L1's sectors are local memory")
    requests = kernel.profile.get("derived__local_spilling_requests")
    return None if requests is None else Answer(requests > 0, f"{large_count(requests)} requests spill registers")


def _stall(kernel: MeasuredKernel) -> Answer | None:
    found = [(name, share) for name, share in stalls(kernel.profile).items() if name not in NO_STALL]
    if not found:
        return None
    told = ", ".join(f"{share:.0%} {name} ({STALLS[name]})" for name, share in found[:3] if share >= min(WORTH_SHOWING, found[0][1]))
    return Answer(found[0][1] >= 0.5 and (kernel.limits.highest < BUSY or (found[0][0] in MEMORY_STALLS and _wasteful(kernel))), told)


def _tail(kernel: MeasuredKernel) -> Answer | None:
    waves = kernel.waves
    if waves is None:
        return None
    whole = max(1.0, -(-waves // 1))
    return Answer(waves > 1 and waves / whole < 0.75, f"{waves:,.2f} waves of blocks take as long as {whole:,.0f}")


HARDLY = HARDLY_ANY
"""A matrix product whose Tensor Cores work for less of the time does its arithmetic elsewhere."""


def _tensor_cores(kernel: MeasuredKernel) -> Answer | None:
    busy = pipe_busy(kernel.profile, "tensor")
    if busy is None:
        return None
    return Answer(busy < HARDLY and family(kernel.profile.name) in PRODUCTS, f"Tensor Cores are busy for {busy:.0%} of the time")


def _precision(kernel: MeasuredKernel) -> Answer | None:
    busy = pipe_busy(kernel.profile, "fp64")
    return None if busy is None else Answer(busy >= 0.3, f"the FP64 unit is busy for {busy:.0%} of the time")


def _vector_loads(kernel: MeasuredKernel) -> Answer | None:
    requests = kernel.profile.get("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum")
    sectors = kernel.profile.get("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
    used = kernel.profile.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio")
    if requests is None or sectors is None or used is None:
        return None
    if not requests:
        return Answer(False, "no global loads")
    size = min(sectors / requests * min(used, SECTOR_BYTES) / WARP, 16.0)
    few = size <= 4 and kernel.limits.highest < BUSY and stalls(kernel.profile).get("long_scoreboard", 0.0) >= 0.3
    return Answer(few, f"a load brings {size:.1f} bytes a thread, of 16 at most")


def _atomic(kernel: MeasuredKernel) -> Answer | None:
    found = atomics(kernel.profile)
    if found is None:
        return None
    busiest = found.busiest or 0.0
    told = f"{large_count(found.operations)} operations; the busiest slice of L2 works on them for {busiest:.0%} of the time"
    return Answer(busiest >= 0.2, told if found.operations else "no atomics on global memory")


def _l2(kernel: MeasuredKernel) -> Answer | None:
    rate = kernel.profile.get("lts__t_sector_hit_rate.pct")
    # What is read once cannot hit; a sector of which only a part was used could, when the rest of it is.
    return None if rate is None else Answer(rate < 50 and _wasteful(kernel), f"{min(rate, 100.0):.0f} % of L2's sectors hit")


def _launch(kernel: MeasuredKernel) -> Answer | None:
    if not kernel.profile.blocks or not kernel.sm_count:
        return None
    fill = kernel.profile.blocks / kernel.sm_count
    return Answer(fill <= 0.5, f"{kernel.profile.blocks:,} blocks of {kernel.profile.threads} threads on {kernel.sm_count} SMs")


def _mix(kernel: MeasuredKernel) -> Answer | None:
    ops = {name: thread_ops(kernel.profile, name) for name in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma")}
    executed = kernel.profile.get("smsp__inst_executed.sum")
    if any(n is None for name, n in ops.items() if name[0] in "fd") or executed is None:
        return None
    per_cycle = {kind: sum(n or 0.0 for name, n in ops.items() if name[0] == kind) for kind in "fdh"}
    told = ", ".join(f"{n:,.0f} {bits}" for n, bits in zip(per_cycle.values(), ("FP32", "FP64", "FP16"), strict=True) if n >= 0.5)
    return Answer(False, f"{large_count(executed)} warp instructions; {told or 'no floating point'} a cycle")


def _roofline(kernel: MeasuredKernel) -> Answer | None:
    memory, compute = memory_busy(kernel.profile, kernel.limits), kernel.limits.busy.get(COMPUTE)
    if memory is None or compute is None:
        return None
    return Answer(max(memory, compute) < BUSY, f"{compute:.0%} of peak compute, {memory:.0%} of peak memory")


def _clock(kernel: MeasuredKernel) -> Answer | None:
    hz = kernel.profile.get("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
    top = kernel.profile.get("device__attribute_max_gpu_frequency_khz", "device__attribute_clock_rate")
    if hz is None:
        return None
    of = f" of {top / 1e6:.2f}" if top else ""
    return Answer(False, f"measured at {hz / 1e9:.2f}{of} GHz: compare shares, not times, with other runs")


QUESTIONS: dict[str, tuple[Callable[[MeasuredKernel], Answer | None], str]] = {
    "coalescing": (_coalescing, "SourceCounters"),
    "shared memory": (_shared_memory, "MemoryWorkloadAnalysis_Tables"),
    "bank conflicts": (_conflicts, "SourceCounters"),
    "occupancy": (_occupancy, "Occupancy"),
    "limits": (_limits, "Occupancy"),
    "warp size": (_warp_size, "LaunchStats"),
    "divergence": (_divergence, "WarpStateStats"),
    "spills": (_spills, "MemoryWorkloadAnalysis_Tables"),
    "stalls": (_stall, "WarpStateStats"),
    "tail": (_tail, "LaunchStats"),
    "Tensor Cores": (_tensor_cores, "ComputeWorkloadAnalysis"),
    "precision": (_precision, "ComputeWorkloadAnalysis"),
    "vector loads": (_vector_loads, "MemoryWorkloadAnalysis_Tables"),
    "atomics": (_atomic, "MemoryWorkloadAnalysis_Tables"),
    "L2 hit rate": (_l2, "MemoryWorkloadAnalysis"),
    "launch size": (_launch, "LaunchStats"),
    "instruction mix": (_mix, "InstructionStats"),
    "roofline": (_roofline, "SpeedOfLight"),
    "clock": (_clock, "SpeedOfLight"),
    "flags": (_flags, ""),
}
"""The questions by name, each with the section of ncu that collects what it takes; none if the file itself holds it."""
