"""Threads of a warp that want different words of the same bank of shared memory."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.rules._kernels import MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules._wavefronts import many_wavefronts
from advisor.rules.fixes import known_fix
from advisor.views.kernels.counters import shared_bytes, shared_excess, stalls
from advisor.views.kernels.limits import L1, Gain, relieved
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

_WAITS = ("short_scoreboard", "mio_throttle", "barrier")
"""Stalls that shared memory makes longer: its latency, its queue, and the barrier behind it."""


@rule("bank-conflicts", relies_on=("counters",), min_saving_share=MIN_SAVING)
def bank_conflicts(measured: MeasuredKernels, *, max_excess: float = 0.3, min_busy: float = 0.3) -> Outcome:
    """A kernel's shared memory accesses conflict

    What it is
    Shared memory has 32 banks, one word of 4 bytes each. Threads of a warp that want different words of the same bank get
    them one after the other: a column of a tile 32 words wide, a stride of a power of two.

    Why it costs time
    An access without conflicts is one wavefront, one with a 32-way conflict is 32, and L1 handles one a cycle.

    How it is measured
    Wavefronts of shared memory beyond those that the same accesses would take without conflicts, over all of them
    (`derived__memory_l1_wavefronts_shared_excessive`, section SourceCounters; without it, bank conflicts over wavefronts; without
    both, in a kernel with shared memory that keeps L1's pipe busiest, wavefronts for each request beyond the 4 of the widest access): a
    kernel above `max_excess` ({max_excess}), where L1 is busy, or warps wait for shared memory, for at least `min_busy` ({min_busy}) of the
    time: conflicts that nobody waits for cost nothing. The saving is a bound: L1 keeps the load without the excess, and the
    kernel takes as long as the busiest resource needs at 0.70 of its peak (`high` 0.92, `low` 0.50, or only as much as the
    excess is of the stalls).
    Reported from `min_saving_share` of the kernel's time ({min_saving_share}).

    How to fix it
    One word of padding a row (`tile[32][33]`), or a swizzle (column XOR row), so that a column lies in 32 banks. Triton pads and
    swizzles by itself; there another block shape or `num_warps` helps.

    When to ignore it
    Where the conflicting accesses are outside the loop that takes the time.

    References
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#shared-memory-and-memory-banks
    https://developer.nvidia.com/blog/efficient-matrix-transpose-cuda-cc/
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        excess = shared_excess(kernel.profile)
        if not kernel.limits.known:
            return None
        if excess is None:
            crowded = many_wavefronts(kernel, max_excess) if shared_bytes(kernel.profile) else None
            return crowded and crowded.seen(_UNTOLD, _FIX)
        waits = sum(share for name, share in stalls(kernel.profile).items() if name in _WAITS)
        if excess < max_excess or max(kernel.limits.busy.get(L1, 0.0), waits) < min_busy:
            return Fine(excess)
        bound = relieved(kernel.limits, {L1: 1 - excess})
        gain = Gain(min(bound.low, excess * waits), bound.expected, bound.high) if waits else bound
        return Seen(
            f"takes {1 / max(1 - excess, 1e-3):.1f} times the wavefronts of shared memory that it needs: {excess:.0%} are bank conflicts.",
            gain,
            0.9 if kernel.limits.busy.get(L1, 0.0) >= 0.6 else 0.75,
            _FIX,
        )

    return ask(
        measured,
        Question(
            "of {count} kernels at most {0:.0%} of the shared memory wavefronts are conflicts, or nothing waits for them",
            ("SourceCounters", "SpeedOfLight", "MemoryWorkloadAnalysis_Tables", "WarpStateStats"),
        ),
        look,
    )


_UNTOLD = "conflicts of banks, or a warp's addresses in many lines: section SourceCounters tells which"

_FIX = known_fix("kernels", "bank-conflicts")
