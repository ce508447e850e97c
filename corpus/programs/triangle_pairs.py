"""unfused-attention"""

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


class PairNorm(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.library = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        variance = (wide - mean).pow(2).mean(-1, keepdim=True)
        return ((wide - mean) / torch.sqrt(variance + 1e-5) * self.weight.float() + self.bias.float()).to(x.dtype)


class TriangleAttention(nn.Module):
    def __init__(self, dim: int, heads: int, ending: bool, fused: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.ending, self.fused = heads, ending, fused
        self.norm = PairNorm(dim, library)
        self.qkv, self.bias = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, heads, bias=False)
        self.gate, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, pair: Tensor) -> Tensor:
        x = self.norm(pair.transpose(0, 1) if self.ending else pair)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        bias = self.bias(x).permute(2, 0, 1).contiguous()[None]
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q * q.shape[-1] ** -0.5 @ k.mT + bias
            y = scores.float().softmax(-1).to(v.dtype) @ v
        y = self.out(self.gate(x).sigmoid() * y.transpose(1, 2).flatten(2))
        return y.transpose(0, 1) if self.ending else y


class TriangleProduct(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.norm, self.after = PairNorm(dim, library), PairNorm(dim, library)
        self.sides, self.gate, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, pair: Tensor) -> Tensor:
        x = self.norm(pair)
        left, right = self.sides(x).chunk(2, -1)
        return self.gate(x).sigmoid() * self.out(self.after(torch.einsum("ikc,jkc->ijc", left, right)))


def triangle_pairs(s: Setup, *, fused: bool = False, library: bool = False, graphed: bool = False) -> Step:
    residues, dim, heads = s.size(384, 8), s.size(128, 8), s.size(4, 2)
    parts: list[nn.Module] = []
    for _ in range(s.size(3, 1)):
        parts += [TriangleProduct(dim, library), *(TriangleAttention(dim, heads, ending, fused, library) for ending in (False, True))]
        parts += [nn.Sequential(PairNorm(dim, library), _mlp(dim, 4 * dim, dim))]
    model = nn.ModuleList(parts).to(s.device, BF16).eval().requires_grad_(False)
    start = torch.randn(residues, residues, dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        pair = start
        for part in model:
            pair = pair + part(pair)
        return pair

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "triangle_pairs",
    "unfused-attention",
    "Triangles of a protein's 384 x 384 pairs in bf16; attention with a bias and layer norms are written out.",
    "F.scaled_dot_product_attention with the bias as its mask",
    triangle_pairs,
    {"fused": True},
    alone={"unfused-norm": {"library": True}, "graph-candidate": {"graphed": True}},
    gpu_bound=True,
)
