"""Attention written out as a product, a softmax and a product."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import Ints
from advisor.knowledge.how_to_record import XPLANE
from advisor.knowledge.op_tokens import has_token
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import duration, duration_of
from advisor.report.wording.period import PER_STEP
from advisor.rules import _phrases as phrases
from advisor.rules.fixes import attention as fixes
from advisor.views.patterns import attention, fused_attention
from advisor.views.patterns.shared_heads import RepeatedHeads
from advisor.views.replay.edits import Edits, WithoutOps, combine, gpu_us_removed
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

FUSED_AXES = 4
"""Axes of the tensors that fused kernels take: batch, heads, words, width."""


@rule("unfused-attention", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",), part_of=("unfused-elementwise",))
def unfused_attention(
    work: GpuWork,
    written: attention.Attentions,
    fused: fused_attention.FusedAttentions,
    heads: RepeatedHeads,
    witness: Witness,
    program: Program,
    host_time: HostTime,
    gaps: Gaps,
    steps: Steps,
    *,
    min_between_share: float = attention.MIN_BETWEEN_SHARE,
) -> Outcome:
    """Attention runs as separate kernels instead of a fused kernel

    What
    `softmax(q @ k.T * scale + mask) @ v` runs as separate kernels: two batched GEMMs, with a softmax and
    elementwise ops on N × N scores between them.

    Why
    Every kernel between the GEMMs writes the scores to memory and reads them back. A fused kernel keeps them on
    the chip. Its memory traffic grows with N instead of N².

    How to fix
    Call scaled dot-product attention:

        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)   # causal, N queries and N keys

    It selects FlashAttention, cuDNN or a memory-efficient kernel. Scores with a tanh cap need compiled
    `flex_attention` with a `score_mod`.

    When to ignore
    The scores themselves are needed (attention maps), or the normalisation is not a softmax.

    How it is measured
    With shapes: a GEMM that makes scores, a softmax of as many elements, and a GEMM that reads it; ops between
    belong to it. Without shapes: a softmax between two GEMMs, with `min_between_share` ({min_between_share}) of their time. The
    replay uses a single fused kernel. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Assumption | Value |
    |---|---|
    | Tiles | 128 × 128 scores, 64 × 64 in FP32 |
    | Rate in 16 bits | 0.18 to 0.46 of the peak |
    | `low` / `high` | 1.5 / 0.6 times the expected time |
    | No shapes | 0.7 of the GEMM time (1.2 / 0.4) |

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    Dao et al.: FlashAttention, 2022, https://arxiv.org/abs/2205.14135
    """
    if work.timeline.source.shapes:
        found, kept, times = fused.found, fused.kept, fused.times_us
    else:
        found = attention.attentions_by_order(work, min_between_share)
        kept, times = fused_attention.by_products(work, found)
    if not found and program.framework == "jax" and not (work.timeline.compiled_ops["operands"] != "").any():
        raise Unavailable("the trace does not show what XLA's kernels do", XPLANE)
    if not found:
        fused_already = bool(work.in_families(Family.ATTENTION).any())
        return Clear(why="no softmax between two GEMMs" + (": attention is fused" if fused_already else ""))
    members = np.concatenate(found)
    spent = duration(work.us_a_step(members))
    between = float(work.dur_us[members][~work.in_families(Family.GEMM)[members]].sum()) / max(float(work.dur_us[members].sum()), 1e-9)
    masked = not written.found or any(one.masked for one in written.found)
    single = all(attention.dtype == "float" for attention in written.found) and bool(written.found)
    shared = fused_attention.shared_heads_taken(work, heads, written, program)
    edits = Edits(*(fused_attention.as_one_kernel(work, host_time, kept, found, us) for us in times.T))
    if len(shared):  # `low`: a mask keeps some libraries from handing shared heads on as they are
        edits = Edits(edits.low, *(combine(edit, WithoutOps(shared)) for edit in edits[1:]))
    deep, planned = any(one.axes > FUSED_AXES for one in written.found), program.maker == "nvidia" and fused_attention.planned_anew(written, work)
    if deep or planned:
        edits = edits._replace(low=combine())
    return Found(
        summary=f"{_counted(work, found, written)} {duration_of(work.us_a_step(members), work.step_us)}. "
        f"{between:.0%} of it is between the GEMMs, on score matrices that a fused kernel never materialises."
        + (f" The fix also removes {duration(work.us_a_step(shared))} of copies of keys and values." if len(shared) else ""),
        edits=edits,
        removes="memory traffic of the N × N scores",
        likely_at_most_us=max(gpu_us_removed(work.schedule, edits.expected), 0.0) + gaps.waited_for_us(work.rows[members], steps),
        quiet=f"unfused attention takes {spent} {PER_STEP}",
        evidence=witness.of_gpu(work.rows[members], [work.name(k) for k in members]),
        confidence=0.95 if work.timeline.source.shapes else 0.75,
        at_most="low" if planned else "medium" if deep else "high",
        fix=fixes.call_flex_attention(masked, bool(len(shared)), deep, single)
        if any(has_token(work.name(k), "tanh") for k in members.tolist())
        else fixes.call_sdpa(masked, bool(len(shared)), planned, deep, single),
    )


def _counted(work: GpuWork, found: list[Ints], written: attention.Attentions) -> str:
    """How many there are, the backward pass of each left out of the number: a model of 12 layers has 12."""
    forward = [one.members for one in written.found if not one.backward]
    if not forward or len(forward) == len(found):
        return phrases.a_step(work.a_step(found), "attention", "take")
    return phrases.a_step(work.a_step(forward), "attention", "with the backward pass take", "with the backward pass takes")
