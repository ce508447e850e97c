"""Warps whose threads take different ways."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from advisor.engine.rule import Outcome, rule
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.occupancy import WARP
from advisor.rules._kernels import MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules.fixes import known_fix
from advisor.views.kernels.counters import active_threads, fetch_waits, waits_for_atomics
from advisor.views.kernels.limits import COMPUTE, Gain, in_part, reach
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

KEPT = costs("divergent-work")


@rule("divergence", relies_on=("counters",), min_saving_share=MIN_SAVING)
def divergence(measured: MeasuredKernels, *, max_active_share: float = 0.75) -> Outcome:
    """Threads of a warp take different ways

    What it is
    Neighbouring threads take different branches, or loops of different length. A warp runs every way that one of its threads
    takes, with the others switched off.

    Why it costs time
    A warp of 8 ways issues up to 8 times the instructions.

    How it is measured
    Mean threads that take part in an instruction (`smsp__thread_inst_executed_per_inst_executed.ratio`, section WarpStateStats)
    of 32, or of the lanes that its blocks fill where that is fewer (42 threads are 21 in each of two warps): a kernel under `max_active_share` ({max_active_share}). The saving: instructions shrink to that
    share, and by a fifth of the rest for the branches themselves (`low` none, `high` half), and the kernel takes as long as those
    need, or the busiest resource at 0.70 of its peak. Where neither arithmetic nor the schedulers are busy for 0.6 of the time, at most the share of the
    lanes that are off (`high`), likely of the time in which warps do not wait for memory, constants or instructions, perhaps nothing (`low`). What is bound by memory, or queues at an atomic, gains nothing, and is not reported.
    Reported from `min_saving_share` of the kernel's time ({min_saving_share}).

    How to fix it
    Let a warp's threads do the same: sort or bin the items by kind or length, give a warp (not a thread) to each irregular item,
    or compute both short branches and select.

    When to ignore it
    Where the divergent part is a small part of the source, as the first lane's epilogue of a reduction.

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
            f"issues its instructions for {active:.1f} of {WARP} threads on average: the others take another way and wait.",
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
