"""One call for attention that is written out."""

from __future__ import annotations

from advisor.report.finding import Code, Fix
from advisor.rules._phrases import SHARED_HEADS

SHARED_MASKED = (
    "Keys and values are repeated for the heads that share them. With a mask, few fused kernels take them unrepeated. Time enable_gqa=True against repeating them; "
    "if the mask is only causal, is_causal=True has such a kernel."
)


PLANNED = (
    "Lengths differ from step to step. cuDNN, preferred on this device, plans anew for each length, for 50 ms and more. Turn it off with "
    "torch.backends.cuda.enable_cudnn_sdp(False), or pad to few lengths."
)


MASKED = "Pass the mask as attn_mask. If it is causal (as many queries as keys), pass is_causal=True instead: that skips half of the work."


DEEP = "Flatten all axes before the heads: fused kernels take four axes; with more, the call falls back to separate FP32 kernels."


BY_BLOCKS = "If the mask follows a rule (causal, a window), pass block_mask=create_block_mask(...) instead of adding it. Empty blocks are then skipped."


SHARED_CAPPED = "Pass keys and values as they are, with enable_gqa=True: the heads that share them need no copies."


SINGLE = "Run it in BF16 or FP16: the fast kernels take no FP32."


RISK = "The order of additions differs, so the last bits do. Attention weights are no longer available."


def call_flex_attention(masked: bool, shared: bool, deep: bool, single: bool) -> Fix:
    """The same for scores that are capped with tanh, which scaled_dot_product_attention would leave out."""
    return Fix(
        title="Use flex_attention, which can cap scores",
        steps=(
            "Scores are capped with tanh, which scaled_dot_product_attention cannot do. Write cap and mask as a score_mod of flex_attention, compiled; "
            "pass scale= if you do not scale by 1/sqrt(head_dim).",
            *((BY_BLOCKS,) if masked else ()),
            *((SHARED_CAPPED,) if shared else ()),
            *(("Flatten all axes before the heads: flex_attention takes four axes.",) if deep else ()),
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
        risk=f"{RISK} It takes no dropout, and the first call of each shape compiles.",
    )


def call_sdpa(masked: bool, shared: bool, planned: bool, deep: bool, single: bool) -> Fix:
    """scaled_dot_product_attention in its place. masked: a mask is added; shared: keys and values are repeated for heads that share them; planned: cuDNN
    would plan anew in each step; deep: there are more axes than fused kernels take; single: it is in FP32."""
    return Fix(
        title="Use scaled_dot_product_attention",
        steps=(
            "Replace GEMM, scale, mask, softmax, dropout and GEMM by this call; pass scale= if you do not scale by 1/sqrt(head_dim).",
            *((MASKED,) if masked else ()),
            *(((SHARED_MASKED if masked else SHARED_HEADS),) if shared else ()),
            *((PLANNED,) if planned else ()),
            *((DEEP,) if deep else ()),
            *((SINGLE,) if single else ()),
        ),
        code=Code(
            before=f"scores = q @ k.transpose(-2, -1) / math.sqrt(d){' + mask' * masked}\nout = scores.softmax(-1) @ v",
            after=f"out = torch.nn.functional.scaled_dot_product_attention(q, k, v{', attn_mask=mask' * masked})",
        ),
        url="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        risk=RISK,
        intervention="attention-sdpa",
    )
