"""Kernels that only change a tensor's type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge.measured_costs import cost
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.report.numbers import duration, percent
from advisor.rules._phrases import a_step
from advisor.rules.fixes import known_fix
from advisor.rules.fixes.casts import cast_less
from advisor.views.patterns import needless_casts
from advisor.views.patterns.casts import Casts, Purpose, WideActivations
from advisor.views.replay.edits import Edits, WithoutOps, WithoutTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

HANDED_ON = cost("models-in-16-bits")


@rule("dtype-casts", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",))
def dtype_casts(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    casts: Casts,
    wide: WideActivations,
    roofline: Roofline,
    program: Program,
    witness: Witness,
    *,
    min_cast_share: float = 0.03,
) -> Outcome:
    """Kernels only change a tensor's type

    What it is
    Copies of a whole tensor from FP32 to BF16 or FP16, or back: the weights that autocast casts in each forward pass, the
    FP32 inputs of its products, `.float()` and `.half()` around a few ops.

    Why it costs time
    A cast reads and writes the whole tensor and computes nothing. A weight of FP32 that serves few rows is read for its
    cast (4 bytes), written (2) and read again by the product (2): four times the traffic of a weight kept in BF16.

    How it is measured
    Kernels of copy ops whose recorded input and output differ in floating type alone: same shape, same strides; copies
    from and to the host are memcpy's concern, those that turn the layout memory-layout's. Autograd's sequence numbers say
    to which cast one of the backward pass belongs. The rule looks further where they take `min_cast_share` of the time
    the GPU works ({min_cast_share}). The step is replayed without these kernels and without issuing them (`low` of a training
    step: issuing stays). `low`: what one line avoids (weights where nothing is trained, weights cast again in each micro-batch,
    operands of in-place sums); `expected`: also the inputs of products, and casts there and back with no product between, and where 16 bits are
    made FP32 for the largest operand of a product, that product in 16 bits, and where weights are cast for inference, half of what pointwise kernels, norms and
    softmaxes on FP32 would spare if they read and wrote 16 bits; `high`: all, the weights of a training step and FP32 before the loss among them. Reported from `min_saving_share` of the step
    ({min_saving_share}).

    How to fix it
    Weights: `model.to(torch.bfloat16)` for inference. In training autocast casts each weight once in each autocast
    context: one context around all micro-batches (the optimizer's step behind it), or parameters in BF16 whose FP32 copy the optimizer keeps. A stretch in
    FP32: `torch.compile` makes it one kernel with its casts; around a single pointwise op they can go, as it computes in FP32 inside.

    When to ignore it
    When values need the range or the digits of FP32 between those ops (sums over many terms, exponentials without a
    maximum taken off), when a product needs more digits than its data in 16 bits have, or when the weights are trained in FP32 on purpose and are large beside the batch.

    References
    https://docs.pytorch.org/docs/stable/amp.html
    https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
    """
    found = casts.all
    positions = np.array([c.position for c in found], np.int64)
    total = float(work.dur_us[positions].sum())
    quiet = f"kernels that only change a type take {percent(total / work.busy_us)} of busy time"
    if total < min_cast_share * work.busy_us:
        return Clear(why=f"{quiet}, reported from {min_cast_share:.0%}")
    training = program.training
    easy = [c.position for c in found if c.purpose == Purpose.SUM or (c.purpose == Purpose.WEIGHT and not training)]
    if training:
        easy += needless_casts.cast_again(found, work.step, needless_casts.backwards_a_step(work.ops, steps, timeline))
    likely = easy + [c.position for c in found if c.purpose in (Purpose.INPUT, Purpose.ISLAND, Purpose.WIDENED)]
    spent = needless_casts.us_by_purpose([c for c in found if c.position in {*likely}], work.dur_us)
    if not spent:
        return Clear(why=f"{quiet}; the fix would gain nothing: they are there on purpose, or for something the trace does not tell")
    main = sorted(spent, key=lambda kind: -spent[kind])
    narrow = needless_casts.in_their_type(work, roofline, found)
    # A model in 16 bits hands 16 bits on: what autocast had made FP32 between its products is narrower too, all of it or what no norm makes FP32 again.
    whole = not training and main[0] in (Purpose.WEIGHT, Purpose.INPUT) and Purpose.WEIGHT in spent
    handed_on = [wide.narrowed(part) if whole else combine() for part in (HANDED_ON, 1.0)]
    return Found(
        summary=f"{a_step(work.a_step(found), 'kernel', 'only cast')} between floating types, for "
        f"{duration(work.us_a_step(positions))} of {duration(work.step_us)}, {spent[main[0]] / total:.0%} of it for {main[0].value}.",
        # Weights that are kept in 16 bits need no autocast: what it issued goes too.
        edits=Edits(
            (WithoutTime if training else WithoutOps)(_at(easy)),
            combine(WithoutOps(_at(likely)), narrow, handed_on[0]),
            combine(WithoutOps(_at(positions)), narrow, handed_on[1]),
        ),
        removes="copies that only change a tensor's type",
        quiet=quiet,
        evidence=witness.of_gpu(work.rows[positions], [c.label for c in found]),
        confidence=0.85 if main[0] in (Purpose.WEIGHT, Purpose.SUM) else 0.7,
        fix=cast_less(main, training, needless_casts.longest_between(found, work.dur_us), narrow_type)
        if (narrow_type := needless_casts.sixteen_bits(found))
        else known_fix("pytorch", "one-type"),
    )


def _at(positions: Sequence[int] | Ints) -> Ints:
    return np.array(positions, np.int64)
