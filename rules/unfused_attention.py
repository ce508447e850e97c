"""Attention written out as a product, a softmax and a product."""

from __future__ import annotations

from collections import Counter

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.intervals import Floats, Ints
from advisor.knowledge.how_to_record import XPLANE
from advisor.knowledge.op_costs.fused_attention import PREFER_CUDNN
from advisor.knowledge.op_tokens import is_a
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration
from advisor.rules._phrases import SHARED_HEADS, a_step
from advisor.views.patterns.attention import MIN_BETWEEN_SHARE, Attentions, attentions_by_order
from advisor.views.patterns.fused_attention import FASTEST, LIKELY, SLOWEST, FusedAttentions, as_one_kernel
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

_SHARED_MASKED = (
    "Keys and values are repeated for the heads that share them: with a mask few fused kernels take them as they are. Time enable_gqa=True against repeating them; "
    "where the mask is causal alone, is_causal=True has one."
)

_PLANNED = (
    "Lengths differ from step to step, and cuDNN, which the call prefers on this device, plans anew for each, for 50 ms and more: turn it off with "
    "torch.backends.cuda.enable_cudnn_sdp(False), or pad to few lengths."
)
_MASKED = "Pass the mask as attn_mask. Where it is lower-triangular and there are as many queries as keys, is_causal=True in its place: half of the work is then skipped."
_DEEP = "Flatten all axes before the heads into one: fused kernels take four axes, and with more the call falls back to products of its own, in FP32."
_BY_BLOCKS = "Where the mask follows a rule (causal, a window), pass that as block_mask=create_block_mask(...) in place of adding it: blocks without scores are then skipped."
_SHARED_CAPPED = "Pass keys and values as they are, with enable_gqa=True: the heads that share them need no copies."
_SINGLE = "Run it in BF16 or FP16: the fast kernels take no FP32."
_RISK = "The order of additions differs, so the last bits do. Attention weights are no longer available."


@rule("unfused-attention", relies_on=("kernels",), min_saving_share=0.03, explains=("unfused-elementwise",), part_of=("unfused-elementwise",))
def unfused_attention(
    work: GpuWork,
    written: Attentions,
    fused: FusedAttentions,
    heads: RepeatedHeads,
    witness: Witness,
    program: Program,
    host_time: HostTime,
    gaps: Gaps,
    steps: Steps,
    *,
    min_between_share: float = MIN_BETWEEN_SHARE,
) -> Outcome:
    """Attention is written out instead of fused

    What it is
    `softmax(q @ k.T * scale + mask) @ v` as separate kernels: two batched products with a softmax and pointwise work on
    the N × N scores between them, forward or backward.

    Why it costs time
    The scores are written to device memory and read back by every kernel between the products. A fused kernel keeps
    them on the chip: its traffic grows with N, not with its square, and so does its memory.

    How it is measured
    By shapes where they were recorded: a product of two activations whose result is a tensor of scores, an exponential or a
    softmax of as many elements, and a product that takes it in; in the backward pass four products that share the scores.
    Everything in between that works on the scores belongs to it, whatever it is called. One kernel takes its place, with the
    tiles of scores (128 a side, 64 in FP32; two products forward, five backward) at the rate that fused kernels were measured to reach in that
    type, with a mask or dropout or without: 0.18 to 0.46 of the peak in 16 bits, and a tile or so more for each row of them, so that short sequences gain
    little or lose; masks off alignment cost more, and one that is a square for each sequence is left out (`low`: it is read). None takes FP32 at the rate of Tensor Cores, so there it saves little, or costs more than it saves, and none heads that are no multiple of 4 wide there. `low` is 1.5 times that time, and nothing where tensors of more than four axes are
    multiplied, which no fused kernel takes as they are, or where lengths differ from step to step on H100s, H200s and B200s, where cuDNN plans anew for each; `high` 0.6.
    The call costs the host what one of the products does, and in 16 bits takes heads that share keys as they are: copies that repeat these go (`low`: they stay).
    Without shapes: a softmax with a product before and after it on its stream, at most 12 kernels in all, pointwise, copies or
    softmax only, that takes `min_between_share` of the products' time ({min_between_share}); then 0.7 times what the two products
    took (`low` 1.2, `high` 0.4). The step is replayed with it; reported from `min_saving_share` ({min_saving_share}).

    How to fix it
    Call `torch.nn.functional.scaled_dot_product_attention`, with `attn_mask` where there is a mask; with `is_causal=True` in its place
    where that is lower-triangular and there are as many queries as keys (the flag counts from the first key, whatever there are).
    It chooses FlashAttention, cuDNN or a memory-efficient kernel. Scores that are capped with tanh need `flex_attention`, compiled, with a `score_mod`.

    When to ignore it
    When the scores themselves are needed (attention maps), or the softmax is not a softmax (custom normalisation).

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    Dao et al.: FlashAttention, 2022, https://arxiv.org/abs/2205.14135
    """
    if work.timeline.source.shapes:
        found, kept, times = fused.found, fused.kept, fused.times_us
    else:
        found, times = _by_order(work, min_between_share)
        kept = [chain[[0, -1]] for chain in found]
    if not found and program.framework == "jax" and not (work.timeline.compiled_ops["operands"] != "").any():
        raise Unavailable("what the kernels that XLA made do was not recorded", XPLANE)
    if not found:
        fused_already = bool(work.of(Family.ATTENTION).any())
        return Clear(why="no softmax between two matrix products" + (": attention is fused" if fused_already else ""))
    members = np.concatenate(found)
    spent = duration(work.us_a_step(members))
    between = float(work.dur_us[members][~work.of(Family.GEMM)[members]].sum()) / max(float(work.dur_us[members].sum()), 1e-9)
    masked = not written.found or any(one.masked for one in written.found)
    single = all(attention.dtype == "float" for attention in written.found) and bool(written.found)
    shared = _shared(work, heads, written, program)
    edits = Edits(*(as_one_kernel(work, host_time, kept, found, us) for us in times.T))
    if len(shared):  # `low`: a mask keeps some libraries from handing shared heads on as they are
        edits = Edits(edits.low, *(combine(edit, WithoutOps(shared)) for edit in edits[1:]))
    deep, planned = any(one.axes > FUSED_AXES for one in written.found), program.maker == "nvidia" and _planned(written, work)
    if deep or planned:
        edits = edits._replace(low=combine())
    return Found(
        summary=f"{_counted(work, found, written)} {spent} of {duration(work.step_us)}, "
        f"{between:.0%} of it between the products, on scores that a fused kernel never writes.",
        edits=edits,
        removes="the N × N scores' way through memory",
        likely_at_most_us=max(gpu_us_removed(work.schedule, edits.expected), 0.0) + gaps.waited_for_us(work.rows[members], steps),
        quiet=f"written-out attention takes {spent} a step",
        evidence=witness.of_gpu(work.rows[members], [work.name(k) for k in members]),
        confidence=0.95 if work.timeline.source.shapes else 0.75,
        at_most="low" if planned else "medium" if deep else "high",
        fix=_capped(masked, bool(len(shared)), deep, single)
        if any(is_a(work.name(k), "tanh") for k in members.tolist())
        else Fix(
            title="Use scaled_dot_product_attention",
            steps=(
                "Replace product, scale, mask, softmax, dropout and product by one call; pass scale= where scores are not divided by the root of a head's width.",
                *((_MASKED,) if masked else ()),
                *(((_SHARED_MASKED if masked else SHARED_HEADS),) if len(shared) else ()),
                *((_PLANNED,) if planned else ()),
                *((_DEEP,) if deep else ()),
                *((_SINGLE,) if single else ()),
            ),
            code=Code(
                before=f"scores = q @ k.transpose(-2, -1) / math.sqrt(d){' + mask' * masked}\nout = scores.softmax(-1) @ v",
                after=f"out = torch.nn.functional.scaled_dot_product_attention(q, k, v{', attn_mask=mask' * masked})",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
            risk=_RISK,
        ),
    )


def _capped(masked: bool, shared: bool, deep: bool, single: bool) -> Fix:
    """The same for scores that are capped with tanh, which scaled_dot_product_attention would leave out."""
    return Fix(
        title="Use flex_attention, which can cap scores",
        steps=(
            "Scores are capped with tanh, which scaled_dot_product_attention cannot: write cap and mask as a score_mod of flex_attention, compiled; "
            "pass scale= where scores are not divided by the root of a head's width.",
            *((_BY_BLOCKS,) if masked else ()),
            *((_SHARED_CAPPED,) if shared else ()),
            *(("Flatten all axes before the heads into one: flex_attention takes four axes.",) if deep else ()),
            *(("Run it in BF16 or FP16: in FP32 it gains less.",) if single else ()),
        ),
        code=Code(
            before="scores = q @ k.transpose(-2, -1) / math.sqrt(d)\n"
            f"scores = cap * torch.tanh(scores / cap){' + mask' * masked}\nout = scores.softmax(-1) @ v",
            after="from torch.nn.attention.flex_attention import flex_attention\n\nattend = torch.compile(flex_attention)  # once\n\n"
            + "mask = mask.expand(len(q), 1, q.shape[2], k.shape[2])\n\n" * masked
            + "def capped(score, batch, head, query, key):\n"
            f"    return cap * torch.tanh(score / cap){' + mask[batch, 0, query, key]' * masked}\n\nout = attend(q, k, v, score_mod=capped)",
        ),
        url="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
        risk=f"{_RISK} It takes no dropout, and the first call of each shape compiles.",
    )


def _shared(work: GpuWork, heads: RepeatedHeads, written: Attentions, program: Program) -> Ints:
    """Copies that repeat keys or values for attention whose fused kernel takes shared heads as they are: in 16 bits, and no mask but a causal one unless cuDNN's is chosen."""
    takes = np.zeros(len(work.op), bool)
    for one in written.found:
        by_cudnn = program.maker == "nvidia" and work.device_at(int(one.members[0])).compute_capability[0] in PREFER_CUDNN
        masked = (one.masked and not one.causal) or any(is_a(work.name(k), "baddbmm") for k in one.products.tolist())
        takes[one.members] = one.dtype != "float" and (by_cudnn or not masked)
    return np.array([one.at for one in heads.found if takes[one.reader].any()], int)


def _planned(written: Attentions, work: GpuWork) -> bool:
    """Whether each step has lengths of its own, as where one word after the other is decoded, so that cuDNN would plan anew in each."""
    sizes: dict[int, set[tuple[int, int, int]]] = {}
    for one in written.found:
        if one.dtype != "float" and work.device_at(int(one.members[0])).compute_capability[0] in PREFER_CUDNN:
            sizes.setdefault(int(work.step[one.members[0]]), set()).add(one.scores)
    steps_of = Counter(size for own in sizes.values() for size in own)
    return len(sizes) > 1 and all(min(steps_of[size] for size in own) == 1 for own in sizes.values())


def _counted(work: GpuWork, found: list[Ints], written: Attentions) -> str:
    """How many there are, the backward pass of each left out of the number: a model of 12 layers has 12."""
    forward = [one.members for one in written.found if not one.backward]
    if not forward or len(forward) == len(found):
        return a_step(work.a_step(found), "attention", "take")
    return a_step(work.a_step(forward), "attention", "with the backward pass take", "with the backward pass takes")


def _by_order(work: GpuWork, min_between_share: float) -> tuple[list[Ints], Floats]:
    """The same without shapes: a product, what lies between, a product."""
    found = attentions_by_order(work, min_between_share)
    products = np.array([work.dur_us[a[0]] + work.dur_us[a[-1]] for a in found])
    return found, np.outer(products, (SLOWEST, LIKELY, FASTEST))
