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

    What
    Variables of a thread did not fit into registers. Either the kernel needs more registers than allowed (a
    spill), or it indexes an array with a value that the compiler does not know. Both use local memory, which is
    DRAM behind the caches.

    Why
    A register is available immediately. Local memory takes an instruction, 30 cycles in L1, and bandwidth of
    L1, L2 and DRAM that the kernel's data need too.

    How to fix
    Unroll the loop that indexes the array, so that every index is a constant:

        #pragma unroll
        for (int k = 0; k < 8; ++k) acc[k] += a[k] * b;

    Or allow more registers: a larger `__launch_bounds__` budget, no `-maxrregcount`. Or keep fewer values at
    the same time.

    When to ignore
    The spills are outside the hot loop. Or fewer registers allow more warps, which gains more than the spills
    cost.

    How it is measured
    From Nsight Compute: local memory's share of the L1 sectors of global and local accesses. The rule reports
    `min_local_share` ({min_local_share}) or more, if some memory level is busy for 0.3 of the time. The saving is a bound: L1
    without that share, L2 and DRAM without its misses. The busiest resource reaches 0.70 of its peak (`high`
    0.92, `low` 0.50). Savings below `min_saving_share` ({min_saving_share}) of the kernel are not reported.

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
