"""Attention among up to 90 atoms of 32 molecules with a bias from 128 bells of each distance, all written out, training in bf16 autocast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class Bells(nn.Module):
    """A distance as many bells, whose place depends on which two atoms they are."""

    def __init__(self, count: int, kinds: int) -> None:
        super().__init__()
        self.stretch, self.shift = nn.Embedding(kinds * kinds, 1), nn.Embedding(kinds * kinds, 1)
        self.mean, self.spread = nn.Parameter(torch.rand(count) * 3), nn.Parameter(torch.rand(count) * 3)
        nn.init.ones_(self.stretch.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, distance: Tensor, pair: Tensor) -> Tensor:
        x = (self.stretch(pair) * distance[..., None] + self.shift(pair)).float()
        spread = self.spread.abs() + 1e-2
        return torch.exp(-0.5 * ((x - self.mean) / spread) ** 2) / (math.sqrt(2 * math.pi) * spread)


class Bonded(nn.Module):
    def __init__(self, width: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads, self.library = heads, library
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.all(self.before(x)).chunk(3, -1))
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
            seen = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Molecule(nn.Module):
    def __init__(self, s: Setup, library: bool, bells: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        width, heads, count, self.kinds = s.size(512, 16), s.size(16, 2), s.size(128, 8), s.size(20, 4)
        self.atoms = nn.Embedding(self.kinds, width, padding_idx=0)
        self.bells = bells(Bells(count, self.kinds))
        self.around = nn.Linear(count, width)
        self.bias = nn.Sequential(nn.Linear(count, count), nn.GELU(), nn.Linear(count, heads))
        self.layers = nn.ModuleList(Bonded(width, heads, library) for _ in range(s.size(6, 1)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, kind: Tensor, place: Tensor) -> Tensor:
        absent = kind == 0
        distance = torch.cdist(place, place)
        bells = self.bells(distance, kind[:, :, None] * self.kinds + kind[:, None, :]).masked_fill(absent[:, None, :, None], 0.0)
        bias = self.bias(bells).permute(0, 3, 1, 2).float().masked_fill(absent[:, None, None], -1e4)
        x = self.atoms(kind) + self.around(bells.sum(2))
        for layer in self.layers:
            x = layer(x, bias)
        return self.last(x)[..., 0].float().masked_fill(absent, 0.0).sum(1)


def molecule_energies(s: Setup, *, sdpa: bool = False, compiled: bool = False, more: int = 0) -> Step:
    count, longest = s.size(32, 2), s.size(90, 6)
    model = Molecule(s, sdpa, s.compile if compiled else lambda module: module).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    sizes = torch.randint(longest // 2, longest + 1, (count, 1))
    kind = torch.randint(1, model.kinds, (count, longest)) * (torch.arange(longest) < sizes)
    kind, place = F.pad(kind, (0, more)).to(s.device), F.pad(torch.randn(count, longest, 3) * 3, (0, 0, 0, more)).to(s.device)
    energy = torch.randn(count, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = F.l1_loss(model(kind, place), energy)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


PROGRAM = written(
    "molecule_energies",
    "Attention among up to 90 atoms of 32 molecules with a bias from 128 bells of each distance, all written out, training in bf16 autocast.",
    "F.scaled_dot_product_attention with the bias as its mask; torch.compile of the bells; padded to 96 atoms",
    molecule_energies,
    {"unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True}, "gemm-alignment": {"more": 6}},
    gpu_bound=True,
)
