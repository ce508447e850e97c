"""XLNet of transformers, training with TF32 products on 8 x 512 words; masks of 16 MB come from pageable memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _public, training


def xlnet(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """XLNet learns to guess words in an order of its own; the collator's masks of 512 x 512 come from host memory in each step."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    way, words, batch, length = How(**how), s.size(32_000, 101), s.size(8, 2), s.size(512, 16)
    config = XLNetConfig(
        vocab_size=words, d_model=s.size(768, 32), n_layer=s.size(6, 1), n_head=s.size(12, 2), d_inner=s.size(3072, 64), mem_len=None,
    )  # fmt: skip
    ids = torch.randint(words, (batch, length))
    guessed = torch.rand(batch, length) < 1 / 6
    order = torch.stack([torch.randperm(length) for _ in range(batch)])
    hidden = ((order[:, :, None] <= order[:, None, :]) & guessed[:, None, :]).float()
    places = torch.eye(length).expand(batch, -1, -1).contiguous()
    host = (ids, hidden, places, ids.masked_fill(~guessed, -100))
    loader = Prefetcher([tuple(s.pin(part) for part in host)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        parts = loader.next() if loader else tuple(part.to(s.device) for part in host)
        return model(input_ids=parts[0], perm_mask=parts[1], target_mapping=parts[2], labels=parts[3]).loss  # type: ignore[no-any-return]

    return training(s, way, XLNetLMHeadModel(config), loss)


PROGRAM = _public(
    "xlnet_orders",
    "XLNet of transformers, training with TF32 products on 8 x 512 words; masks of 16 MB come from pageable memory.",
    xlnet,
    {"tf32": True},
    {"precision": {"autocast": BF16}, "memcpy": {"pinned": True}, "unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}},
)
