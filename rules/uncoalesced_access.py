"""Global loads and stores of a warp that touch more sectors than their data fill."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.report.numbers import large_count
from advisor.rules._kernels import BUSY_MEMORY, MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules._wavefronts import many_wavefronts
from advisor.rules.fixes import known_fix
from advisor.views.kernels import counters
from advisor.views.kernels.limits import BUSY, DRAM, L1, L2, in_part, relieved
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels


@rule("uncoalesced-access", relies_on=("counters",), min_saving_share=MIN_SAVING)
def uncoalesced_access(measured: MeasuredKernels, *, max_excess: float = 0.3) -> Outcome:
    """A kernel's global memory accesses are not coalesced

    What
    The 32 threads of a warp access addresses that are far apart. Typical are a stride, a column of a row-major
    matrix, an array of structures, and random indices. Memory moves sectors of 32 bytes, and each contains few
    useful bytes.

    Why
    A warp that reads 32 adjacent floats touches 4 sectors; with a stride it touches 32. L1, L2 and often DRAM
    then move eight times the data.

    How to fix
    Let neighbouring threads access neighbouring addresses:

        y[row * width + threadIdx.x] = ...       // was: y[threadIdx.x * width + row]

    Use an array per field, sort the indices, or load a tile into shared memory in order.

    When to ignore
    The addresses are random by nature (hash tables, sparse gathers), and sorting costs more than it gains.

    How it is measured
    From Nsight Compute: excess sectors of global accesses over all their sectors. The rule reports `max_excess`
    ({max_excess}) or more. The saving is a bound: L1 moves packed sectors, L2 and DRAM only their misses. The busiest
    resource reaches 0.70 of its peak (`high` 0.92, `low` 0.50). Savings below `min_saving_share` ({min_saving_share}) of the
    kernel are not reported.

    References
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#coalesced-access-to-global-memory
    https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#metrics-reference
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        access = counters.global_access(kernel.profile)
        limits = kernel.limits
        if not limits.known:
            return None
        if access is None:
            # With shared memory in use its banks may be what conflicts.
            crowded = None if counters.shared_bytes(kernel.profile) else many_wavefronts(kernel, max_excess)
            return crowded and crowded.seen("its warps touch many lines at once", _FIX)
        busy = max(limits.busy.get(name, 0.0) for name in (DRAM, L2, L1))
        if access.excess < max_excess or busy < BUSY_MEMORY:
            return Fine(access.excess)
        gain = in_part(relieved(limits, _load_left(kernel, access), _load_left(kernel, access, twice=True)), min(busy / BUSY, 1.0))
        times = access.sectors / max(access.ideal, 1.0)
        return Seen(
            f"touches {times:.1f} times the {counters.SECTOR_BYTES}-byte sectors that its data fill: {access.excess:.0%} of {large_count(access.sectors)} are excess.",
            gain,
            0.9 if busy >= BUSY else 0.75,
            _FIX,
        )

    return ask(
        measured,
        Question(
            "of {count} kernels the worst touches {0:.0%} more sectors than needed, or no memory is busy for it",
            ("SourceCounters", "SpeedOfLight", "MemoryWorkloadAnalysis_Tables"),
        ),
        look,
    )


def _load_left(kernel: MeasuredKernel, access: counters.GlobalAccess, *, twice: bool = False) -> dict[str, float]:
    """Part of its load that each level keeps once data are packed. L1 hits never reached L2. A partly written sector may cost L2 `twice` a whole sector, since
    L2 tracks new bytes. Local memory's load stays.
    """
    extra = access.partial_stores if twice else 0.0
    left = {L1: access.ideal / (access.sectors + extra)}
    if access.misses:
        left[L2] = min(1.0, access.ideal / (access.misses + extra))
    read, written = (kernel.profile.get(f"dram__bytes_{way}.sum") for way in ("read", "write"))
    if read is not None and written is not None and access.load_bytes_ideal is not None and read + written > 0:
        left[DRAM] = (min(read, access.load_bytes_ideal) + written) / (read + written)
    elif moved := counters.dram_bytes(kernel.profile):
        left[DRAM] = min(1.0, access.ideal * counters.SECTOR_BYTES / moved)
    local = counters.local_share(kernel.profile) or 0.0
    passed = counters.local_miss_share(kernel.profile)
    other = {L1: local, L2: local if passed is None else passed, DRAM: local if passed is None else passed}
    return {level: other[level] + (1 - other[level]) * part for level, part in left.items()}


_FIX = known_fix("kernels", "uncoalesced-access")
