"""Phi-3 of transformers, training in bf16 autocast on 4 x 1024 words, attention and norms written out."""

from __future__ import annotations

from types import MethodType
from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _public, _root_mean_square, _tokens, training


def phi3(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Phi-3 learns pieces of text: queries, keys and values of one product, gate and feed of another."""
    from transformers import Phi3Config, Phi3ForCausalLM

    way, words = How(**how), s.size(32_064, 101)
    config = Phi3Config(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(2816, 64), num_hidden_layers=s.size(4, 1), pad_token_id=0,
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(8, 2), attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    model = Phi3ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Phi3RMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    ids = _tokens(s, 4, 1024, words)
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


PROGRAM = _public(
    "phi3_pieces",
    "Phi-3 of transformers, training in bf16 autocast on 4 x 1024 words, attention and norms written out.",
    phi3,
    {"autocast": BF16},
    {"unfused-attention": {"attention": SDPA}, "unfused-norm": {"norms": True}, "dtype-casts": {"autocast": None, "dtype": BF16}},
)
