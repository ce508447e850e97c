"""unfused-norm"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


class OwnNorm(nn.Module):
    """Written out, in FP32, as in the paper's code."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, self.scale.shape, self.scale, self.shift, 1e-5)
        x = x.float()
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift


class Season(nn.Module):
    def __init__(self, width: int, heads: int, norms: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.library, self.before, self.between = heads, library, OwnNorm(width, norms), OwnNorm(width, norms)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, clear: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.all(self.before(x)).chunk(3, -1))
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=clear)
        else:
            scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~clear, -1e4)
            seen = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


class Harvest(nn.Module):
    def __init__(self, s: Setup, norms: bool, library: bool) -> None:
        super().__init__()
        width, dates = s.size(128, 16), s.size(48, 6)
        self.enter, self.days = nn.Linear(10, width), nn.Parameter(torch.randn(dates, width) * 0.02)
        self.layers = nn.ModuleList(Season(width, s.size(8, 2), norms, library) for _ in range(s.size(3, 1)))
        self.last = nn.Linear(width, 20)

    def forward(self, bands: Tensor, clear: Tensor) -> Tensor:
        x = self.enter(bands) + self.days
        for layer in self.layers:
            x = layer(x, clear)
        return self.last(x.amax(1))  # type: ignore[no-any-return]


def field_harvests(s: Setup, *, norms: bool = False, sdpa: bool = False, compiled: bool = False) -> Step:
    model = Harvest(s, norms, sdpa).to(s.device)
    run, optimizer = s.compile(model) if compiled else model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    count, dates = s.size(4096, 4), s.size(48, 6)
    bands, crops = torch.rand(count, dates, 10, device=s.device), torch.randint(20, (count,), device=s.device)
    clear = (torch.rand(count, 1, 1, dates, device=s.device) < 0.7) | (torch.arange(dates, device=s.device) == 0)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            scores = run(bands, clear)
        F.cross_entropy(scores.float(), crops).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "field_harvests",
    "unfused-norm",
    "A transformer over 48 dates of 4096 fields, training in bf16 autocast, attention and layer norm written out.",
    "F.layer_norm",
    field_harvests,
    {"norms": True},
    alone={"unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True}},
    gpu_bound=True,
)
