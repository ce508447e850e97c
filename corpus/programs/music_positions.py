"""unfused-attention"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


class RelativeLayer(nn.Module):
    """Attention over all earlier notes, with the "skewed" relative positions of the Music Transformer."""

    def __init__(self, dim: int, heads: int, length: int, fused: bool, widen: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.widen = heads, fused, widen
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim)
        self.distance = nn.Parameter(0.1 * torch.randn(length, dim // heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, later: Tensor) -> Tensor:
        b, h, n, size = q.shape
        relative = F.pad(q @ self.distance.T, (1, 0)).view(b, h, n + 1, n)[:, :, 1:]
        if self.fused:
            bias = (relative / math.sqrt(size)).masked_fill(later, -math.inf)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        scores = (q @ k.transpose(-2, -1) + relative) / math.sqrt(size)
        scores = scores.masked_fill(later, -math.inf)
        weights = scores.float().softmax(-1).to(q.dtype) if self.widen else scores.softmax(-1)
        return weights @ v

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        b, n, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v, later).transpose(1, 2).reshape(b, n, dim))
        return x + self.feed(self.norm2(x))


def music_positions(s: Setup, *, fused: bool = False, widen: bool = True, graphed: bool = False) -> Step:
    dim, heads, songs, length = s.size(512, 16), s.size(8, 2), s.size(8, 2), s.size(1024, 8)
    layers = nn.ModuleList(RelativeLayer(dim, heads, length, fused, widen) for _ in range(s.size(6, 1)))
    layers = layers.to(s.device, torch.float16 if s.cuda else BF16).eval()
    notes = torch.randn(songs, length, dim, device=s.device, dtype=layers[0].distance.dtype)
    later = torch.ones(length, length, dtype=torch.bool, device=s.device).triu(1)

    @torch.no_grad()
    def step() -> Tensor:
        x = notes
        for layer in layers:
            x = layer(x, later)
        return x

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "music_positions",
    "unfused-attention",
    "fp16 inference with causal attention and skewed relative positions written out.",
    "scaled_dot_product_attention with the positions as its mask",
    music_positions,
    {"fused": True},
    alone={"dtype-casts": {"widen": False}, "graph-candidate": {"graphed": True}},
    gpu_bound=True,
)
