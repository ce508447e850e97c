"""Counters of a measured kernel, as rules need them. None if they were not collected."""

from __future__ import annotations

import msgspec

from advisor.knowledge.alignment import ALIGNED_BYTES, ROUND_BYTES
from advisor.knowledge.occupancy import WARP
from advisor.knowledge.shares import CONSIDERABLE
from advisor.knowledge.stalls import STALLS
from advisor.recordings.kernel_profiles import KernelProfile

SECTOR_BYTES = 32  # of the caches and DRAM of every NVIDIA GPU since Maxwell

_EXCESSIVE = "derived__memory_l2_theoretical_sectors_global_excessive"
_SECTORS = "memory_l2_theoretical_sectors_global"
_IDEAL = "memory_l2_theoretical_sectors_global_ideal"


class GlobalAccess(msgspec.Struct, frozen=True):
    """Sectors of 32 bytes that global loads and stores touch, and how many the same data would take packed."""

    sectors: float
    ideal: float
    misses: float | None
    """Those that L1 does not have, stores among them."""
    load_bytes_ideal: float | None
    """What loads would read, packed."""
    partial_stores: float
    """Sectors that stores touch and fill only in part."""

    @property
    def excess(self) -> float:
        """Share of the sectors that packed data would not touch."""
        return max(0.0, 1 - self.ideal / self.sectors) if self.sectors > 0 else 0.0


def global_access(kernel: KernelProfile) -> GlobalAccess | None:
    """From the source counters; without those from the bytes that are used of each sector."""
    loads = kernel.get("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
    stores = kernel.get("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum")
    missed = kernel.get("l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_miss.sum")
    read = kernel.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio")
    written = kernel.get("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio")
    used = [
        (sectors, sectors * min(per_sector / SECTOR_BYTES, 1.0))
        for sectors, per_sector in ((loads, read), (stores, written))
        if sectors is not None and per_sector is not None
    ]
    load_bytes = loads * min(read, SECTOR_BYTES) if loads and read is not None else None
    partial = stores * (1 - min(written / SECTOR_BYTES, 1.0)) if stores and written is not None else 0.0
    excessive, total = kernel.get(_EXCESSIVE), kernel.get(_SECTORS)
    hit = kernel.get("l1tex__t_sector_hit_rate.pct")
    misses = None if missed is None else missed + (stores or 0.0)
    if misses is None and total is not None and hit is not None:
        only_stores = written is not None and read is None  # which L1 passes on, whatever it holds
        misses = total if only_stores else total * (1 - min(hit / 100, 1.0))
    if excessive is not None:
        total = total if total is not None else excessive + (kernel.get(_IDEAL) or 0.0)
        return GlobalAccess(total, total - excessive, misses, load_bytes, partial)
    if used:
        return GlobalAccess(sum(s for s, _ in used), sum(i for _, i in used), misses, load_bytes, partial)
    return None


def shared_excess(kernel: KernelProfile) -> float | None:
    """Share of the wavefronts of shared memory that bank conflicts add, 0 to 1."""
    excessive, total = kernel.get("derived__memory_l1_wavefronts_shared_excessive"), kernel.get("memory_l1_wavefronts_shared")
    if excessive is not None and total is not None:
        return excessive / total if total > 0 else 0.0
    pairs = [
        (kernel.get(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum"), kernel.get(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"))
        for op in ("ld", "st")
    ]
    known = [(conflicts, wavefronts) for conflicts, wavefronts in pairs if conflicts is not None and wavefronts is not None]
    wavefronts = sum(w for _, w in known)
    return None if not known else sum(c for c, _ in known) / wavefronts if wavefronts > 0 else 0.0


WIDEST = WARP * ALIGNED_BYTES / ROUND_BYTES
"""Wavefronts of a cache line that the widest load or store of a warp takes without conflicts."""

_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"
_REQUESTS = ("l1tex__lsuin_requests.avg.pct_of_peak_sustained_elapsed", "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed")


def wavefronts_a_request(kernel: KernelProfile) -> float | None:
    """Wavefronts of L1 and shared memory per load or store of a warp, from how busy each pipe is (at most one per cycle for both). None if Tensor Cores, which
    read shared memory without loads, share the pipe.
    """
    wavefronts, requests = kernel.get(_WAVEFRONTS), [pct for name in _REQUESTS if (pct := kernel.get(name))]
    if wavefronts is None or not requests or (pipe_busy(kernel, "tensor") or 0.0) >= 0.05:
        return None
    return wavefronts / max(requests)


def shared_bytes(kernel: KernelProfile) -> float:
    """Shared memory that a block of the program's own asks for."""
    return sum(kernel.get(f"launch__shared_mem_per_block_{part}") or 0.0 for part in ("static", "dynamic"))


def active_threads(kernel: KernelProfile) -> float | None:
    """Mean threads of a warp that take part in an instruction, of 32."""
    return kernel.get("smsp__thread_inst_executed_per_inst_executed.ratio")


class Atomics(msgspec.Struct, frozen=True):
    """Atomic operations on global memory. `busiest` and `mean`: of L2's slices, how much of the time their atomic units work."""

    operations: float
    """Lanes' operations, those that a warp's instruction merges counted once."""
    a_block: float
    """Of them, for each block."""
    busiest: float | None
    mean: float | None


def atomics(kernel: KernelProfile) -> Atomics | None:
    """Its atomic operations on global memory; None if they were not counted."""
    known = [kernel.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum", f"lts__t_sectors_srcunit_tex_op_{op}.sum") for op in ("red", "atom")]
    if all(n is None for n in known):
        return None
    unit = "lts__d_atomic_input_cycles_active.{}.pct_of_peak_sustained_elapsed"
    busiest, mean = kernel.get(unit.format("max")), kernel.get(unit.format("avg"))
    operations = sum(n or 0.0 for n in known)
    a_block = operations / max(kernel.blocks, 1)
    return Atomics(operations, a_block, None if busiest is None else busiest / 100, None if mean is None else mean / 100)


QUEUED = CONSIDERABLE
"""Busy share of the busiest atomic unit from which a kernel waits for it: float additions to a single address keep it busy for a third."""
SPREAD = 4.0
"""How many times as busy as the mean of all slices that one is."""


def waits_for_atomics(kernel: KernelProfile) -> bool:
    """Whether atomics queue at few addresses: then neither more blocks nor fewer instructions make it faster."""
    found = atomics(kernel)
    return found is not None and (found.busiest or 0.0) >= max(QUEUED, SPREAD * (found.mean or 0.0))


_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"


def stalls(kernel: KernelProfile) -> dict[str, float]:
    """Share of a warp's time by reason, largest first; none if they were not collected."""
    cycles = {name: kernel.get(_STALL.format(name)) for name in STALLS}
    known = {name: c for name, c in cycles.items() if c is not None and c > 0}
    total = max(kernel.get(_LATENCY) or 0.0, sum(known.values()))
    return dict(sorted(((name, c / total) for name, c in known.items()), key=lambda item: -item[1])) if total > 0 else {}


MEMORY_STALLS = ("long_scoreboard", "lg_throttle", "tex_throttle", "drain")
_FETCHES = (*MEMORY_STALLS, "imc_miss", "no_instruction")


def fetch_waits(kernel: KernelProfile) -> float:
    """Share of a warp's time that it waits for memory, a constant or its next instructions; 0 where stalls were not collected."""
    return sum(share for name, share in stalls(kernel).items() if name in _FETCHES)


def issue_busy(kernel: KernelProfile) -> float | None:
    """Share of the cycles in which a scheduler issues an instruction, 0 to 1."""
    pct = kernel.get(
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
    )
    return None if pct is None else pct / 100


def local_share(kernel: KernelProfile) -> float | None:
    """Share of L1's sectors, global and local, that local memory (spilled registers, indexed arrays) takes."""
    names = ("l1tex__t_sectors_pipe_lsu_mem_{}_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_{}_op_st.sum")
    local = [kernel.get(name.format("local")) for name in names]
    if all(n is None for n in local):
        return _spilled_share(kernel)
    own = sum(n or 0.0 for n in local)
    total = own + sum(kernel.get(name.format("global")) or 0.0 for name in names)
    return own / total if total > 0 else 0.0


def local_miss_share(kernel: KernelProfile) -> float | None:
    """Share of what L1 passes on to L2, of global and local memory, that is local; None where misses were not collected."""
    missed = {space: [kernel.get(f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{op}_lookup_miss.sum") for op in ("ld", "st")] for space in ("local", "global")}
    local, other = (sum(n or 0.0 for n in counts) for counts in missed.values())
    return local / (local + other) if local + other > 0 else None


def _spilled_share(kernel: KernelProfile) -> float | None:
    """From the details page: a spill's request is four sectors, and no more than DRAM moves is the kernel's own."""
    requests, moved = kernel.get("derived__local_spilling_requests"), dram_bytes(kernel)
    if not requests or not moved:  # an array that is indexed at run time is no spill: that page does not show it
        return None
    return 4 * requests / (4 * requests + moved / SECTOR_BYTES)


def local_instructions(kernel: KernelProfile) -> float | None:
    """Share of the warp instructions that read or write local memory."""
    requests = [kernel.get(f"l1tex__t_requests_pipe_lsu_mem_local_op_{op}.sum") for op in ("ld", "st")]
    executed = kernel.get("smsp__inst_executed.sum")
    return None if not executed or all(n is None for n in requests) else min(sum(n or 0.0 for n in requests) / executed, 1.0)


def pipe_busy(kernel: KernelProfile, pipe: str) -> float | None:
    """How busy an arithmetic unit (`fp64`, `fma`, `tensor`) is, 0 to 1."""
    pct = kernel.get(
        f"sm__pipe_{pipe}_cycles_active.avg.pct_of_peak_sustained_elapsed",
        f"sm__pipe_{pipe}_cycles_active.avg.pct_of_peak_sustained_active",
        f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_elapsed",
        f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_active",
        f"remark__{pipe}_flops.pct_of_peak",
    )
    return None if pct is None else pct / 100


def fused_share(kernel: KernelProfile) -> float | None:
    """Share of fused multiply-adds in FP32 instructions. If not counted, from the reached share of the peak and the units' busy time: a fused instruction does
    two operations, another does one.
    """
    ops = {op: thread_ops(kernel, op) for op in ("fadd", "fmul", "ffma")}
    total = sum(n or 0.0 for n in ops.values())
    if all(n is not None for n in ops.values()):
        return (ops["ffma"] or 0.0) / total if total else 0.0
    reached, busy = (kernel.get("remark__fp32_flops.pct_of_peak"), kernel.get("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"))
    return None if reached is None or not busy else min(max(2 * reached / busy - 1, 0.0), 1.0)


def thread_ops(kernel: KernelProfile, op: str) -> float | None:
    """Threads' instructions of a kind (`ffma`, `dadd`, …) a cycle of the whole device."""
    return kernel.get(
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed", f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed"
    )


def dram_bytes(kernel: KernelProfile) -> float | None:
    """Bytes that DRAM reads and writes, else their rate times the duration."""
    read, written = (kernel.get(f"dram__bytes_{way}.sum") for way in ("read", "write"))
    rate, us = kernel.get("dram__bytes.sum.per_second"), kernel.duration_us
    if read is not None and written is not None:
        return read + written
    return rate * us / 1e6 if rate is not None and us else None
