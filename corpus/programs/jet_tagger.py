"""unfused-attention"""

from __future__ import annotations

import math
from collections.abc import Callable
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


def pair_features(p: Tensor) -> Tensor:
    """p: transverse momentum, rapidity, angle and energy of each particle."""
    pt, y, phi, e = (part.squeeze(-1) for part in p.split(1, -1))
    px, py, pz = pt * torch.cos(phi), pt * torch.sin(phi), pt * torch.sinh(y)
    dphi = torch.remainder(phi[:, :, None] - phi[:, None] + math.pi, 2 * math.pi) - math.pi
    delta = torch.sqrt((y[:, :, None] - y[:, None]) ** 2 + dphi**2 + 1e-8)
    least = torch.minimum(pt[:, :, None], pt[:, None])
    mass = (e[:, :, None] + e[:, None]) ** 2
    for part in (px, py, pz):
        mass = mass - (part[:, :, None] + part[:, None]) ** 2
    share = least / (pt[:, :, None] + pt[:, None])
    return torch.stack([torch.log(x.clamp_min(1e-8)) for x in (delta, least * delta, share, mass)], 1)


class JetBlock(nn.Module):
    def __init__(self, dim: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads, self.library = heads, library
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        if self.library:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            mixed = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + bias, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Jets(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int, library: bool, pairs: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.pairs = _mlp(4, dim, dim, act=nn.GELU), pairs
        self.bias = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, dim // 4, 1), nn.GELU(), nn.Conv2d(dim // 4, heads, 1))
        self.blocks, self.head = nn.ModuleList(JetBlock(dim, heads, library) for _ in range(depth)), nn.Linear(dim, 10)

    def forward(self, p: Tensor, real: Tensor) -> Tensor:
        with torch.no_grad():
            pairs = self.pairs(p)
        bias = self.bias(pairs).masked_fill(~real[:, None, None], -1e4)
        x = self.first(p)
        for block in self.blocks:
            x = block(x, bias)
        return self.head((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def jet_tagger(s: Setup, *, library: bool = False, compiled: bool = False, fused: bool = False) -> Step:
    jets, particles = s.size(256, 2), s.size(128, 8)
    model = Jets(s.size(128, 8), s.size(8, 2), s.size(6, 1), library, s.compile(pair_features) if compiled else pair_features).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, **({"fused": True} if fused else {"foreach": False}))
    p = torch.rand(2, jets, particles, 4, device=s.device) + 0.1
    p[..., 3] += (p[..., 0] * torch.cosh(p[..., 1])).detach()
    real = torch.arange(particles, device=s.device) < torch.randint(particles // 4, particles + 1, (2, jets, 1), device=s.device)
    labels = torch.randint(10, (2, jets), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        for part in range(2):  # gradients of two small batches are added
            with torch.autocast(s.device.type, BF16):
                loss = F.cross_entropy(model(p[part], real[part]), labels[part], label_smoothing=0.1) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


PROGRAM = written_pair(
    "jet_tagger",
    "unfused-attention",
    "Training in bf16 autocast on two batches of 256 jets, attention with a bias of all pairs written out; AdamW(foreach=False).",
    "F.scaled_dot_product_attention with the bias",
    jet_tagger,
    {"library": True},
    alone={"unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}},
    gpu_bound=True,
)
