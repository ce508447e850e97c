"""Swin2SR of transformers doubles 4 pictures of 128, FP32: cosine attention in windows written out."""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import COMPILED, SDPA, How, _images, _public, inference


def _fused_cosine_attention(self: Any, x: Tensor, attention_mask: Tensor | None = None, _: bool | None = False) -> tuple[Tensor]:
    """The library's function with the bias and the mask, which this model adds twice, as one mask."""
    count, length, dim = x.shape
    q, k, v = (layer(x).view(count, length, self.num_attention_heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
    q = F.normalize(q, dim=-1) * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
    bias = self.continuous_position_bias_mlp(self.relative_coords_table).view(-1, self.num_attention_heads)
    bias = 16 * torch.sigmoid(bias[self.relative_position_index.view(-1)].view(length, length, -1).permute(2, 0, 1))[None]
    if attention_mask is not None:
        bias = (bias + 2 * attention_mask[:, None]).repeat(count // len(attention_mask), 1, 1, 1)
    out = F.scaled_dot_product_attention(q, F.normalize(k, dim=-1), v, attn_mask=bias.to(v.dtype), scale=1.0)
    return (out.transpose(1, 2).reshape(count, length, dim),)


def super_resolution(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Swin2SR: cosine attention in windows of 8 x 8 pixels, in six heads of 30."""
    from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution

    config = Swin2SRConfig(
        image_size=s.size(128, 16), embed_dim=s.size(180, 12), depths=[s.size(4, 2)] * 2, num_heads=[s.size(6, 2)] * 2, window_size=s.size(8, 4)
    )
    model = Swin2SRForImageSuperResolution(config)
    for module in model.modules():
        if attention == SDPA and type(module).__name__ == "Swin2SRSelfAttention":
            module.forward = MethodType(_fused_cosine_attention, module)
    way = How(**how)
    return inference(s, way, model, {"pixel_values": _images(s, way, 4, 128, 16)})


PROGRAM = _public(
    "swin2sr_pictures",
    "Swin2SR of transformers doubles 4 pictures of 128, FP32: cosine attention in windows written out.",
    super_resolution,
    {},
    {"unfused-elementwise": {"compiled": COMPILED}, "precision/tf32": {"tf32": True}, "unfused-attention": {"attention": SDPA}},
)
