"""The picture decoder of Janus of transformers makes 6 pictures of 384, FP32, NCHW; the allocator's cache is emptied each time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _placed, _precision, _public


def janus(s: Setup, *, emptied: bool = True, **how: Any) -> Step:
    """A script draws pictures from words: the decoder makes pixels, which are saved from the host, and the cache is emptied each time."""
    from transformers.models.janus.configuration_janus import JanusVQVAEConfig
    from transformers.models.janus.modeling_janus import JanusVQVAE

    way, patches, count = How(**how), s.size(24, 2), s.size(6, 1)
    sizes: dict[str, Any] = {"channel_multiplier": [1, 1], "num_res_blocks": 1, "base_channels": 32, "latent_channels": 32} if s.tiny else {}
    config = JanusVQVAEConfig(num_patches=patches, num_embeddings=s.size(16_384, 50), **sizes)
    model = _placed(s, way, JanusVQVAE(config)).eval()
    ids = torch.randint(config.num_embeddings, (count, patches * patches), device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        with _casting(s, way):
            pixels = model.decode(ids)
        pictures = ((pixels.float().clamp(-1, 1) + 1) * 127.5).byte().permute(0, 2, 3, 1).cpu()
        del pixels
        if emptied and s.cuda:
            torch.cuda.empty_cache()
        return pictures

    return step


PROGRAM = _public(
    "janus_pictures",
    "The picture decoder of Janus of transformers makes 6 pictures of 384, FP32, NCHW; the allocator's cache is emptied each time.",
    janus,
    {},
    {"allocator": {"emptied": False}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "memory-layout": {"channels_last": True}},
)
