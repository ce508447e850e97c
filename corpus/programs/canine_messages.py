"""CANINE of transformers, training with TF32 products on 32 messages of 384 characters that Python changes."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, training


def characters(s: Setup, *, written_ahead: bool = False, **how: Any) -> Step:
    """CANINE reads messages by characters, in which Python makes typing errors in each step."""
    from transformers import CanineConfig, CanineForSequenceClassification

    draw, count, length = random.Random(0), s.size(32, 2), s.size(384, 32)
    letters = "abcdefghijklmnopqrstuvwxyz    éüß"
    messages = ["".join(draw.choices(letters, k=draw.randint(length * 3 // 4, length * 5 // 4))) for _ in range(s.size(512, 8))]

    def typed(text: str) -> list[int]:
        codes = [0xE000]
        for letter in unicodedata.normalize("NFKC", text).lower():
            luck = draw.random()
            if luck < 0.02:
                continue
            if luck < 0.04:
                letter = draw.choice(letters)
            codes.append(ord(letter))
            if luck > 0.98:
                codes.append(ord(letter))
        codes = [*codes[: length - 1], 0xE001]
        return codes + [0] * (length - len(codes))

    def batch() -> Tensor:
        return torch.tensor([typed(text) for text in draw.sample(messages, count)])

    config = CanineConfig(
        hidden_size=s.size(384, 32), num_hidden_layers=2, num_attention_heads=s.size(6, 2), intermediate_size=s.size(1536, 64),
        local_transformer_stride=s.size(128, 8), num_hash_buckets=s.size(16_384, 64), num_labels=6,
    )  # fmt: skip
    labels = torch.randint(6, (count,), device=s.device)
    ahead, turns = [batch() for _ in range(8)] if written_ahead else [], iter(range(10**9))

    def loss(model: Any) -> Tensor:
        ids = (ahead[next(turns) % len(ahead)] if ahead else batch()).to(s.device)
        return model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss  # type: ignore[no-any-return]

    return training(s, How(**how), CanineForSequenceClassification(config), loss)


PROGRAM = _public(
    "canine_messages",
    "CANINE of transformers, training with TF32 products on 32 messages of 384 characters that Python changes.",
    characters,
    {"tf32": True},
    {"host-bound": {"written_ahead": True}, "precision": {"tf32": True, "autocast": BF16}, "optimizer-foreach": {"optimizer": "fused"}},
)
