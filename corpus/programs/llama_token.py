"""Llama of transformers, one token through four layers of 4096, bf16."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, GRAPHS, How, _with_fused_norms, _workload, inference


def _llama(s: Setup, how: How, layers: int, dim: int, inner: int, heads: int, groups: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=s.size(layers, 1), hidden_size=s.size(dim, 32), intermediate_size=s.size(inner, 64),
        num_attention_heads=s.size(heads, 4), num_key_value_heads=s.size(groups, 2), vocab_size=s.size(32000, 101),
        attn_implementation=how.attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return _with_fused_norms(model) if how.fused_norms else model


def llama_token(s: Setup, how: How) -> Step:
    """One token, as in decoding without a past."""
    ids = torch.randint(s.size(32000, 101), (how.batch or 1, 1), device=s.device)
    with s.device:
        model = _llama(s, how, 4, 4096, 14336, 32, 8)
    return inference(s, how, model, {"input_ids": ids, "use_cache": False})  # type: ignore[dict-item]


PROGRAM = _workload(
    "llama_token",
    "Llama of transformers, one token through four layers of 4096, bf16.",
    llama_token,
    How(attention="sdpa", dtype=BF16),
    launch_gap=How(attention="sdpa", dtype=BF16, compiled=GRAPHS),
    low_arithmetic_intensity=How(attention="sdpa", dtype=BF16, batch=16),
)
