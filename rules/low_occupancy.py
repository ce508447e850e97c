"""Kernels that wait, with too few warps on an SM to have others run meanwhile."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.knowledge import occupancy
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.occupancy import WARP
from advisor.knowledge.shares import CONSIDERABLE
from advisor.report.finding import Code, Fix
from advisor.report.numbers import counted
from advisor.rules._kernels import MIN_SAVING, Fine, Question, Seen, ask
from advisor.views.kernels.counters import issue_busy
from advisor.views.kernels.fill import fill, warps
from advisor.views.kernels.limits import REACHED, Gain
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

MOST_EMPTY = 1 - CONSIDERABLE
"""Of the lanes of a block's warps: blocks whose threads fill no more leave at least every fourth lane empty."""

MORE = {
    occupancy.SHARED: costs("more-warps-by-shared-memory"),
    occupancy.WARPS: costs("more-warps-by-threads"),
    occupancy.REGISTERS: costs("more-warps-by-registers"),
    occupancy.BLOCKS: costs("more-warps-by-blocks"),
}


@rule("low-occupancy", relies_on=("counters",), min_saving_share=MIN_SAVING)
def low_occupancy(measured: MeasuredKernels, *, max_occupancy: float = 0.5, max_busy: float = 0.6) -> Outcome:
    """A kernel waits, with too few warps to hide it

    What
    Registers, shared memory or block size allow few warps of a kernel on an SM, and those warps wait. Or blocks
    are so small that many lanes of their warps are empty.

    Why
    While a warp waits 500 cycles for memory, other warps can run. With few warps, too few bytes are in flight,
    so neither memory nor arithmetic is ever busy (Little's law).

    How to fix
    Reserve only the shared memory in use, bound registers, and use blocks of 128 to 256 threads:

        __global__ void __launch_bounds__(256, 4) kernel(...)      // at most 64 registers
        kernel<<<blocks, 256, bytes_used>>>(...);

    Or give each thread more independent work.

    When to ignore
    Each thread already has much independent work in flight.

    How it is measured
    From Nsight Compute: theoretical occupancy below `max_occupancy` ({max_occupancy}), no resource and no scheduler above
    `max_busy` ({max_busy}) of its peak. Low occupancy alone is no finding: GEMMs run at 0.12 with every unit busy. In
    the replay, the kernel speeds up with its warps until a resource is busy. Savings below `min_saving_share`
    ({min_saving_share}) of the kernel are not reported.

    | Limit | More warps, `low` / `expected` / `high` |
    |---|---|
    | shared memory | 2 / 4 / 16 times |
    | registers, threads, blocks | 1 / 2 / 4 times |
    | empty lanes | whole warps: nothing / until a unit is at 0.70 / in proportion |

    References
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy
    https://www.nvidia.com/content/GTC-2010/pdfs/2238_GTC2010.pdf
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        found, issue = kernel.occupancy, issue_busy(kernel.profile)
        if found is None or not kernel.limits.known or not found.theoretical:
            return None
        full = kernel.profile.threads / (warps(kernel) * WARP)
        # Whole warps still fill the device, or this grid does more than that.
        enough = kernel.waves is None or kernel.waves >= 1 or (kernel.sm_count > 0 and full * fill(kernel) >= 1)
        if 0 < full <= MOST_EMPTY and enough:
            return _empty_lanes(kernel, full)
        waits = kernel.limits.highest < max_busy and (issue is None or issue < max_busy)
        filled = kernel.waves is None or kernel.waves >= 1
        if found.theoretical >= max_occupancy or not waits or not filled:
            return Fine(max(1 - found.theoretical, 0.0) if waits else 0.0)
        gain = Gain.of_time(
            *(max(1 / min(more, 1 / found.theoretical), kernel.limits.highest / reached) for more, reached in zip(MORE[found.limiter], REACHED, strict=True))
        )
        return Seen(
            f"fits {found.blocks} block{'s' * (found.blocks != 1)} on an SM, {found.theoretical:.0%} of its warps; "
            f"{_LIMITED[found.limiter]} {'limits' if found.limiter == occupancy.SHARED else 'limit'} it and nothing is busy.",
            gain,
            0.85 if found.limiter == occupancy.SHARED else 0.65,
            _fix(kernel, found.limiter),
        )

    return ask(
        measured,
        Question(
            "of {count} kernels each has half of its warps or more, or keeps a resource busy, or does not fill the device",
            ("Occupancy", "LaunchStats", "SpeedOfLight", "SchedulerStats"),
        ),
        look,
    )


def _empty_lanes(kernel: MeasuredKernel, full: float) -> Seen:
    """Blocks with many empty lanes per warp: full warps do the same work with fewer instructions and requests, unless memory is as busy (expected), or items
    are independent (perhaps nothing).
    """
    best, likely, _ = REACHED
    gain = Gain.of_time(max(full, full * kernel.limits.highest / best), max(full, min(kernel.limits.highest / likely, 1.0)), 1.0)
    return Seen(
        f"runs blocks of {counted(kernel.profile.threads, 'thread')}: {1 - full:.0%} of the lanes of their warps are empty.",
        gain,
        0.85,
        _fix(kernel, occupancy.BLOCKS),
    )


_LIMITED = {
    occupancy.REGISTERS: "registers",
    occupancy.SHARED: "shared memory",
    occupancy.WARPS: "threads",
    occupancy.BLOCKS: "blocks",
}


def _fix(kernel: MeasuredKernel, limiter: str) -> Fix:
    threads = kernel.profile.threads
    whole = f" {threads} threads are no multiple of {WARP}: the last warp of each block is not full." if threads % WARP else ""
    registers = int(kernel.profile.get("launch__registers_per_thread") or 0)
    steps = {
        occupancy.SHARED: "Reserve only the shared memory that the block uses, or divide the tile among smaller blocks.",
        occupancy.REGISTERS: f"Bound the {registers} registers a thread with __launch_bounds__ and see that nothing spills (ptxas -v). "
        "In Triton: more num_warps for the same block, or a smaller block.",
        occupancy.WARPS: "Use smaller blocks, so that another block fits on the SM.",
        occupancy.BLOCKS: "Use larger blocks: an SM tracks a fixed number of blocks, however small.",
    }
    return Fix(
        title="Let more warps onto each SM" if limiter != occupancy.BLOCKS else "Take larger blocks",
        steps=(
            steps[limiter] + whole,
            "Or give each thread several independent loads before the first use: fewer warps then hide the same latency.",
        ),
        code=Code(
            before="// CUDA\nkernel<<<blocks, 256, 200 << 10>>>(…);\n__global__ void kernel(…)\n\n# Triton\nkernel[grid](…, BLOCK=4096, num_warps=4)",
            after="// CUDA\nkernel<<<blocks, 256, bytes_used>>>(…);\n__global__ void __launch_bounds__(256, 4) kernel(…)\n\n"
            "# Triton: less for each program to hold\nkernel[grid](…, BLOCK=1024, num_warps=4)",
        ),
        url="https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#occupancy",
        risk="Registers that are bounded too tightly spill to local memory.",
    )
