"""Matrix products in 16 bits or TF32 as a fix: of a program of PyTorch, and of a kernel of one's own."""

from __future__ import annotations

from advisor.report.finding import Code, Fix
from advisor.rules.fixes import known_fix

_RISK = "TF32 keeps 10 bits of mantissa, BF16 7. Results differ in the third to fourth digit, so a top-k, argmax or threshold may pick another value."
_CHECK = "Compare the result with an FP32 run before you trust it."

IN_KERNEL = known_fix("kernels", "tensor-cores")
"""Of a kernel that no library wrote: what PyTorch switches does not reach it."""


def in_16_bits(half: str, *, training: bool, tf32: bool, tf32_first: bool = False, convolutions: bool = False, unit: str = "Tensor Cores") -> Fix:
    """half: "bf16" or "fp16". tf32: whether TF32, now off, would help too; tf32_first: whether that single line gains about as much. convolutions: need a
    switch of their own. unit: the maker's name of the device's unit.
    """
    dtype = "bfloat16" if half == "bf16" else "float16"
    scaled = training and half == "fp16"
    autocast = f"un the forward pass under torch.autocast with {dtype}{' and scale the loss (torch.amp.GradScaler)' * scaled}"
    switch = "torch.backends.cudnn.allow_tf32 = True for convolutions, " * convolutions
    line = f'{switch}torch.set_float32_matmul_precision("high"){" for GEMMs" * convolutions}'
    if tf32 and tf32_first:
        steps = [
            f"Turn TF32 on at the start of the program: {line}.",
            f"TF32 comes first, since it gains nearly as much here with a single line. If BF16 is precise enough, r{autocast}: it also halves memory traffic.",
        ]
    else:
        steps = [f"R{autocast}.", *([f"Or keep FP32 storage and turn TF32 on: {line}."] if tf32 else [])]
    steps.append(_CHECK)
    forward, backward = ("loss = criterion(model(x), y)", "\nloss.backward()") if training else ("out = model(x)", "")
    scaled_backward = "\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()" if scaled else backward
    lines = "torch.backends.cudnn.allow_tf32 = True\n" * convolutions + 'torch.set_float32_matmul_precision("high")'
    first = tf32 and tf32_first
    return Fix(
        title=f"Run GEMMs in TF32 on {unit}" if first else f"Run the forward pass in {half.upper()}",
        steps=tuple(steps),
        code=Code(
            before="import torch" if first else f"{forward}{backward}",
            after=f"import torch\n\n{lines}  # once, before the first GEMM"
            if first
            else f'with torch.autocast("cuda", dtype=torch.{dtype}):\n    {forward}{scaled_backward}',
        ),
        url="https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices"
        if first
        else "https://docs.pytorch.org/docs/stable/amp.html",
        risk=_RISK if first else f"{_RISK} Reductions stay in FP32 under autocast.",
        intervention="matmul-precision" if first or (tf32 and half != "bf16") else "autocast" if half == "bf16" else None,
    )
