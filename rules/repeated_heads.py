"""Keys and values repeated for every head that shares them."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import union
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_costs.fused_attention import PREFER_CUDNN
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration
from advisor.report.wording.period import PER_STEP
from advisor.rules._phrases import SHARED_HEADS, a_step
from advisor.views.patterns.shared_heads import Repeated, RepeatedHeads
from advisor.views.replay.edits import Edit, Edits, WithDurations, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.arguments import need_shapes
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program

ONE_TILE = 64
"""Queries of all heads that share keys, at most, with which their products do little but read keys: a tile's rows."""

READ_ONCE = cost("keys-read-once")

_FOLD = "Fold the query heads that share a key into the rows of the matrix product: q.view(batch, shared, times * words, width) @ k.transpose(-2, -1)."
_ROWS = (
    "Fold the query heads that share a key into the rows of the call. If all heads share a mask, repeat its rows as often. "
    "Not with is_causal=True: write the causal mask out and repeat its rows."
)
_MASKED = (
    "On this device no fused kernel takes a mask together with shared heads. With enable_gqa=True the call would fall back to separate "
    "kernels. If nothing is padded, pass enable_gqa=True. A single query needs no mask; for as many queries as keys pass is_causal=True."
)
_SINGLE = "Keys are in FP32: no fused kernel takes them with shared heads, and with enable_gqa=True the call would fall back to separate kernels. BF16 and FP16 have such a kernel."

_SHARED = Code(
    before="k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)\nout = F.scaled_dot_product_attention(q, k, v)",
    after="out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
)
_FOLDED = Code(
    before="k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)\nout = (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v",
    after="rows = q.reshape(batch, shared, times * words, width)\nout = ((rows @ k.transpose(-2, -1) * scale).softmax(-1) @ v).view(q.shape)",
)
_IN_ROWS = Code(
    before="k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)\nout = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
    after="rows, masks = q.reshape(batch, shared, times * words, width), mask.repeat(1, 1, times, 1)\nout = F.scaled_dot_product_attention(rows, k, v, attn_mask=masks).view(q.shape)",
)


@rule("repeated-heads", min_saving_share=0.02, explains=("unfused-elementwise",), part_of=("unfused-attention", "unfused-elementwise"))
def repeated_heads(timeline: Timeline, work: GpuWork, heads: RepeatedHeads, host_time: HostTime, program: Program, witness: Witness) -> Outcome:
    """Keys and values are repeated for every head

    What
    In grouped-query attention, several query heads share a key/value head. `repeat_kv`, `repeat_interleave`, or
    `expand` with `contiguous` copies keys and values once per query head.

    Why
    In decoding, attention only reads the KV cache. Repeated four times, it is read once, written four times and
    read four times. These are nine passes over memory instead of a single pass, per layer and token.

    How to fix
    Let attention share the heads (torch 2.5 and later):

        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    In FP32, or with a mask without cuDNN, this call falls back to separate kernels. Then fold the heads that
    share a key into rows: `q.view(batch, shared, times * words, width) @ k.transpose(-2, -1)`.

    When to ignore
    Long prompts and training, in which GEMMs take most of the attention time. Only the copies are then saved.

    How it is measured
    The rule finds copies of tensors with an axis of stride 0 after the heads. Attention must read the result
    within 60 kernels. The replay removes them (`low`), and their CPU time. If all queries of a key fit into a
    tile of 64 rows, attention reads each key once. Savings below `min_saving_share` ({min_saving_share}) of the step are not
    reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    Ainslie et al.: GQA, 2023, https://arxiv.org/abs/2305.13245
    """
    need_shapes(timeline)
    if not heads.found:
        return Clear(why="no keys or values are repeated for query heads")
    copies = np.array([one.at for one in heads.found])
    frame = timeline.cpu_ops
    calls = np.unique([one.call for one in heads.found if one.call >= 0]).astype(int)
    started = frame["start_us"][calls]
    gone, host = WithoutOps(copies), host_time.cut_time(union(started, started + frame["dur_us"][calls]))
    few = [one for one in heads.found if one.times * one.queries <= ONE_TILE]
    likely = [one for one in few if not one.fused or one.queries == 1]
    times = sorted({one.times for one in heads.found})
    most = max(heads.found, key=lambda one: float(work.dur_us[one.at]))
    fused = any(one.fused for one in heads.found)
    by_cudnn = program.maker == "nvidia" and work.device_at(most.at).compute_capability[0] in PREFER_CUDNN
    single, masked = fused and most.dtype == "float", any(one.masked for one in heads.found) and not by_cudnn
    refused = single or masked
    return Found(
        summary=f"{a_step(work.a_step(copies), 'key/value tensor', 'are', 'is')} copied {' or '.join(map(str, times))}x, once per query head: "
        f"{duration(work.us_a_step(copies))} of copies for attention.",
        edits=Edits(gone, combine(gone, host, _read_once(work, likely)), combine(gone, host, _read_once(work, few))),
        removes="repeating keys and values",
        quiet=f"repeating keys and values takes {duration(work.us_a_step(copies))} {PER_STEP}",
        evidence=witness.of_gpu(work.rows[copies], [f"repeated {one.times} times" for one in heads.found]),
        confidence=0.9,
        at_most="low" if refused else "high",
        fix=Fix(
            title="Let attention share keys and values" if fused and not refused else "Fold the heads that share a key into rows",
            steps=(
                *((_ROWS,) if refused else (SHARED_HEADS,) if fused else (_FOLD,)),
                *((_MASKED,) if masked else ()),
                *((_SINGLE,) if single else ()),
            ),
            code=_IN_ROWS if refused else _SHARED if fused else _FOLDED,
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
            holds_for=("torch",),
            risk="The order of additions may differ, so the last bits do.",
        ),
    )


def _read_once(work: GpuWork, found: list[Repeated]) -> Edit:
    """Attention that reads each key once if it had read every copy."""
    if not found:
        return combine()
    readers = {int(at): one.times for one in found for at in one.reader}
    at = np.array(list(readers), int)
    return WithDurations(at, work.dur_us[at] * READ_ONCE / np.array(list(readers.values())))
