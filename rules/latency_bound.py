"""Kernels that wait although warps, blocks and accesses are in order."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.stalls import NO_STALL, STALLS
from advisor.report.finding import Code, Fix
from advisor.report.numbers import percent
from advisor.rules._kernels import Fine, Question, Seen, ask
from advisor.views.kernels.counters import (
    active_threads,
    global_access,
    issue_busy,
    shared_excess,
    stalls,
    waits_for_atomics,
)
from advisor.views.kernels.limits import REACHED, Gain
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

_WAITS = (
    "long_scoreboard",
    "short_scoreboard",
    "wait",
    "barrier",
    "membar",
    "imc_miss",
    "no_instruction",
    "branch_resolving",
    "sleeping",
)
"""Stalls that are latency. The others are queues that are full: something is busy after all."""

PARTLY = cost("work-in-flight")


@rule("latency-bound", relies_on=("counters",), min_saving_share=0.1)
def latency_bound(measured: MeasuredKernels, *, max_busy: float = 0.5, min_stall: float = 0.4, min_kernel_us: float = 10.0) -> Outcome:
    """A kernel waits for latency with nothing busy

    What
    The kernel has enough warps, but all of them wait. Each thread requests an item, waits for it, and only then
    requests the next.

    Why
    A response from DRAM takes 500 to 800 cycles. To keep 4.8 TB/s busy, 1.4 to 2.2 MB must be in flight: 10 to
    17 KB per SM. With a 4-byte load each, 1024 threads have 4 KB in flight.

    How to fix
    Start several independent loads before the first use:

        #pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = x[i + k * stride];   // eight loads in flight
        for (int k = 0; k < 8; ++k) sum += v[k];

    Load 16 bytes at a time (`float4`), and prefetch the next tile (`cp.async`, in Triton `num_stages`).

    When to ignore
    The dependency chain is the algorithm: a linked list, a recurrence, a search. Then run more of them at the
    same time.

    How it is measured
    From Nsight Compute: no resource is above `max_busy` ({max_busy}) of its peak. Occupancy is at least a half, with a
    full wave of blocks. The kernel takes `min_kernel_us` ({min_kernel_us} µs) or more, and a single stall reason takes
    `min_stall` ({min_stall}) of a warp's time. In the replay, work in flight doubles until a resource reaches 0.70 of
    its peak (`high` 0.92; `low` a third more work). Savings below `min_saving_share` ({min_saving_share}) of the kernel are
    not reported.

    References
    https://www.nvidia.com/content/GTC-2010/pdfs/2238_GTC2010.pdf
    https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#statistical-sampler
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        waits = [(name, share) for name, share in stalls(kernel.profile).items() if name not in NO_STALL]
        if not waits or not kernel.limits.known or kernel.occupancy is None:
            return None
        name, share = waits[0]
        busy = max(kernel.limits.highest, issue_busy(kernel.profile) or 0.0)
        long = (kernel.profile.duration_us or 0.0) >= min_kernel_us
        if name not in _WAITS or share < min_stall or busy > max_busy or not long or _explained(kernel):
            return Fine(share if busy <= max_busy else 0.0)
        best, likely, _ = REACHED
        gain = Gain.of_time(busy / best, max(busy / likely, 0.5), max(busy / likely, 1 / PARTLY))
        return Seen(
            f"has nothing busy (at most {percent(busy)} of a peak): a warp {STALLS[name]} for {share:.0%} of its time.",
            gain,
            0.6,
            _fix(name),
        )

    return ask(
        measured,
        Question(
            "of {count} kernels, those with no busy unit wait for the same latency at most {0:.0%} of a warp's time, are short, or have another cause",
            ("SpeedOfLight", "WarpStateStats", "Occupancy"),
        ),
        look,
    )


def _explained(kernel: MeasuredKernel) -> bool:
    """Whether the kernel waits for something that another rule speaks of."""
    profile, found = kernel.profile, kernel.occupancy
    threads, access = active_threads(profile), global_access(profile)
    return (
        (found is not None and found.theoretical < 0.5)
        or (kernel.waves is not None and kernel.waves < 1 and (not kernel.sm_count or profile.blocks < kernel.sm_count))
        or (threads is not None and threads < 16)
        or (access is not None and access.excess >= 0.5)
        or (shared_excess(profile) or 0.0) >= 0.5
        or waits_for_atomics(profile)
    )


def _fix(stall: str) -> Fix:
    steps = {
        "barrier": "Let fewer warps wait for each other: smaller blocks, __syncwarp or shuffles within a warp, two buffers and a single barrier per tile.",
        "wait": "Give each thread several independent chains of arithmetic, so that they hide each other's latency.",
        "short_scoreboard": "Load several words of shared memory, or start several special functions, before the first use.",
    }
    first = steps.get(stall, "Start several independent loads before the first use: unroll the loop, or give a thread several items.")
    return Fix(
        title="Keep more work in flight",
        steps=(
            first,
            "Load 16 bytes at a time (float4), if the addresses are aligned.",
            "Start the next tile's loads before the current tile is used: cp.async or TMA in CUDA, num_stages in Triton.",
        ),
        code=Code(
            before="// CUDA\nfor (; i < n; i += stride) sum += x[i];\n\n# Triton\nfor k in range(0, n, BLOCK):\n    acc += tl.load(ptr + k + offsets)",
            after="// CUDA\n#pragma unroll\nfor (int k = 0; k < 8; ++k) v[k] = x[i + k * stride];  // eight loads under way\n"
            "for (int k = 0; k < 8; ++k) sum += v[k];\n\n# Triton\nfor k in tl.range(0, n, BLOCK, num_stages=4):\n    acc += tl.load(ptr + k + offsets)",
        ),
        url="https://www.nvidia.com/content/GTC-2010/pdfs/2238_GTC2010.pdf",
        risk="More registers a thread: see that occupancy does not fall by more than the loads gain.",
    )
