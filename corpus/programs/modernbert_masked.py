"""ModernBERT of transformers, training in FP32 on 8 x 512 words, attention written out."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _public, _tokens, training


def modern_bert(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """ModernBERT: two of three layers see 128 words only; the library's eager attention computes all of them."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    words = s.size(50_368, 128)
    config = ModernBertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), intermediate_size=s.size(1152, 64), num_hidden_layers=s.size(6, 2), pad_token_id=0,
        num_attention_heads=s.size(12, 2), local_attention=s.size(128, 4), eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model = ModernBertForMaskedLM(config)
    ids = _tokens(s, 8, 512, words)
    labels = torch.where(torch.rand(ids.shape, device=s.device) < 0.3, ids, -100)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=labels).loss)


PROGRAM = _public(
    "modernbert_masked",
    "ModernBERT of transformers, training in FP32 on 8 x 512 words, attention written out.",
    modern_bert,
    {},
    {"precision": {"autocast": BF16}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
)
