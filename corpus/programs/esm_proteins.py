"""ESM-2 of transformers, training in FP32 to guess hidden amino acids of 12 proteins of 512; attention written out."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import SDPA, How, _public, training


def proteins(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Hidden amino acids are guessed; positions are rotations of queries and keys."""
    from transformers import EsmConfig, EsmForMaskedLM

    config = EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=s.size(480, 32), num_hidden_layers=s.size(5, 1),
        num_attention_heads=s.size(20, 2), intermediate_size=s.size(1920, 64), position_embedding_type="rotary", token_dropout=True,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=attention,
    )  # fmt: skip
    acids = torch.randint(4, 24, (s.size(12, 2), s.size(512, 16)), device=s.device)
    hidden = torch.rand(acids.shape, device=s.device) < 0.15
    ids, labels = acids.masked_fill(hidden, 32), acids.masked_fill(~hidden, -100)
    mask = torch.ones_like(ids)
    return training(s, How(**how), EsmForMaskedLM(config), lambda model: model(input_ids=ids, attention_mask=mask, labels=labels).loss)


PROGRAM = _public(
    "esm_proteins",
    "ESM-2 of transformers, training in FP32 to guess hidden amino acids of 12 proteins of 512; attention written out.",
    proteins,
    {},
    {"precision/tf32": {"tf32": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
)
