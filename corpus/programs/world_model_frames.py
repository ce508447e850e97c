"""unfused-norm"""

from __future__ import annotations

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


class RootNorm(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(dim)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Looks(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.sdpa = heads, causal, sdpa
        self.norm, self.norm_q, self.norm_k = RootNorm(dim, library), RootNorm(dim // heads, library), RootNorm(dim // heads, library)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = self.norm_q(q), self.norm_k(k)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            if self.causal:
                later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            y = torch.softmax(scores.float(), -1).to(v.dtype) @ v
        return self.out(y.transpose(-3, -2).flatten(-2))


class FrameBlock(nn.Module):
    def __init__(self, dim: int, heads: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.space, self.time = Looks(dim, heads, False, library, sdpa), Looks(dim, heads, True, library, sdpa)
        self.norm, self.feed = RootNorm(dim, library), _mlp(dim, 4 * dim, dim, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.space(x)
        x = x + self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norm(x))


def world_model_frames(s: Setup, *, library: bool = False, sdpa: bool = False, graphed: bool = False) -> Step:
    dim, heads = s.size(1024, 16), s.size(16, 2)
    model = nn.Sequential(*(FrameBlock(dim, heads, library, sdpa) for _ in range(s.size(6, 1)))).to(s.device, BF16).eval()
    x = torch.randn(s.size(3, 1), s.size(16, 3), s.size(256, 4), dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "world_model_frames",
    "unfused-norm",
    "bf16 inference on frames that attend in space and along time; RMSNorm, of queries and keys too, and attention written out.",
    "F.rms_norm",
    world_model_frames,
    {"library": True},
    alone={"unfused-attention": {"sdpa": True}, "graph-candidate": {"graphed": True}},
    gpu_bound=True,
)
