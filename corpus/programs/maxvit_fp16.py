"""MaxViT of torchvision in fp16 on 32 pictures, NCHW: attention with relative positions in windows and in grids."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import HALF, SDPA, How, _images, _public, _vision, inference


def _sdpa_of_maxvit(self: Any, x: Tensor) -> Tensor:
    """torchvision's attention with a bias for each relative position, by the library's function."""
    batch, groups, patches, _ = x.shape
    q, k, v = (y.reshape(batch * groups, patches, self.n_heads, self.head_dim).transpose(1, 2) for y in self.to_qkv(x).chunk(3, -1))
    bias = self.get_relative_positional_bias().to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale_factor)
    return self.merge(out.transpose(1, 2).reshape(batch, groups, patches, -1))


def maxvit(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    from torchvision.models.maxvit import MaxVit, RelativePositionalMultiHeadAttention

    model = MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=10) if s.tiny else _vision("maxvit_t")
    if attention == SDPA:
        for module in model.modules():
            if isinstance(module, RelativePositionalMultiHeadAttention):
                module.forward = MethodType(_sdpa_of_maxvit, module)
    way = How(**how)
    return inference(s, way, model, (_images(s, way, 32, 224, 64, way.dtype),))


PROGRAM = _public(
    "maxvit_fp16",
    "MaxViT of torchvision in fp16 on 32 pictures, NCHW: attention with relative positions in windows and in grids.",
    maxvit,
    {"dtype": HALF},
    {"memory-layout": {"channels_last": True}, "unfused-attention": {"attention": SDPA}, "graph-candidate": {"graph": True}},
)
