"""CLIP of transformers, training in bf16 autocast on 128 pictures and captions from pageable memory, attention written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, How, _public, training


def clip_pairs(s: Setup, **how: Any) -> Step:
    """Pictures and captions come from pageable memory, as a DataLoader without pin_memory gives them."""
    from transformers import CLIPConfig, CLIPModel

    way = How(autocast=BF16, **how)
    wide, heads, side, words = s.size(512, 32), s.size(8, 2), s.size(224, 32), s.size(49_408, 101)
    tower = {"hidden_size": wide, "intermediate_size": 4 * wide, "num_hidden_layers": s.size(4, 1), "num_attention_heads": heads}
    config = CLIPConfig(
        text_config=tower | {"vocab_size": words, "max_position_embeddings": 77, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1},
        vision_config=tower | {"image_size": side, "patch_size": 16}, projection_dim=s.size(256, 16), attn_implementation=way.attention,
    )  # fmt: skip
    model = CLIPModel(config)
    batch = s.size(128, 2)
    host = [(torch.rand(batch, 3, side, side), torch.randint(3, words, (batch, s.size(77, 8)))) for _ in range(2)]
    ahead = Prefetcher([tuple(s.pin(part) for part in pair) for pair in host], s) if way.pinned else None
    turn = [0]

    def loss(model: Any) -> Tensor:
        if ahead:
            pixels, ids = ahead.next()
        else:
            turn[0] += 1
            pixels, ids = (part.to(s.device) for part in host[turn[0] % 2])
        return model(input_ids=ids, pixel_values=pixels, return_loss=True).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


PROGRAM = _public(
    "clip_captions",
    "CLIP of transformers, training in bf16 autocast on 128 pictures and captions from pageable memory, attention written out.",
    clip_pairs,
    {},
    {"memcpy": {"pinned": True}, "unfused-attention": {"attention": "sdpa"}, "optimizer-foreach": {"optimizer": "fused"}},
)
