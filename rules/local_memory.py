"""Local memory: registers that spilled, and arrays that are indexed by what the data say."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.knowledge.measured_costs import cost
from advisor.rules._kernels import BUSY_MEMORY, MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules.fixes import known_fix
from advisor.views.kernels.counters import issue_busy, local_instructions, local_miss_share, local_share
from advisor.views.kernels.limits import BUSY, COMPUTE, DRAM, L1, L2, in_part, relieved
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

ADDRESSED = cost("computed-index")


@rule("local-memory", relies_on=("counters",), min_saving_share=MIN_SAVING)
def local_memory(measured: MeasuredKernels, *, min_local_share: float = 0.2) -> Outcome:
    """A kernel keeps its variables in local memory

    What it is
    Variables that found no register: the kernel needs more than it may have (a spill), or an array in it is indexed by a value
    that the compiler does not know. Both go to local memory, which is DRAM behind the caches.

    Why it costs time
    A register is read at once; local memory takes an instruction, some 30 cycles in L1, and the bandwidth of L1, L2 and DRAM that
    the data of the kernel want too.

    How it is measured
    Sectors that local loads and stores take of all that global and local ones take in L1 (`l1tex__t_sectors_pipe_lsu_mem_local_op_ld`
    and `_st`, section MemoryWorkloadAnalysis_Tables): a kernel at `min_local_share` ({min_local_share}) or more, where some level of memory is
    busy for 0.3. The saving is a bound: L1 loses that share of its load, L2 and DRAM what of it missed, and the kernel takes as
    long as the busiest resource needs at 0.70 of its peak (`high` 0.92, `low` 0.50).
    Reported from `min_saving_share` of the kernel's time ({min_saving_share}).

    How to fix it
    Unroll the loop whose counter indexes the array (`#pragma unroll`), so that every index is known; allow more registers (a larger
    `__launch_bounds__` budget, no `-maxrregcount`), or hold less at once.

    When to ignore it
    Where the spills are outside the hot loop, or fewer registers bring more warps than the spills cost.

    References
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#local-memory
    https://developer.nvidia.com/blog/fast-dynamic-indexing-private-arrays-cuda/
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        share, limits = local_share(kernel.profile), kernel.limits
        if share is None or not limits.known:
            return None
        busy = max(limits.busy.get(name, 0.0) for name in (DRAM, L2, L1))
        if share < min_local_share or busy < BUSY_MEMORY:
            return Fine(share)
        gain = in_part(relieved(limits, _load_left(kernel, share), _load_left(kernel, share, ADDRESSED)), min(busy / BUSY, 1.0))
        registers = kernel.profile.get("launch__registers_per_thread")
        held = f" with {registers:.0f} registers a thread" if registers else ""
        return Seen(f"spends {share:.0%} of its L1 traffic on local memory{held}.", gain, 0.8, _FIX)

    return ask(
        measured,
        Question(
            "of {count} kernels at most {0:.0%} of the L1 traffic is local memory, or no memory is busy for it",
            ("MemoryWorkloadAnalysis_Tables", "SpeedOfLight"),
        ),
        look,
    )


def _load_left(kernel: MeasuredKernel, share: float, instructions: float = 1.0) -> dict[str, float]:
    """Part of its load that each level keeps. Of L2's and DRAM's load local memory has the share that it has of L1's misses.
    Computing loses the queue of loads and stores, and so many `instructions` for each access."""
    left = {L1: 1 - share}
    compute, issue, local = kernel.limits.busy.get(COMPUTE, 0.0), issue_busy(kernel.profile), local_instructions(kernel.profile)
    if compute and issue is not None and local is not None:
        left[COMPUTE] = max(1 - share, min(issue / compute, 1.0) * (1 - min(instructions * local, 1.0)))
    missed = local_miss_share(kernel.profile)
    left[L2] = left[DRAM] = 1 - (share if missed is None else missed)
    return left


_FIX = known_fix("kernels", "local-memory")
