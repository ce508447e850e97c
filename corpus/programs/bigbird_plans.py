"""BigBird of transformers, training with TF32 products on 3584 words: NumPy draws each head's blocks in each step."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import How, _public, training


class Plans:
    """The random blocks of a layer's heads, which are the same in each step since each step seeds them anew."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.plans = draw, None

    def __call__(self, **options: Any) -> Any:
        self.plans = self.plans or self.draw(**options)
        return self.plans


def long_text(s: Setup, *, plans_once: bool = False, **how: Any) -> Step:
    """Each head of each layer sees blocks that NumPy draws in each call."""
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    words, length, heads, block = s.size(50_358, 101), s.size(3584, 256), s.size(12, 2), s.size(64, 16)
    config = BigBirdConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(2, 1), num_attention_heads=heads, intermediate_size=s.size(3072, 64),
        max_position_embeddings=length, attention_type="block_sparse", block_size=block, num_random_blocks=s.size(3, 1), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BigBirdForMaskedLM(config)
    for module in model.modules():
        if plans_once and hasattr(module, "_bigbird_block_rand_mask_with_head"):
            module._bigbird_block_rand_mask_with_head = Plans(module._bigbird_block_rand_mask_with_head)
    ids = torch.randint(words, (1, length), device=s.device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=s.device) > 0.15, -100)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=labels).loss)


PROGRAM = _public(
    "bigbird_plans",
    "BigBird of transformers, training with TF32 products on 3584 words: NumPy draws each head's blocks in each step.",
    long_text,
    {"tf32": True, "read_loss": True},
    {"host-bound": {"plans_once": True}, "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"read_loss": False}},
)
