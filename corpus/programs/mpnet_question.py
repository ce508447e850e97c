"""MPNet of transformers embeds one question of 24 words, FP32."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, GRAPHS, How, _public, inference


def mpnet(s: Setup, **how: Any) -> Step:
    """The embedding of one question for a search, mean over words."""
    from transformers import MPNetConfig, MPNetModel

    words = s.size(30_527, 101)
    config = MPNetConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64),
    )  # fmt: skip
    ids = torch.randint(2, words, (1, s.size(24, 8)), device=s.device)
    return inference(s, How(**how), MPNetModel(config, add_pooling_layer=False), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


PROGRAM = _public(
    "mpnet_question",
    "MPNet of transformers embeds one question of 24 words, FP32.",
    mpnet,
    {},
    {"launch-gap": {"compiled": GRAPHS}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}},
)
