"""Attention written out as a product, a softmax and a product."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints, Mask
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Fix
from advisor.rules._phrases import a_step, milliseconds
from advisor.views.replay.edits import Edits, Fused
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.steps import Steps

SLOWEST, LIKELY, FASTEST = 1.2, 0.7, 0.4
"""Time of a fused attention kernel, as a share of what the two products took. It does their arithmetic, skips the half
that a causal mask hides, and runs somewhat below a plain product's rate: 0.48 in the captures of this project."""

MOST_BETWEEN = 12
"""Kernels between two products of one attention: scale, mask, casts, softmax, dropout; each may be two."""

# Products of one matrix with a weight: a layer, not attention's products of two activations.
_LAYERS = ("aten::mm", "aten::addmm", "aten::addmv", "aten::mv", "aten::linear")


@rule("unfused-attention", relies_on=("kernels",), min_saving_share=0.03)
def unfused_attention(steps: Steps, work: GpuWork, witness: Witness, *, min_between_share: float = 0.3) -> Outcome:
    """Attention is written out instead of fused

    What it is
    `softmax(q @ k.T * scale + mask) @ v` as separate kernels: two batched products with a softmax and pointwise work on
    the N × N scores between them, forward or backward.

    Why it costs time
    The scores are written to device memory and read back by every kernel between the products. A fused kernel keeps
    them on the chip: its traffic grows with N, not with its square, and so does its memory.

    How it is measured
    A softmax with a matrix product before and after it on its stream, at most 12 kernels in all between the two,
    pointwise, copies or softmax only. Where ops were recorded, products with a weight (linear layers, routers) do not
    count; where they were not, what stands between must take `min_between_share` of the products' time ({min_between_share}: a softmax
    over a few classes takes far less). One kernel takes the place of all: 0.7 times what the two products took
    (`low` 1.2, `high` 0.4). The step is replayed with it; reported from `min_saving_share` ({min_saving_share}).

    How to fix it
    Call `torch.nn.functional.scaled_dot_product_attention`, with `is_causal=True` instead of a mask where it is causal.
    It chooses FlashAttention, cuDNN or a memory-efficient kernel.

    When to ignore it
    When the scores themselves are needed (attention maps), or the softmax is not a softmax (custom normalisation).

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    Dao et al.: FlashAttention, 2022, https://arxiv.org/abs/2205.14135
    """
    found = _attentions(work, min_between_share)
    if not found:
        fused_already = bool(work.of(Family.ATTENTION).any())
        return Clear(why="no softmax between two matrix products" + (": attention is fused" if fused_already else ""))
    products = np.array([work.dur_us[a[0]] + work.dur_us[a[-1]] for a in found])
    members = np.concatenate(found)
    spent = milliseconds(work.us_a_step(members))
    between = 1 - float(products.sum()) / max(float(work.dur_us[members].sum()), 1e-9)
    return Found(
        summary=f"{a_step(work.a_step(found), 'attention', 'take')} {spent} of {milliseconds(steps.step_us)}, "
        f"{between:.0%} of it between the two products, on scores that a fused kernel never writes.",
        edits=Edits(*(Fused.chains(found, factor * products) for factor in (SLOWEST, LIKELY, FASTEST))),
        removes="the N × N scores' way through memory",
        quiet=f"written-out attention takes {spent} a step",
        evidence=witness.of_gpu(work.rows[members], [work.name(k) for k in members]),
        confidence=0.9 if work.timeline.source.shapes else 0.75,
        fix=Fix(
            title="Use scaled_dot_product_attention",
            steps=(
                "Replace product, scale, mask, softmax, dropout and product by one call.",
                "For a causal mask pass is_causal=True instead of the mask: half of the work is then skipped.",
            ),
            code=Code(
                before="scores = q @ k.transpose(-2, -1) / math.sqrt(d) + mask\nout = scores.softmax(-1) @ v",
                after="out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # or attn_mask=mask",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
            risk="The order of additions differs, so the last bits do. Attention weights are no longer available.",
        ),
    )


def _attentions(work: GpuWork, min_between_share: float) -> list[Ints]:
    """Positions of the kernels of each attention: a product, what lies between, a product."""
    product, softmax = work.of(Family.GEMM), work.of(Family.SOFTMAX)
    filler = work.of(Family.ELEMENTWISE, Family.COPY, Family.FILL, Family.RANDOM, Family.FUSED, Family.LAYOUT)
    layer = work.launched_by(_LAYERS.__contains__)
    found: list[Ints] = []
    for stream in np.unique(work.schedule.stream):
        here = np.flatnonzero((work.schedule.stream == stream) & work.kernel)
        used = -1
        for at in np.flatnonzero(softmax[here]).tolist():
            before, after = _product(here, at, -1, product, filler), _product(here, at, 1, product, filler)
            if before <= used or after < 0 or after - before > MOST_BETWEEN:
                continue
            chain = here[before : after + 1]
            ends = chain[[0, -1]]
            if layer[ends].any() or work.step[ends[0]] != work.step[ends[1]]:
                continue
            between = float(work.dur_us[chain[1:-1]].sum())
            if work.op[chain[0]] < 0 and between < min_between_share * float(work.dur_us[ends].sum()):
                continue
            found.append(chain)
            used = after
    return found


def _product(here: Ints, at: int, direction: int, product: Mask, filler: Mask) -> int:
    """The nearest product from position `at` in a direction with nothing but pointwise work between, -1 where none is."""
    i = at + direction
    while 0 <= i < len(here) and abs(i - at) <= MOST_BETWEEN:
        if product[here[i]]:
            return i
        if not filler[here[i]]:
            return -1
        i += direction
    return -1
