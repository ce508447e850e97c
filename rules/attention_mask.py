"""Attention computes all of its scores because a mask is given where a flag might do."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import PER_STEP
from advisor.views.replay.edits import Edit, Edits, WithDurations, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.arguments import need_shapes
from advisor.views.trace.evidence import Witness
from advisor.views.trace.shapes import Shapes

_CALL = names_of("attention_public")
_GRADIENT = names_of("attention_backward")

SHORTEST = 256
"""Words from which on a causal kernel skips tiles: it works on tiles of 64 to 128 rows, and below this few of them lie above the diagonal."""


@rule("attention-mask", min_saving_share=0.03)
def attention_mask(timeline: Timeline, work: GpuWork, shapes: Shapes, witness: Witness, *, causal_share: float = 0.4) -> Outcome:
    """A mask is given to attention that a flag could replace

    What
    `scaled_dot_product_attention` receives a square mask that all heads and sequences share. Most such masks
    are causal, and `is_causal=True` means the same.

    Why
    The kernel does not know the mask's content, so it computes every tile and reads the mask for each. A causal
    kernel skips half of the tiles. FlashAttention accepts no mask at all. A boolean mask is also converted to
    floats, in three kernels per call.

    How to fix
    For a causal mask, pass the flag:

        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)

    For windows, documents or prefixes, use FlexAttention with a `block_mask`. Otherwise create a float mask
    once, in the queries' type, and not in each call.

    When to ignore
    The mask is dense, for example a relative-position bias or ALiBi.

    How it is measured
    The rule looks for calls with a mask of equally many queries and keys (256 or more), with all other
    dimensions 1. In the replay, their kernels take `causal_share` ({causal_share}) of their time, forward and backward,
    and the conversion disappears. The `low` estimate removes only the conversion. A trace does not contain the
    mask's values, so the finding is unconfirmed. Savings below `min_saving_share` ({min_saving_share}) of the step are not
    reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
    """
    need_shapes(timeline)
    calls = {int(op): boolean for op in np.flatnonzero(work.ops.named(_CALL)) if (boolean := _square_mask(shapes, int(op))) is not None}
    call = np.r_[work.ops.outermost_where(np.isin(np.arange(len(work.ops.parent)), list(calls))), -1][work.op]
    forward = np.flatnonzero(call >= 0)
    if not len(forward):
        return Clear(why="no attention gets a mask of as many queries as keys that all heads and sequences share")
    attention = work.in_families(Family.ATTENTION)
    kernels = np.r_[forward[attention[forward]], _backward(work, shapes, attention)]
    if not len(kernels):
        return Clear(why="no fused kernel computes the masked attention")
    converting = forward[~attention[forward] & np.array([calls[int(op)] for op in call[forward]], bool) & work.kernel[forward]]
    without = WithoutOps(converting) if len(converting) else combine()
    causal = combine(without, _faster(work, kernels, causal_share))
    boolean = any(calls.values())
    count = work.a_step(np.unique(call[forward]))
    return Found(
        summary=f"{counted(count, 'attention call')} {PER_STEP} get{'s' if count == 1 else ''} a {'boolean ' if boolean else ''}mask that all heads share. "
        f"That takes {duration(work.us_a_step(kernels))} of GPU time"
        + (f", and {duration(work.us_a_step(converting))} to turn it into floats." if len(converting) else "."),
        edits=Edits(without, causal, causal),
        removes="work on masked positions",
        quiet=f"masked attention takes {duration(work.us_a_step(kernels))} {PER_STEP}",
        evidence=witness.of_gpu(
            work.rows[np.r_[kernels, converting]], ["attention with a mask"] * len(kernels) + ["the mask turned into floats"] * len(converting)
        ),
        confidence=0.6,
        status="possible",
        possible_why="a trace does not show the mask's values",
        decide_with="torch.equal(mask, torch.ones_like(mask).tril()): True says that is_causal=True is the same",
        fix=Fix(
            title="Say is_causal=True in place of a causal mask",
            steps=(
                "If the mask is causal, drop it and pass is_causal=True: the kernel then skips everything above the diagonal.",
                "If it is a window, a prefix or a document mask, use flex_attention with a block_mask, compiled.",
                *(
                    ("Otherwise make it a float mask once, in the queries' type: zero for readable positions, minus infinity for the others.",)
                    if boolean
                    else ()
                ),
            ),
            code=Code(
                before="mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()\nout = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
                after="out = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
            risk="Only a causal mask is the same as the flag. With a cache (fewer queries than keys), the flag means another mask.",
        ),
    )


def _square_mask(shapes: Shapes, op: int) -> bool | None:
    """Whether the mask of a call is boolean; None if it has none that all heads and sequences share, of as many queries as keys."""
    tensors = shapes.inputs(op)
    if len(tensors) != 4:
        return None
    (query, _), (key, _), _, (mask, dtype) = tensors
    if len(mask) < 2 or len(query) < 2 or len(key) < 2 or query[-2] != key[-2] or key[-2] < SHORTEST:
        return None
    return dtype == "bool" if mask[-2:] == (query[-2], key[-2]) and all(size == 1 for size in mask[:-2]) else None


def _backward(work: GpuWork, shapes: Shapes, attention: np.ndarray) -> Ints:
    """Kernels of attention's gradient that get a square matrix next to their four-dimensional tensors: the mask."""
    gradient = work.ops.enclosing(work.op, _GRADIENT)
    masked = [
        op for op in np.unique(gradient[gradient >= 0]).tolist() if any(len(shape) > 1 and shape[-1] == shape[-2] >= SHORTEST for shape, _ in shapes.inputs(op))
    ]
    return np.flatnonzero(attention & np.isin(gradient, masked))


def _faster(work: GpuWork, kernels: Ints, share: float) -> Edit:
    return WithDurations(kernels, work.dur_us[kernels] * share)
