"""Atomic operations that queue at few addresses."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.report.numbers import large_count
from advisor.rules._kernels import MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules.fixes import known_fix
from advisor.views.kernels.counters import QUEUED, SPREAD, Atomics, atomics
from advisor.views.kernels.limits import DRAM, L1, L2, Gain, relieved
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels


@rule("atomic-contention", relies_on=("counters",), min_saving_share=MIN_SAVING)
def atomic_contention(
    measured: MeasuredKernels,
    *,
    min_unit_busy: float = QUEUED,
    min_spread: float = SPREAD,
    min_a_block: float = 4.0,
    max_busy: float = 0.6,
) -> Outcome:
    """Atomic operations queue at few addresses

    What
    Many threads add to the same few words of global memory: a counter, a loss, or a histogram with few bins.

    Why
    Each address belongs to a slice of L2. Its atomic unit runs operations serially: about 1 per nanosecond for
    the whole GPU, while every other unit waits.

    How to fix
    Add within the warp, then within the block, and use a single atomic per block:

        float sum = warp_sum(value);                      // __shfl_down_sync
        if (lane == 0) partial[warp] = sum;               // shared memory
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(out, block_sum(partial));

    For histograms, keep the bins in shared memory.

    When to ignore
    The kernel does only a few atomics per block. These cost nothing.

    How it is measured
    From Nsight Compute: `lts__d_atomic_input_cycles_active` of the busiest L2 slice. The saving is a bound:
    without atomics, the kernel takes the time of its busiest resource. Savings below `min_saving_share` ({min_saving_share})
    of the kernel are not reported.

    | Condition or estimate | Value |
    |---|---|
    | `min_unit_busy`: busiest atomic unit | at least {min_unit_busy} of the time |
    | `min_spread`: busiest over mean slice | at least {min_spread} |
    | `min_a_block`: atomics per block | at least {min_a_block} |
    | `max_busy`: any other resource | at most {max_busy} |
    | peak rate reached, `low` / `expected` / `high` | 0.50 / 0.70 / 0.92 |

    References
    https://developer.nvidia.com/blog/gpu-pro-tip-fast-histograms-using-shared-atomics-maxwell/
    https://developer.nvidia.com/blog/cuda-pro-tip-optimized-filtering-warp-aggregated-atomics/
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        found = atomics(kernel.profile)
        if found is None or not kernel.limits.known or found.busiest is None:
            return None
        others = max(kernel.limits.busy.get(name, 0.0) for name in (DRAM, L1))
        if found.busiest < min_unit_busy or found.busiest < min_spread * (found.mean or 0.0) or found.a_block < min_a_block or others > max_busy:
            return Fine(found.busiest)
        gain = _gain(kernel, found)
        return Seen(
            f"does {large_count(found.operations)} atomic operations on few addresses. A single L2 slice is busy with them for {found.busiest:.0%} of the "
            "time; all else waits.",
            gain,
            0.9,
            _FIX,
        )

    return ask(
        measured,
        Question(
            "of {count} kernels the busiest atomic unit works for {0:.0%} of the time, or all of them share the work",
            ("MemoryWorkloadAnalysis_Tables", "SpeedOfLight"),
        ),
        look,
    )


def _gain(kernel: MeasuredKernel, found: Atomics) -> Gain:
    sectors = kernel.profile.get("lts__t_sectors.sum")
    without = max(0.0, 1 - found.operations / sectors) if sectors else 0.0
    return relieved(kernel.limits, {L2: without}, floor=(0.0, 0.0, 0.25))


_FIX = known_fix("kernels", "atomic-contention")
