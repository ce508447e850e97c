"""Attention written out as a product, a softmax and a product."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge.kernel_names import Family
from advisor.report.model import Clear, Code, Finding, Fix, severity_of
from advisor.rules._evidence import a_step, gpu_evidence, milliseconds
from advisor.rules._needs import NO_GPU_WORK
from advisor.timeline import GpuKind, Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, Fused
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

SLOWEST, LIKELY, FASTEST = 1.2, 0.7, 0.4
"""Time of a fused attention kernel, as a share of what the two products took. It does their arithmetic, skips the half
that a causal mask hides, and runs somewhat below a plain product's rate: 0.48 in the captures of this project."""

MOST_BETWEEN = 12
"""Kernels between two products of one attention: scale, mask, casts, softmax, dropout; each may be two."""

# Products of one matrix with a weight: a layer, not attention's products of two activations.
_LAYERS = ("aten::mm", "aten::addmm", "aten::addmv", "aten::mv", "aten::linear")


@rule("unfused-attention", relies_on=("kernels",))
def unfused_attention(
    timeline: Timeline,
    steps: Steps,
    ops: Ops,
    kernels: Kernels,
    launches: Launches,
    replay: Replay,
    sources: Sources,
    *,
    min_saving_share: float = 0.03,
    min_between_share: float = 0.3,
) -> Outcome:
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
    count; where they were not, what stands between must take `min_between_share` of the products' time (0.3: a softmax
    over a few classes takes far less). One kernel takes the place of all: 0.7 times what the two products took
    (`low` 1.2, `high` 0.4). The step is replayed with it; reported from `min_saving_share` (0.03).

    How to fix it
    Call `torch.nn.functional.scaled_dot_product_attention`, with `is_causal=True` instead of a mask where it is causal.
    It chooses FlashAttention, cuDNN or a memory-efficient kernel.

    When to ignore it
    When the scores themselves are needed (attention maps), or the softmax is not a softmax (custom normalisation).

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    Dao et al.: FlashAttention, 2022, https://arxiv.org/abs/2205.14135
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    schedule = replay.recorded
    step = steps.of_host_time(launches.start_us[schedule.op_row])
    found = _attentions(timeline, ops, kernels, schedule, step, min_between_share)
    if not found:
        fused_already = bool(kernels.of(Family.ATTENTION)[schedule.op_row].any())
        return Clear(why="no softmax between two matrix products" + (": attention is fused" if fused_already else ""))
    first, gone = np.array([a[0] for a in found]), np.concatenate([a[1:] for a in found])
    products = np.array([schedule.dur_us[a[0]] + schedule.dur_us[a[-1]] for a in found])
    edits = Edits(*(Fused(first, gone, factor * products) for factor in (SLOWEST, LIKELY, FASTEST)))
    saving = replay.saving(edits, "the N × N scores' way through memory")
    share = saving.expected_us / steps.step_us
    members = np.concatenate(found)
    spent = float(schedule.dur_us[members].sum()) / schedule.steps
    if share < min_saving_share:
        return Clear(
            why=f"written-out attention takes {milliseconds(spent)} a step; fusing gains {share:.1%}, reported from {min_saving_share:.0%}"
        )
    rows = schedule.op_row[members]
    labels = [ops.name(int(ops.of_gpu[r])) or str(timeline.gpu_ops["name"].iat[r])[:80] for r in rows]
    between = 1 - float(products.sum()) / max(float(schedule.dur_us[members].sum()), 1e-9)
    finding = Finding(
        title="Attention is written out instead of fused",
        summary=f"{a_step(len(found) / schedule.steps, 'attention', 'take')} {milliseconds(spent)} of {milliseconds(steps.step_us)}, "
        f"{between:.0%} of it between the two products, on scores that a fused kernel never writes.",
        severity=severity_of(saving, steps.step_us),
        confidence=0.9 if timeline.source.shapes else 0.75,
        saving=saving,
        evidence=gpu_evidence(timeline, rows, labels, lambda m: sources.most_common(launches.call[rows[m[:50]]])),
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
    return [Found(finding, edits)]


def _attentions(
    timeline: Timeline, ops: Ops, kernels: Kernels, schedule: Schedule, step: Ints, min_between_share: float
) -> list[Ints]:
    """Positions of the kernels of each attention: a product, what lies between, a product."""
    rows = schedule.op_row
    product = kernels.of(Family.GEMM)[rows]
    softmax = kernels.of(Family.SOFTMAX)[rows]
    filler = kernels.of(Family.ELEMENTWISE, Family.COPY, Family.FILL, Family.RANDOM, Family.FUSED, Family.LAYOUT)[rows]
    kernel = (timeline.gpu_ops["kind"] == GpuKind.KERNEL.value).to_numpy()[rows]
    op = ops.of_gpu[rows]
    layer = np.isin(
        np.array([*ops.categories, ""], object)[np.where(op >= 0, ops.names[op], -1) if len(ops.names) else np.full(len(op), -1)],
        _LAYERS,
    )
    found: list[Ints] = []
    for s in np.unique(schedule.stream):
        here = np.flatnonzero((schedule.stream == s) & kernel)
        used = -1
        for at in np.flatnonzero(softmax[here]):
            before, after = _product(here, int(at), -1, product, filler), _product(here, int(at), 1, product, filler)
            if before <= used or after < 0 or after - before > MOST_BETWEEN:
                continue
            chain = here[before : after + 1]
            if layer[chain[0]] or layer[chain[-1]] or step[chain[0]] != step[chain[-1]]:
                continue
            products = float(schedule.dur_us[chain[[0, -1]]].sum())
            between = float(schedule.dur_us[chain[1:-1]].sum())
            if op[chain[0]] < 0 and between < min_between_share * products:
                continue
            found.append(chain)
            used = after
    return found


def _product(here: Ints, at: int, direction: int, product: np.ndarray, filler: np.ndarray) -> int:
    """The nearest product from position `at` in a direction with nothing but pointwise work between, -1 where none is."""
    i = at + direction
    while 0 <= i < len(here) and abs(i - at) <= MOST_BETWEEN:
        if product[here[i]]:
            return i
        if not filler[here[i]]:
            return -1
        i += direction
    return -1
