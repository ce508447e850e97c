"""Matrix products in 16 bits or TF32 as a fix: of a program of PyTorch, and of a kernel of one's own."""

from __future__ import annotations

from advisor.report.finding import Code, Fix
from advisor.rules.fixes import known_fix

_RISK = "TF32 keeps 10 bits of mantissa, BF16 7: results differ in the third to fourth digit, and what a top-k, an argmax or a threshold picks from them may be another."
_CHECK = "Hold the result against an FP32 run before you trust it."

IN_KERNEL = known_fix("kernels", "tensor-cores")
"""Of a kernel that no library wrote: what PyTorch switches does not reach it."""


def in_16_bits(half: str, *, training: bool, tf32: bool, convolutions: bool = False, in_groups: bool = False, unit: str = "Tensor Cores") -> Fix:
    """half: "bf16" or "fp16". tf32: whether TF32, which is off, would help too; convolutions: these need a switch of their own for it.
    in_groups: there are long convolutions in groups. unit: what the device's maker calls it."""
    dtype = "bfloat16" if half == "bf16" else "float16"
    scaled = training and half == "fp16"
    steps = [f"Run the forward pass under torch.autocast with {dtype}{' and scale the loss (torch.amp.GradScaler)' * scaled}."]
    if tf32:
        switch = "torch.backends.cudnn.allow_tf32 = True for convolutions, " * convolutions
        steps.append(f'Or keep FP32 storage and turn TF32 on: {switch}torch.set_float32_matmul_precision("high"){" for products" * convolutions}.')
    if in_groups:
        steps.append("Leave the long convolution in groups out (torch.autocast(..., enabled=False) around it): in 16 bits cuDNN computes it on CUDA cores.")
    steps.append(_CHECK)
    forward, backward = ("loss = criterion(model(x), y)", "\nloss.backward()") if training else ("out = model(x)", "")
    after = "\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()" if scaled else backward
    return Fix(
        title=f"Let {unit} do the products",
        steps=tuple(steps),
        code=Code(before=f"{forward}{backward}", after=f'with torch.autocast("cuda", dtype=torch.{dtype}):\n    {forward}{after}'),
        url="https://docs.pytorch.org/docs/stable/amp.html",
        risk=f"{_RISK} Reductions stay in FP32 under autocast.",
        intervention="autocast" if half == "bf16" else "matmul-precision" if tf32 else None,
    )
