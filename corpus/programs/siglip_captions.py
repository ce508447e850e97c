"""SigLIP of transformers, training in bf16 autocast on 64 pictures from pageable memory and their captions; the loss is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _public, training


def siglip(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """SigLIP learns which of 64 captions belongs to which of 64 pictures, by the sigmoid of each pair."""
    from transformers import SiglipConfig, SiglipModel

    pairs, side, words, length = s.size(64, 2), s.size(224, 32), s.size(32_000, 101), s.size(64, 8)
    part: dict[str, Any] = {
        "hidden_size": s.size(768, 32), "intermediate_size": s.size(3072, 64), "num_hidden_layers": s.size(10, 1), "num_attention_heads": s.size(12, 2),
    }  # fmt: skip
    config = SiglipConfig(
        text_config=part
        | {"vocab_size": words, "max_position_embeddings": length, "projection_size": part["hidden_size"], "bos_token_id": 0, "eos_token_id": 1},
        vision_config=part | {"image_size": side, "patch_size": 16},
    )
    with s.device:
        model = SiglipModel(config)
    batch = torch.randn(pairs, 3, side, side), torch.randint(2, words, (pairs, length))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        pictures, captions = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(input_ids=captions, pixel_values=pictures, return_loss=True).loss

    return training(s, How(**how), model, loss)


PROGRAM = _public(
    "siglip_captions",
    "SigLIP of transformers, training in bf16 autocast on 64 pictures from pageable memory and their captions; the loss is read.",
    siglip,
    {"autocast": BF16, "read_loss": True},
    {
        "memcpy": {"pinned": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "sync-stall": {"read_loss": False},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
