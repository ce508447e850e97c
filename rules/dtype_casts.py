"""Kernels that only change a tensor's type."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration, percent
from advisor.rules._phrases import a_step
from advisor.rules._ways import ONE_TYPE
from advisor.views.patterns.casts import Cast, Casts, Purpose, WideActivations
from advisor.views.patterns.precision import WideProducts
from advisor.views.replay.edits import Edit, Edits, WithoutOps, WithoutTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.evidence import Witness
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

_ROUND_ONCE = {"gelu", "silu", "relu", "sigmoid", "tanh", "mul", "add", "sub", "div", "leaky_relu", "hardswish", "mish", "elu", "neg", "abs", "clamp"}
"""Ops that compute in FP32 inside and that autocast leaves in 16 bits."""

_SUMS = {"sum", "mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "cumsum", "logsumexp", "prod"}
"""Ops before which values may need FP32: what is rounded before a sum stays wrong after it."""


HANDED_ON = 0.5
"""Part of what FP32 activations would spare in 16 bits that models in 16 bits do spare. Of seven of the ledger five spared 0.4 to 0.9 of it, two nothing: some keep
autocast, whose norms return FP32, others turn to FP32 by themselves."""


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
        easy += _again(found, work.step, _backwards(work.ops, steps, timeline))
    likely = easy + [c.position for c in found if c.purpose in (Purpose.INPUT, Purpose.ISLAND, Purpose.WIDENED)]
    spent = _by_purpose([c for c in found if c.position in {*likely}], work.dur_us)
    if not spent:
        return Clear(why=f"{quiet}; the fix would gain nothing: they are there on purpose, or for something the trace does not tell")
    main = sorted(spent, key=lambda kind: -spent[kind])
    narrow = _in_their_type(work, roofline, found)
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
        fix=_fix(main, training, _longest_between(found, work.dur_us), narrow_type) if (narrow_type := _sixteen_bits(found)) else ONE_TYPE,
    )


def _in_their_type(work: GpuWork, roofline: Roofline, casts: Sequence[Cast]) -> Edit:
    """The products for which 16 bits were made FP32, in those 16 bits."""
    edits = []
    for source, name in (("c10::Half", "fp16"), ("c10::BFloat16", "bf16")):
        fed = [cast.product for cast in casts if cast.purpose == Purpose.WIDENED and cast.product >= 0 and cast.source == source]
        products = WideProducts.build(work, roofline).of_ops(fed)
        peaks = roofline.peaks.get(work.device_at(products.at[0]).id) if len(products.at) else None
        if peaks:
            edits.append(products.in_precision(name, peaks, reached=True))
    return combine(*edits)


def _at(positions: Sequence[int] | Ints) -> Ints:
    return np.array(positions, np.int64)


def _again(casts: Sequence[Cast], step: Ints, backwards: float) -> list[int]:
    """Casts of weights (positions) that one autocast context around all micro-batches would not repeat: of the casts of one
    shape in a step, which has as many micro-batches as backward passes, all but the first part."""
    found, seen = [], dict[tuple[int, tuple[int, ...]], list[int]]()
    for cast in casts:
        if cast.purpose == Purpose.WEIGHT and not cast.backward:
            seen.setdefault((int(step[cast.position]), cast.shape), []).append(cast.position)
    for positions in seen.values():
        found += positions[ceil(len(positions) / backwards) :]
    return found


def _backwards(ops: Ops, steps: Steps, timeline: Timeline) -> float:
    """How often a step calls `backward()`: each makes the gradient of the loss, a one. At least 1."""
    ones = ops.named(names_of("ones_like")) & (ops.parent < 0)
    start = timeline.cpu_ops["start_us"].to_numpy()
    inside = steps.issued_at(start)
    return max(1.0, float((ones & inside).sum()) / steps.steps)


def _by_purpose(casts: Sequence[Cast], dur_us: Floats) -> dict[Purpose, float]:
    spent: dict[Purpose, float] = {}
    for cast in casts:
        spent[cast.purpose] = spent.get(cast.purpose, 0.0) + float(dur_us[cast.position])
    return spent


def _longest_between(casts: Sequence[Cast], dur_us: Floats) -> tuple[str, ...]:
    """The ops of the stretch whose casts take most time."""
    forward = [c for c in casts if c.purpose == Purpose.ISLAND and c.between and not c.between[0].startswith("the ")]
    return max(forward, key=lambda c: float(dur_us[c.position])).between if forward else ()


def _sixteen_bits(casts: Sequence[Cast]) -> str:
    """The type of 16 bits that the program's casts name, "" where they are all between FP64 and FP32."""
    named = [kind for cast in casts for kind in (cast.source, cast.target)]
    half, brain = (named.count(kind) for kind in ("c10::Half", "c10::BFloat16"))
    return "float16" if half > brain else "bfloat16" if brain else ""


_CODE = {
    Purpose.WEIGHT: Code(
        before='with torch.autocast("cuda", torch.bfloat16):\n    out = model(x)  # casts every weight',
        after="model = model.to(torch.bfloat16)  # once\nout = model(x.to(torch.bfloat16))",
    ),
    Purpose.INPUT: Code(
        before='with torch.autocast("cuda", torch.bfloat16):\n    out = linear(norm(x))  # norm returns FP32, linear casts it',
        after='with torch.autocast("cuda", torch.bfloat16):\n    out = torch.compile(block)(x)  # the cast is part of the norm\'s kernel',
    ),
    Purpose.ISLAND: Code(before="y = block(x)  # casts up, computes, casts down", after="y = torch.compile(block)(x)  # the casts happen on the chip"),
    Purpose.WIDENED: Code(before="scores = keys.float() @ query.float().T  # on CUDA cores", after="scores = keys @ query.to(keys.dtype).T  # on Tensor Cores"),
    Purpose.SUM: Code(before="total += x.float()", after="total += x  # the sum reads 16 bits and adds in FP32"),
}
_TRAINED = Code(
    before='for x in micro_batches:\n    with torch.autocast("cuda", torch.bfloat16):\n        loss = model(x)\n    loss.backward()\noptimizer.step()',
    after='with torch.autocast("cuda", torch.bfloat16):  # one context: each weight is cast once\n    for x in micro_batches:\n        loss = model(x)\n'
    '        with torch.autocast("cuda", enabled=False):\n            loss.backward()\noptimizer.step()  # outside: inside, the casts of the old weights would be used on',
)
_SINGLE_OP = Code(before="y = torch.nn.functional.gelu(x.float()).to(x.dtype)", after="y = torch.nn.functional.gelu(x)  # computes in FP32 inside")


def _stretch(between: tuple[str, ...]) -> str:
    """`mul → sum`; of a stretch that only the backward pass has, `the backward pass of mul → sum`."""
    first, *rest = between
    return f"{first} {' → '.join(rest)}" if first.startswith("the ") else " → ".join(between)


def _fix(kinds: Sequence[Purpose], training: bool, between: tuple[str, ...], dtype: str) -> Fix:
    steps, (short, keeps) = [], {"float16": ("FP16", "10 bits of mantissa, and ends at 65504"), "bfloat16": ("BF16", "7 bits of mantissa")}[dtype]
    alone = len(between) == 1 and between[0] in _ROUND_ONCE
    for kind in kinds:
        if kind == Purpose.WEIGHT and not training:
            steps.append(f"Convert the model once, model.to(torch.{dtype}), and drop autocast: it casts FP32 weights in each context.")
        elif kind == Purpose.WEIGHT:
            steps.append(
                "Autocast keeps a weight's cast until its context ends: with micro-batches put one context around all of them, and the optimizer's step behind it. "
                f"Else keep the parameters in {short} and an FP32 copy in the optimizer."
            )
        elif kind == Purpose.INPUT:
            other = "" if training else f", a model in {short} has none"  # an optimizer would lose updates, and GradScaler refuses FP16 gradients
            steps.append(f"Under autocast norms and sums return FP32, which each product casts: torch.compile fuses the cast{other}.")
        elif kind == Purpose.ISLAND:
            ops = f" around {_stretch(between)}" if between else ""
            steps.append(
                f"Compile the stretch{ops}, or call the one op that does it (rms_norm, layer_norm, softmax): then the casts "
                "happen on the chip. Written out, a sum needs its terms in FP32."
                if _SUMS & set(between)
                else f"Drop the casts{ops}: the op computes in FP32 inside and rounds once."
                if alone
                else f"Compile the stretch{ops}: then it is one kernel, and the casts happen on the chip. Autocast makes some ops FP32 by itself (pow, exp, log, norms)."
            )
        elif kind == Purpose.WIDENED:
            steps.append(
                "Multiply in the type of the data: Tensor Cores read 16 bits and add up in FP32. Cast the smaller operand to it instead, and the result back."
            )
        elif kind == Purpose.SUM:
            steps.append("Add the narrow tensor as it is: an in-place op converts as it reads and keeps the wide type.")
    title = {
        Purpose.WEIGHT: "Keep the weights in the type they are used in" if not training else "Cast each weight once a step",
        Purpose.INPUT: "Give the products their own type",
        Purpose.ISLAND: "Stay in one type, or compile what needs two",
        Purpose.SUM: "Add without casting first",
        Purpose.WIDENED: "Multiply in the type of the data",
    }[kinds[0]]
    code = _TRAINED if kinds[0] == Purpose.WEIGHT and training else _SINGLE_OP if kinds[0] == Purpose.ISLAND and alone else _CODE[kinds[0]]
    return Fix(
        title=title,
        steps=tuple(steps),
        code=Code(before=code.before.replace("bfloat16", dtype), after=code.after.replace("bfloat16", dtype)),
        url="https://docs.pytorch.org/docs/stable/amp.html",
        risk=f"{short} keeps {keeps}: compare the result." + f" Keep the optimizer's own copy in FP32, since small updates are lost in {short}." * training,
    )
