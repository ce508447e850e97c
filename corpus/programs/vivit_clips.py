"""ViViT of transformers, training in fp16 autocast with a scaler on 2 clips from pageable memory, attention written out; loss is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import HALF, SDPA, How, _public, training


def vivit(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """ViViT learns what is done in two clips of 32 pictures: 3137 tokens of each see one another."""
    from transformers import VivitConfig, VivitForVideoClassification

    way, frames, side = How(**how), s.size(32, 4), s.size(224, 32)
    config = VivitConfig(
        image_size=side, num_frames=frames, hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), num_labels=s.size(400, 5), attn_implementation=way.attention,
    )  # fmt: skip
    batch = torch.randn(2, frames, 3, side, side), torch.randint(config.num_labels, (2,))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        clips, labels = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(pixel_values=clips, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, VivitForVideoClassification(config), loss)


PROGRAM = _public(
    "vivit_clips",
    "ViViT of transformers, training in fp16 autocast with a scaler on 2 clips from pageable memory, attention written out; loss is read.",
    vivit,
    {"autocast": HALF, "scaler": True, "read_loss": True},
    {"unfused-attention": {"attention": SDPA}, "memcpy": {"pinned": True}, "amp-scaler-sync": {"optimizer": "fused"}, "sync-stall": {"read_loss": False}},
)
