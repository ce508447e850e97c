"""Atomic operations that queue at few addresses."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.report.numbers import many
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

    What it is
    Many threads add to the same few words of global memory: a counter, a loss, a histogram of few bins.

    Why it costs time
    Each address lives in one slice of L2, whose atomic unit takes one operation after the other: about one a nanosecond for the
    whole device, while every other unit waits.

    How it is measured
    The busiest L2 slice's atomic unit works for at least `min_unit_busy` of the time ({min_unit_busy}: additions of floats to one address keep it
    busy for a third), `min_spread` times as much as the mean of all ({min_spread}), with `min_a_block` operations a block or more
    ({min_a_block}: the fix leaves one), while no other resource is above `max_busy` ({max_busy})
    (`lts__d_atomic_input_cycles_active`, section MemoryWorkloadAnalysis_Tables). The saving is a bound: without atomics the kernel
    takes as long as its busiest resource needs at 0.70 of its peak (`high` 0.92; `low` 0.50, and no less than a quarter of today's
    time).
    Reported from `min_saving_share` of the kernel's time ({min_saving_share}).

    How to fix it
    Add within the warp (`__shfl_down_sync`, `__reduce_add_sync`), then within the block in shared memory, and do one atomic a block. For
    histograms keep the bins in shared memory.

    When to ignore it
    Where the number of atomics cannot be known to be large: a few per block are free.

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
            f"does {many(found.operations)} atomic operations on few addresses: one slice of L2 is busy with them for {found.busiest:.0%} of the "
            "time, and all else waits.",
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
