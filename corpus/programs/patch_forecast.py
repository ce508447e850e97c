"""unfused-attention"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


FP16 = torch.float16


class ChannelBlock(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.feed = _mlp(dim, 2 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (part(h).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.norm2(x))


def patch_forecast(s: Setup, *, sdpa: bool = False, scaled: bool = True, fused: bool = False) -> Step:
    dim, rows, channels, past, patch = s.size(128, 8), s.size(8, 2), s.size(321, 3), s.size(672, 64), 16
    first = nn.Linear(patch, dim).to(s.device)
    blocks = nn.Sequential(*(ChannelBlock(dim, s.size(16, 2), sdpa) for _ in range(s.size(3, 1)))).to(s.device)
    last = nn.Linear(past // patch * dim, 96).to(s.device)
    parameters = [*first.parameters(), *blocks.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, **({"fused": True} if fused else {"foreach": False}))
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    series, future = torch.randn(rows, past, channels, device=s.device), torch.randn(rows, 96, channels, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, FP16 if scaled and s.cuda else BF16):
            x = series.mT.reshape(-1, past)
            level, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
            x = blocks(first(((x - level) / spread).unfold(1, patch, patch)))
            y = last(x.flatten(1)) * spread + level
        loss = F.mse_loss(y.float().view(rows, channels, 96).mT, future)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


PROGRAM = written_pair(
    "patch_forecast",
    "unfused-attention",
    "Training on 321 channels cut into patches, attention written out, FP16 with a GradScaler, AdamW(foreach=False).",
    "scaled_dot_product_attention",
    patch_forecast,
    {"sdpa": True},
    alone={"amp-scaler-sync": {"scaled": False}, "optimizer-foreach": {"fused": True}},
)
