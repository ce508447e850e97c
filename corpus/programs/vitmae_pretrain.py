"""A masked autoencoder of transformers, training in bf16 autocast on 128 pictures from pageable memory, attention written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, SDPA, How, _public, training


def masked_pictures(s: Setup, *, pinned: bool = False, attention: str = "eager", **how: Any) -> Step:
    """A masked autoencoder sees a quarter of each picture; pictures as floats come from the host's memory in each step."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    side = s.size(224, 64)
    config = ViTMAEConfig(
        hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        image_size=side, decoder_hidden_size=s.size(512, 32), decoder_num_hidden_layers=s.size(4, 1), norm_pix_loss=True,
        decoder_num_attention_heads=s.size(16, 2), decoder_intermediate_size=s.size(2048, 64), attn_implementation=attention,
    )  # fmt: skip
    images = torch.rand(s.size(128, 2), 3, side, side)
    loader = Prefetcher([(s.pin(images),)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        return model(pixel_values=loader.next()[0] if loader else images.to(s.device)).loss  # type: ignore[no-any-return]

    return training(s, How(**how), ViTMAEForPreTraining(config), loss)


PROGRAM = _public(
    "vitmae_pretrain",
    "A masked autoencoder of transformers, training in bf16 autocast on 128 pictures from pageable memory, attention written out.",
    masked_pictures,
    {"autocast": BF16},
    {"memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
)
