"""What is done about kernels that leave SMs without a block."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Code, Fix

_ROWS = Code(
    before="weights = torch.softmax(scores, -1)  # few long rows: a block each",
    after="weights = torch.compile(torch.softmax)(scores, -1)  # divides long rows",
)
_NORM = Code(
    before="x = block(x)  # holds the norm: a block for each channel or row",
    after="block = torch.compile(block)\nx = block(x)  # its sums are divided",
)
_SCAN = Code(
    before="sums = x.cumsum(-1)  # few long rows: a block each",
    after="sums = torch.compile(torch.cumsum)(x, -1)  # divides long rows\n# or by hand\n"
    "parts = x.unflatten(-1, (1024, -1)).cumsum(-1)\nlast = parts[..., -1]\n"
    "sums = (parts + (last.cumsum(-1) - last)[..., None]).flatten(-2)",
)
_PRODUCT = Code(before="out = model(x)", after='model = torch.compile(model, mode="max-autotune")  # tries split-K among others\nout = model(x)')
_TILES = Code(before=_PRODUCT.before, after='model = torch.compile(model, mode="max-autotune")  # tries other tiles\nout = model(x)')
_SLICES = Code(
    before="out = torch.bmm(a, b)  # few tiles for each of the batch, and a long inner dimension",
    after="parts = 16  # of the inner dimension\nout = (a.unflatten(2, (parts, -1)).transpose(1, 2) @ b.unflatten(1, (parts, -1))).sum(1)",
)
_INTERPOLATED = Code(
    before='big = F.interpolate(maps, scale_factor=4, mode="bilinear")  # a thread for each place, which goes over batch and channels',
    after='maps = maps.contiguous(memory_format=torch.channels_last)\nbig = F.interpolate(maps, scale_factor=4, mode="bilinear")',
)
_COMPILED = Code(
    before='big = F.interpolate(volumes, scale_factor=2, mode="trilinear")',
    after='enlarge = torch.compile(F.interpolate)\nbig = enlarge(volumes, scale_factor=2, mode="trilinear")',
)
_BATCH = Code(before="for x in inputs:\n    out = model(x[None])", after="out = model(torch.stack(inputs))")
_STEPS = {
    Family.GEMM: "Divide the inner dimension over blocks (split-K, stream-K): max-autotune tries it for GEMMs without a batch, cuBLAS chooses it by size.",
    Family.ATTENTION: "For few queries and a long cache, use a kernel that splits the keys (flash-decoding, FlashInfer).",
    Family.SORT_SCAN: "Divide each row: torch.compile does for running sums, or take those of some hundred parts and then over the parts.",
    Family.NORM: "torch.compile the norm with what surrounds it: Inductor divides reductions over more blocks.",
    Family.SOFTMAX: "Divide each row: torch.compile does, or take the log-sum-exp of some hundred parts and then of those. Measure both. Compiled, eight rows of 4 M values "
    "took a twelfth of the time, but 64 rows of 131,072 took 1.6 times as long.",
    Family.REDUCTION: "Divide each row: torch.compile does, or reduce some hundred parts and then those.",
    Family.CONV: "Take a larger batch, or channels_last, which has more tiles to divide.",
}
_BATCHED = (
    "Cut the inner dimension of batched GEMMs into slices, multiply these as a larger batch and add the parts: max-autotune tries no split-K for them. "
    "Measure the compiled code: small batched GEMMs took twice the time."
)

_TAILS = {
    Family.GEMM: "Or let max-autotune choose another tile, or split-K and stream-K, which have no tail.",
    Family.CONV: "Or let max-autotune choose another tile.",
    Family.ATTENTION: "Or use a kernel that divides the keys, so that parts fill the last wave (flash-decoding, FlashInfer).",
}
"""What shortens the last wave next to another size."""


_BATCHED_TAIL = "Or let max-autotune choose another tile."

_KINDS = {
    Family.GEMM: "GEMMs", Family.ATTENTION: "attention", Family.SORT_SCAN: "running sums and sorts", Family.NORM: "norms", Family.SOFTMAX: "softmax",
    Family.REDUCTION: "reductions", Family.CONV: "convolutions",
}  # fmt: skip
"""What a step is about that comes after that of the kind which takes longest."""

LEAST_CHANNELS = 4
"""From as many PyTorch has a kernel of its own for channels_last that interpolates."""


_BY_PLACES = names_of("upsample_by_place")
"""PyTorch's kernels that enlarge images with a thread for each place of the result. For channels_last only that of bilinear2d has another."""


def _interpolated(in_channels_last: bool, training: bool) -> Fix:
    atomics = " In training measure both passes: the compiled backward pass adds by atomics and can be slower than PyTorch's." * training
    return Fix(
        title="Interpolate in channels_last, or compile it" if in_channels_last else "Compile the interpolation",
        steps=(
            "PyTorch's kernel has a thread for each output pixel, which loops over batch and channels: few pixels make few blocks.",
            *(("The kernel for channels_last has a thread for each element.",) if in_channels_last else ()),
            "torch.compile makes a kernel of it that divides all elements, whatever the layout.",
        ),
        code=_INTERPOLATED if in_channels_last else _COMPILED,
        url="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html",
        holds_for=("torch",),
        risk="In channels_last the result stays so: ops that need another layout copy it."
        if in_channels_last
        else f"The last bits differ. The first call compiles.{atomics}",
    )


def _step(family: Family, batched: bool, training: bool) -> str:
    if batched and family == Family.GEMM:
        return _BATCHED
    return _STEPS.get(family, "") + " It does so in the backward pass too." * (training and family == Family.NORM)


def _further_family(family: Family, kernel: str, batched: bool, training: bool) -> str:
    """What is done about kernels of a family that comes after another."""
    if _BY_PLACES.search(kernel):
        return "For the interpolations among them: compile them, which divides all elements, not only pixels."
    step = _step(family, batched, training)
    return f"For the {_KINDS[family]} among them: {step[0].lower()}{step[1:]}" if step else ""


def divided(
    family: Family,
    tail: bool,
    kernel: str = "",
    also: Sequence[tuple[Family, str]] = (),
    channels: int = LEAST_CHANNELS,
    training: bool = False,
    batched: bool = False,
) -> Fix:
    """Ways for kernels of a family to fill the device, or their last wave. kernel: the longest kernel's name; also: other families, and the longest of each;
    channels: of its inputs; batched: whether the GEMMs are, for which Inductor has no split-K.
    """
    if tail:
        batch = "Choose the batch, or the sequence, so that the blocks fill whole waves: a little less or more of it may cost nothing."
        return Fix(
            title="Fill the last wave",
            steps=(batch, *((_BATCHED_TAIL,) if batched and family == Family.GEMM else (_TAILS[family],) if family in _TAILS else ())),
            code={Family.GEMM: _TILES if batched else _PRODUCT, Family.CONV: _TILES}.get(family),
            url="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#wave-quant",
            risk="Another batch size changes training: adapt the learning rate.",
        )
    if of_places := _BY_PLACES.search(kernel):
        return _interpolated(of_places[1] == "bilinear2d" and channels >= LEAST_CHANNELS, training)
    steps = [_step(family, batched, training) or "Divide the work along another axis, so that the grid has at least as many blocks as SMs."]
    steps += [told for of, longest in also if (told := _further_family(of, longest, batched, training))]
    rows = {Family.SOFTMAX: _ROWS, Family.REDUCTION: _ROWS, Family.NORM: _NORM, Family.SORT_SCAN: _SCAN, Family.GEMM: _SLICES if batched else _PRODUCT}
    return Fix(
        title="Divide the work over the whole device",
        steps=(*steps, "Or give the kernel more rows at once: batch work that the program does in sequence."),
        code=rows.get(family, _BATCH),
        url="https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html#gpu-execution",
        risk="Partial results are added in another order: the last bits differ.",
    )
