"""Kernels that only change a tensor's type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge.measured_costs import cost
from advisor.report.finding import Clear
from advisor.report.numbers import duration_of, percent, threshold
from advisor.rules._phrases import a_step
from advisor.rules.fixes import known_fix
from advisor.rules.fixes.casts import cast_less
from advisor.views.patterns import casts as needless_casts
from advisor.views.patterns.casts import Casts, Purpose, WideActivations
from advisor.views.replay.edits import Edits, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program

HANDED_ON = cost("models-in-16-bits")


@rule("dtype-casts", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",))
def dtype_casts(
    work: GpuWork,
    casts: Casts,
    wide: WideActivations,
    program: Program,
    witness: Witness,
    *,
    min_cast_share: float = 0.03,
) -> Outcome:
    """Kernels only change a tensor's type

    What
    Kernels convert whole tensors between FP32 and BF16 or FP16. Typical causes are weights that autocast
    converts in each forward pass, FP32 inputs of GEMMs, and `.float()` around a few ops.

    Why
    A cast reads and writes the whole tensor and computes nothing. Casting an FP32 weight for a few rows moves 8
    bytes per element. A weight kept in BF16 moves 2.

    How to fix
    For inference, convert the model once:

        model = model.to(torch.bfloat16)

    For FP32 regions between casts, `torch.compile` fuses the casts. A single elementwise op needs no cast: it
    computes in FP32 internally.

    When to ignore
    The ops between the casts need FP32's range or precision: long sums, exponentials. Or the weights are
    trained in FP32 on purpose.

    How it is measured
    The rule finds copy kernels with input and output that differ only in floating-point type. They must take
    `min_cast_share` ({min_cast_share}) of GPU busy time. Savings below `min_saving_share` ({min_saving_share}) of the step are not
    reported.

    | Estimate | Casts that disappear |
    |---|---|
    | `low` | those that a single line avoids |
    | `expected` | also inputs of GEMMs, and pairs of casts without a GEMM between |
    | `high` | all |

    References
    https://docs.pytorch.org/docs/stable/amp.html
    https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
    """
    found = casts.all
    positions = np.array([c.position for c in found], np.int64)
    total = float(work.dur_us[positions].sum())
    quiet = f"casts take {percent(total / work.busy_us, min_cast_share)} of busy time"
    if total < min_cast_share * work.busy_us:
        return Clear(why=f"{quiet} (threshold {threshold(min_cast_share)})")
    training = program.training
    easy = [c.position for c in found if c.purpose == Purpose.WEIGHT and not training]
    likely = easy + [c.position for c in found if c.purpose in (Purpose.INPUT, Purpose.ISLAND)]
    spent = needless_casts.us_by_purpose([c for c in found if c.position in {*likely}], work.dur_us)
    if not spent:
        return Clear(why=f"{quiet}; no fix is known: the casts are intended, or the trace does not show their purpose")
    main = sorted(spent, key=lambda kind: -spent[kind])
    # A model in 16 bits hands 16 bits on: what autocast had made FP32 between its products is narrower too, all of it or what no norm makes FP32 again.
    whole = not training and main[0] in (Purpose.WEIGHT, Purpose.INPUT) and Purpose.WEIGHT in spent
    handed_on = [wide.narrowed(part) if whole else combine() for part in (HANDED_ON, 1.0)]
    return Found(
        summary=f"{a_step(work.a_step(found), 'kernel', 'only convert')} floating-point dtypes, for "
        f"{duration_of(work.us_a_step(positions), work.step_us)}, {spent[main[0]] / total:.0%} of it for {main[0].value}.",
        # Weights that are kept in 16 bits need no autocast: what it issued goes too.
        edits=Edits(
            WithoutOps(_positions(easy)),
            combine(WithoutOps(_positions(likely)), handed_on[0]),
            combine(WithoutOps(_positions(positions)), handed_on[1]),
        ),
        removes="copies that only convert a dtype",
        quiet=quiet,
        evidence=witness.of_gpu(work.rows[positions], [c.label for c in found]),
        confidence=0.85 if main[0] == Purpose.WEIGHT else 0.7,
        fix=cast_less(main, training, needless_casts.longest_between(found, work.dur_us), narrow_type)
        if (narrow_type := needless_casts.sixteen_bits(found))
        else known_fix("pytorch", "one-type"),
    )


def _positions(positions: Sequence[int] | Ints) -> Ints:
    return np.array(positions, np.int64)
