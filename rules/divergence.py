"""Warps whose threads take different ways."""

from __future__ import annotations

from math import ceil

from advisor.engine.rule import Outcome, rule
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.occupancy import WARP
from advisor.knowledge.structs import replace
from advisor.rules._kernels import MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules.fixes import known_fix
from advisor.views.kernels.counters import active_threads, fetch_waits, waits_for_atomics
from advisor.views.kernels.limits import COMPUTE, Gain, in_part, reach
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

KEPT = costs("divergent-work")


@rule("divergence", relies_on=("counters",), min_saving_share=MIN_SAVING)
def divergence(measured: MeasuredKernels, *, max_active_share: float = 0.75) -> Outcome:
    """Threads of a warp take different branches

    What
    Neighbouring threads take different branches, or run loops of different lengths. The warp executes every
    path that any of its threads takes, with the other threads inactive.

    Why
    A warp with eight paths executes up to eight times the instructions.

    How to fix
    Let the threads of a warp do the same work. Sort or bin items by kind or length, or give each irregular item
    to a whole warp. For short branches, compute both sides and select:

        // before
        if (x[i] > 0) y[i] = f(x[i]); else y[i] = g(x[i]);
        // after, if f and g are short
        float a = f(x[i]), b = g(x[i]);
        y[i] = x[i] > 0 ? a : b;

    When to ignore
    The divergent part is a small part of the kernel, such as the epilogue of a reduction.

    How it is measured
    From Nsight Compute: mean active threads per instruction, of 32 or of the lanes that the block fills. The
    rule reports kernels below `max_active_share` ({max_active_share}). Kernels that are memory-bound or queue at atomics gain
    nothing and are not reported. Neither are savings below `min_saving_share` ({min_saving_share}) of the kernel.

    | Estimate | Instructions that remain |
    |---|---|
    | `low` | the active share |
    | `expected` | a fifth less, for the branches |
    | `high` | half of that share |

    References
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#branching-and-divergence
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        active = active_threads(kernel.profile)
        if active is None or not kernel.limits.known:
            return None
        threads = kernel.profile.threads or WARP
        share = active * ceil(threads / WARP) / threads  # of the lanes that its blocks fill: the last warp may be a part of one
        if share >= max_active_share or waits_for_atomics(kernel.profile):
            return Fine(share)
        # Where instructions do not hold it up, what is issued beside a branch costs nothing that is seen: no more goes than the lanes that are off.
        kept = KEPT if kernel.issues else (1.0, 1.0, 1.0)
        gain = Gain.of_time(
            *(max(kernel.limits.left({COMPUTE: share * part}) / reached, share * part) for part, reached in zip(kept, reach(kernel.limits), strict=True))
        )
        if not kernel.issues:
            gain = replace(in_part(gain, 1 - fetch_waits(kernel.profile)), low=0.0)
        return Seen(
            f"runs its instructions for {active:.1f} of {WARP} threads on average; the others branch elsewhere and wait.",
            gain,
            0.9 if kernel.limits.busy.get(COMPUTE, 0.0) >= 0.6 else 0.7,
            _FIX,
        )

    return ask(
        measured,
        Question(
            "of {count} kernels each has more than the share of active threads that is asked, or is bound by memory (at best {0:.0%} active)",
            ("WarpStateStats", "SpeedOfLight", "SourceCounters"),
        ),
        look,
    )


_FIX = known_fix("kernels", "divergence")
