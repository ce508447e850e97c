"""Attention that is given a mask where a flag says the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.before(x), mask)
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


def decoder(s: Setup, mask: str = "boolean", train: bool = True) -> Step:
    width, batch, length, depth = s.size(1024, 16), s.size(4, 2), s.size(2048, 8), s.size(4, 1)
    with s.device:
        model = nn.ModuleList(Layer(width, s.size(16, 2)) for _ in range(depth)).to(torch.bfloat16).train(train)
        x = torch.randn(batch, length, width, dtype=torch.bfloat16)
        below = torch.ones(length, length, dtype=torch.bool).tril()
    given = {"boolean": below, "float": torch.zeros(length, length, dtype=torch.bfloat16, device=s.device).masked_fill(~below, float("-inf")), "flag": None}[mask]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def forward() -> Tensor:
        h = x
        for layer in model:
            h = layer(h, given)
        return h

    def step() -> None:
        if not train:
            with torch.inference_mode():
                forward()
            return
        optimizer.zero_grad()
        forward().float().square().mean().backward()
        optimizer.step()

    return step


def _made(*how):
    return lambda s: decoder(s, *how)


WORKLOADS = (
    Workload("decoder", "attention-mask", "four causal layers of 2,048 tokens with a boolean mask, trained", "is_causal=True", _made("flag"), _made("boolean"), main=True, severity="low", gpu_bound=True, fixed_quiet=False),
)
