"""Work of attention in a library call, from the call's settings: the shapes of its arrays do not show their layout.

cuDNN's (`__cudnn$fmhaSoftmax`) are JSON with the shape of the scores: https://github.com/openxla/xla/blob/main/xla/service/gpu/backend_configs.proto.
Transformer Engine's (`te_fused_attn_forward_ffi`) are attributes, `{attn_heads = 16 : i64, …}`."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from advisor.sources.protobuf import numbers_of

_CUDNN = re.compile(r"^__cudnn\$fmha\w*$")
_TE = re.compile(r"^te_fused_attn_(forward|backward)_ffi$")
_ATTRIBUTE = re.compile(r"\b(\w{1,40}) = (-?\d{1,9}) : i64\b")
_SIZES = ("input_batch", "attn_heads", "q_max_seqlen", "kv_max_seqlen", "qk_head_dim", "v_head_dim")
_FORWARD, _BACKWARD = 2, 5
"""Products of scores' size: queries by keys and scores by values; backward the scores once more and the gradients of four operands."""
_MASK = numbers_of("NVTE_Mask_Type")
_CAUSAL_TE = _MASK.NVTE_CAUSAL_MASK, _MASK.NVTE_CAUSAL_BOTTOM_RIGHT_MASK
"""From the top left and the bottom right."""
_MASKS = {"NO_MASK": False, "CAUSAL": True, "": False}
"""Whether a mask of cuDNN's is causal. Of others, which pad, it is not known how much is left."""


class _Call(NamedTuple):
    batch: int
    heads: int
    queries: int
    keys: int
    query_size: int
    value_size: int
    causal: bool
    window: int
    """Keys that a query sees at most, 0 for all."""


def is_attention(target: str) -> bool:
    """Whether a library's function is attention with known settings."""
    return bool(_CUDNN.match(target) or _TE.match(target))


def attention_flops(target: str, settings: str, head_size: int) -> float:
    """FLOPs of a call, NaN if its settings do not determine them. head_size: the last size of its queries.

    With as many queries as keys, a causal mask leaves half: kernels skip the rest (Dao 2023, "FlashAttention-2", section 4.1)."""
    call = _cudnn(settings, head_size) if _CUDNN.match(target) else _transformer_engine(settings)
    if call is None or min(call[:6]) <= 0:
        return math.nan
    pairs = float(call.queries) * call.keys
    if call.causal and call.queries == call.keys:
        pairs /= 2
    if call.window > 0:
        pairs = min(pairs, float(call.queries) * call.window)
    each = (call.query_size + call.value_size) / 2
    return 2 * call.batch * call.heads * pairs * each * (_BACKWARD if "ackward" in target else _FORWARD)


def _cudnn(settings: str, head_size: int) -> _Call | None:
    try:
        said: Any = json.loads(settings)["cudnn_fmha_backend_config"]
        batch, heads, queries, keys = (int(size) for size in said["intermediate_tensor_shape"]["dimensions"])
        causal = _MASKS[str(said.get("mask_type", ""))]
        return _Call(batch, heads, queries, keys, head_size, head_size, causal, int(said.get("sliding_window_length", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _transformer_engine(settings: str) -> _Call | None:
    said = {name: int(value) for name, value in _ATTRIBUTE.findall(settings)}
    batch, heads, queries, keys, query, value = (said.get(name, 0) for name in _SIZES)
    mask = said.get("mask_type", -1)
    if mask not in (*_CAUSAL_TE, _MASK.NVTE_NO_MASK):
        return None
    # The window counts keys to the left of a query, which sees itself too; -1 is none.
    left = said.get("window_size_left", -1)
    return _Call(batch, heads, queries, keys, query, value, mask in _CAUSAL_TE, left + 1 if left >= 0 and mask in _CAUSAL_TE else 0)
