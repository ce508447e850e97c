"""Rows of products that are padded to whole loads."""

from __future__ import annotations

from advisor.knowledge.alignment import Product, added
from advisor.report.finding import Code, Fix


def pad(worst: Product, backward: bool) -> Fix:
    name, size = next(iter(worst.padded().items()))
    old, classes = getattr(worst, name.lower()), name == "N" or backward
    what = {"M": "the rows", "K": "the features", "N": "the outputs"}[name]
    padding = f"Pad {what} of the GEMM, {name} = {old}, to {size}"
    if backward:
        padding = f"Pad the dimension of size {old} (a layer's width, a table, the batch) to {size}"
    other = worst.k if name == "N" else worst.n
    layer = (f"nn.Linear({other}, {old})", f"nn.Linear({other}, {size})") if name == "N" else (f"nn.Linear({old}, {other})", f"nn.Linear({size}, {other})")
    if name == "M":
        layer = (f"x = batch  # {old} rows", f"x = torch.nn.functional.pad(batch, (0, 0, 0, {size - old}))  # {size} rows, once")
    return Fix(
        title=f"Pad {old} to {size}",
        steps=(
            f"{padding}: {added(old, size)} more work on the fast path. Pad the layer or table itself, once, not a tensor before each GEMM.",
            *(("For a vocabulary, add rows that no label names; ignore them when you sample (logits[..., :n]).",) if classes else ()),
            "If the size must stay, torch.compile pads GEMMs by itself if it measures a gain (shape_padding).",
        ),
        code=None if backward else Code(before=layer[0], after=layer[1]),
        url="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#requirements-tc",
        holds_for=("torch",),
        risk="Of a vocabulary, added classes take part in a softmax until training moves them down: mask them or start their bias very low. " * classes
        + "Checkpoints have the old size: pad them when loading.",
    )
