"""What to do about kernels that only change a tensor's type."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.report.finding import Code, Fix
from advisor.views.patterns.casts import Purpose

_ROUND_ONCE = {"gelu", "silu", "relu", "sigmoid", "tanh", "mul", "add", "sub", "div", "leaky_relu", "hardswish", "mish", "elu", "neg", "abs", "clamp"}
"""Ops that compute in FP32 inside and that autocast leaves in 16 bits."""


_SUMS = {"sum", "mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "cumsum", "logsumexp", "prod"}
"""Ops before which values may need FP32: what is rounded before a sum stays wrong after it."""


_CODE = {
    Purpose.WEIGHT: Code(
        before='with torch.autocast("cuda", torch.bfloat16):\n    out = model(x)  # casts every weight',
        after="model = model.to(torch.bfloat16)  # once\nout = model(x.to(torch.bfloat16))",
    ),
    Purpose.INPUT: Code(
        before='with torch.autocast("cuda", torch.bfloat16):\n    out = linear(norm(x))  # norm returns FP32, linear casts it',
        after='with torch.autocast("cuda", torch.bfloat16):\n    out = torch.compile(block)(x)  # the cast is part of the norm\'s kernel',
    ),
    Purpose.ISLAND: Code(before="y = block(x)  # casts up, computes, casts down", after="y = torch.compile(block)(x)  # the casts happen in registers"),
}


_SINGLE_OP = Code(before="y = torch.nn.functional.gelu(x.float()).to(x.dtype)", after="y = torch.nn.functional.gelu(x)  # computes in FP32 inside")


def _stretch(between: tuple[str, ...]) -> str:
    """`mul → sum`; of a stretch that only the backward pass has, `the backward pass of mul → sum`."""
    first, *rest = between
    return f"{first} {' → '.join(rest)}" if first.startswith("the ") else " → ".join(between)


def cast_less(kinds: Sequence[Purpose], training: bool, between: tuple[str, ...], dtype: str) -> Fix:
    steps, (short, keeps) = [], {"float16": ("FP16", "10 bits of mantissa, and ends at 65504"), "bfloat16": ("BF16", "7 bits of mantissa")}[dtype]
    alone = len(between) == 1 and between[0] in _ROUND_ONCE
    for kind in kinds:
        if kind == Purpose.WEIGHT:
            steps.append(f"Convert the model once, model.to(torch.{dtype}), and drop autocast: it casts FP32 weights in each context.")
        elif kind == Purpose.INPUT:
            other = "" if training else f", a model in {short} has none"  # an optimizer would lose updates, and GradScaler refuses FP16 gradients
            steps.append(f"Under autocast norms and sums return FP32, which each GEMM casts: torch.compile fuses the cast{other}.")
        elif kind == Purpose.ISLAND:
            ops = f" around {_stretch(between)}" if between else ""
            steps.append(
                f"Compile these ops{ops}, or call the fused op (rms_norm, layer_norm, softmax): then the casts "
                "happen in registers. As separate ops, a sum needs its terms in FP32."
                if _SUMS & set(between)
                else f"Drop the casts{ops}: the op computes in FP32 inside and rounds once."
                if alone
                else f"Compile these ops{ops}: then they are a single kernel, and the casts happen in registers. Autocast makes some ops FP32 by itself (pow, exp, log, norms)."
            )
    title = {
        Purpose.WEIGHT: "Keep the weights in the type they are used in",
        Purpose.INPUT: "Give the GEMMs their own type",
        Purpose.ISLAND: "Keep a single dtype, or compile the ops that need two",
    }[kinds[0]]
    code = _SINGLE_OP if kinds[0] == Purpose.ISLAND and alone else _CODE[kinds[0]]
    return Fix(
        title=title,
        steps=tuple(steps),
        code=Code(before=code.before.replace("bfloat16", dtype), after=code.after.replace("bfloat16", dtype)),
        url="https://docs.pytorch.org/docs/stable/amp.html",
        holds_for=("training", "torch") if training else ("torch",),
        risk=f"{short} keeps {keeps}: compare the result." + f" Keep the optimizer's own copy in FP32, since small updates are lost in {short}." * training,
    )
