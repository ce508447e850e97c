"""Double precision where single may do."""

from __future__ import annotations

from advisor.engine.rule import Outcome, rule
from advisor.knowledge.measured_costs import costs
from advisor.knowledge.op_tokens import has_token
from advisor.knowledge.structs import replace
from advisor.rules._kernels import MIN_SAVING, Fine, Question, Seen, ask
from advisor.rules.fixes import known_fix
from advisor.views.kernels.counters import pipe_busy, thread_ops
from advisor.views.kernels.limits import COMPUTE, Gain, in_part, reach
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels

OPS = ("add", "mul", "fma")
KEPT = costs("fp64-work")


@rule("fp64", relies_on=("counters",), min_saving_share=MIN_SAVING)
def fp64(measured: MeasuredKernels, *, min_busy: float = 0.25) -> Outcome:
    """A kernel computes in double precision

    What
    A kernel contains FP64 instructions. Typical causes are a constant without an f (`0.5 * x`), a double
    function (`tanh(x)`, `pow(x, 2.0)`), or a value kept in double.

    Why
    Data-center GPUs (V100, A100, H100, B200, MI300X) have half as many FP64 units as FP32 units. Most others
    have 1/32 or 1/64. Divisions, conversions and functions take several times the instructions in FP64.

    How to fix
    Write constants with an f, and call single-precision functions:

        y = 0.5f * tanhf(x);           // was: 0.5 * tanh(x)

    Keep double only for sums that need it. `-Xptxas -warn-double-usage` lists the uses.

    When to ignore
    The result needs more than seven digits: long sums, geometry, some physics. A kernel with double parameters
    gets a lower confidence, because that was a choice.

    How it is measured
    From Nsight Compute: the FP64 unit must be busy for `min_busy` ({min_busy}) of the time. The saving is a bound:
    FP64 work shrinks, and the busiest memory reaches 0.70 of its peak. Savings below `min_saving_share` ({min_saving_share})
    of the kernel are not reported.

    | Estimate | FP64 work that remains |
    |---|---|
    | `low` | four fifths |
    | `expected` | half |
    | `high` | a fifth |

    References
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#arithmetic-instructions
    https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#single-vs-double-precision
    """

    def look(kernel: MeasuredKernel) -> Seen | Fine | None:
        busy = pipe_busy(kernel.profile, "fp64")
        if busy is None or not kernel.limits.known:
            return None
        if busy < min_busy:
            return Fine(busy)
        gain, sure = _gain(kernel), 0.5 if has_token(kernel.profile.name, "fp64_by_name") else 0.85
        told = f"keeps the FP64 unit busy for {busy:.0%} of the time"
        if kernel.issues:
            return Seen(f"{told}.", gain, sure, known_fix("cuda", "fp64"))
        # A kernel that waits may wait for what is long in double precision, or for something else: the unit explains the time for which it works.
        waiting = in_part(gain, busy)
        return Seen(
            f"{told}, and nothing for most of it: how much it waits for that is not known.",
            replace(waiting, low=0.0),
            0.7 * sure,
            known_fix("cuda", "fp64"),
            "medium",
        )

    return ask(
        measured,
        Question(
            "of {count} kernels the busiest keeps the FP64 unit at {0:.0%}, or memory bounds it",
            ("ComputeWorkloadAnalysis", "SpeedOfLight"),
        ),
        look,
    )


def _gain(kernel: MeasuredKernel) -> Gain:
    double, single = ([thread_ops(kernel.profile, f"{kind}{op}") for op in OPS] for kind in "df")
    counted = all(n is not None for n in (*double, *single))
    total = sum(n or 0.0 for n in (*double, *single))
    share = sum(n or 0.0 for n in double) / total if counted and total else 1.0
    times = []
    for kept, reached in zip(KEPT, reach(kernel.limits), strict=True):
        left = 1 - share * (1 - kept)
        times.append(max(kernel.limits.left({COMPUTE: left}) / max(reached, kernel.limits.highest), left))
    return Gain.of_time(*times)
