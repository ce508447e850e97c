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

    What
    Shared memory has 32 banks, each 4 bytes wide. Threads of a warp that need different words of the same bank
    get them serially. Typical causes are the column of a tile that is 32 words wide, and strides of a power of
    two.

    Why
    An access without conflicts is a single wavefront. With a 32-way conflict it is 32 wavefronts, and L1
    handles a wavefront per cycle.

    How to fix
    Pad each row by a word, or swizzle the columns:

        __shared__ float tile[32][33];          // padded
        value = tile[row][col ^ row];           // or swizzled

    Triton pads and swizzles by itself. There, try another block shape or `num_warps`.

    When to ignore
    The conflicting accesses are outside the loop that takes the time.

    How it is measured
    From Nsight Compute: wavefronts beyond those of the same accesses without conflicts, as a share of all
    shared-memory wavefronts. The rule reports a share of `max_excess` ({max_excess}) or more. L1 must be busy, or warps
    must wait for shared memory, for `min_busy` ({min_busy}) of the time. The saving is a bound: L1 without the excess,
    and the busiest resource at 0.70 of its peak. Savings below `min_saving_share` ({min_saving_share}) of the kernel are not
    reported.

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


_UNTOLD = "bank conflicts, or a warp's addresses in many lines (section SourceCounters shows which)"

_FIX = known_fix("kernels", "bank-conflicts")
