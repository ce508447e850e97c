"""VideoMAE of transformers, training in bf16 autocast on 4 films from pageable memory, attention over 1568 patches written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _public, training


def videomae(s: Setup, *, attention: str = "eager", pinned: bool = False, **how: Any) -> Step:
    """Nine tenths of a film are hidden and drawn; films come from the host."""
    from transformers import VideoMAEConfig, VideoMAEForPreTraining

    side, frames, batch = s.size(224, 32), s.size(16, 4), s.size(4, 1)
    config = VideoMAEConfig(
        image_size=side, num_frames=frames, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), decoder_num_attention_heads=s.size(6, 2), decoder_hidden_size=s.size(384, 24),
        decoder_num_hidden_layers=s.size(4, 1), decoder_intermediate_size=s.size(1536, 48), attn_implementation=attention,
    )  # fmt: skip
    patches = (side // 16) ** 2 * (frames // 2)
    hidden = torch.rand(patches).argsort() < round(0.9 * patches)
    hidden = hidden.expand(batch, -1).contiguous().to(s.device)
    films = torch.randn(batch, frames, 3, side, side)
    films = s.pin(films) if pinned else films

    def loss(model: Any) -> Tensor:
        return model(pixel_values=films.to(s.device, non_blocking=pinned), bool_masked_pos=hidden).loss

    return training(s, How(**how), VideoMAEForPreTraining(config), loss)


PROGRAM = _public(
    "videomae_films",
    "VideoMAE of transformers, training in bf16 autocast on 4 films from pageable memory, attention over 1568 patches written out.",
    videomae,
    {"autocast": BF16},
    {"unfused-attention": {"attention": SDPA}, "memcpy": {"pinned": True}, "optimizer-foreach": {"optimizer": "fused"}},
)
