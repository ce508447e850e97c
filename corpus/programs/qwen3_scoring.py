"""Qwen3 of transformers in bf16 reads 8 x 1024 words, attention and norms written out, of queries and keys too."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, _tokens, inference


def _root_mean_square(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def qwen3(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Qwen3 scores answers: queries and keys have an RMSNorm of their own."""
    from transformers import Qwen3Config, Qwen3Model

    way = How(dtype=BF16, **how)
    config = Qwen3Config(
        vocab_size=s.size(32_000, 101), hidden_size=s.size(1024, 32), intermediate_size=s.size(3072, 64), num_hidden_layers=s.size(6, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(8, 2), head_dim=s.size(128, 16), attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    model = Qwen3Model(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Qwen3RMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    return inference(s, way, model, {"input_ids": _tokens(s, 8, 1024, s.size(32_000, 101))})


PROGRAM = _public(
    "qwen3_scoring",
    "Qwen3 of transformers in bf16 reads 8 x 1024 words, attention and norms written out, of queries and keys too.",
    qwen3,
    {},
    {"unfused-attention": {"attention": "sdpa"}, "unfused-norm": {"norms": True}, "graph-candidate": {"graph": True}},
)
