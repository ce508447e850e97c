"""MaskGIT, eight pictures in eight rounds, FP32 weights in bf16 autocast, attention written out; each round asks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Tessera(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v)
        else:
            seen = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Mosaicist(nn.Module):
    def __init__(self, codes: int, kinds: int, places: int, width: int, heads: int, layers: int, sdpa: bool) -> None:
        super().__init__()
        self.code, self.kind, self.place = nn.Embedding(codes + 1, width), nn.Embedding(kinds, width), nn.Embedding(places, width)
        self.layers = nn.ModuleList(Tessera(width, heads, sdpa) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, codes)

    def forward(self, codes: Tensor, kind: Tensor) -> Tensor:
        x = self.code(codes) + self.place.weight + self.kind(kind)[:, None]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def mosaic_tokens(s: Setup, *, graphed: bool = False, cast: bool = False, sdpa: bool = False, read: bool = True, compiled: bool = False) -> Step:
    """Eight rounds with FP32 weights under bf16 autocast; it is asked in each whether anything is still hidden."""
    count, places, codes, rounds = s.size(8, 2), s.size(256, 16), s.size(1024, 16), s.size(8, 3)
    with s.device:
        model = Mosaicist(codes, s.size(1000, 5), places, s.size(768, 32), s.size(12, 2), s.size(8, 1), sdpa).eval()
        kind = torch.randint(s.size(1000, 5), (count,))
    if cast:
        model = model.to(BF16)
    network = s.compile(model, dynamic=False) if compiled else model
    kept = torch.zeros(count, places, dtype=torch.long, device=s.device)
    asked = read and not graphed

    @torch.no_grad()
    def paint() -> Tensor:
        painted = torch.full((count, places), codes, device=s.device)
        for turn in range(rounds):
            hidden = painted == codes
            if asked and not hidden.any():
                break
            with torch.autocast(s.device.type, BF16, enabled=not cast):
                logits = network(painted, kind)
            logits = logits.float()
            dice = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1.0 - 1e-6)))
            drawn = (logits + dice).argmax(-1)
            sure = torch.softmax(logits, -1).gather(-1, drawn[..., None])[..., 0].log()
            heat = 4.5 * (1.0 - (turn + 1) / rounds)
            sure = sure - heat * torch.log(-torch.log(torch.rand_like(sure).clamp(1e-9, 1.0 - 1e-6)))
            sure = sure.masked_fill(~hidden, math.inf)
            drawn = torch.where(hidden, drawn, painted)
            again = int(places * math.cos(0.5 * math.pi * (turn + 1) / rounds))
            if again > 0 and turn + 1 < rounds:
                edge = sure.sort(-1).values[:, again : again + 1]
                drawn = torch.where(sure < edge, codes, drawn)
            painted = drawn
        kept.copy_(painted)
        return kept

    torch.set_float32_matmul_precision("high")
    work = capture(paint, s) if graphed else paint

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        work()
        return kept

    return step


PROGRAM = written(
    "mosaic_tokens",
    "MaskGIT, eight pictures in eight rounds, FP32 weights in bf16 autocast, attention written out; each round asks.",
    "all rounds as a CUDA graph; weights cast once; scaled_dot_product_attention; nobody asks; torch.compile of the net",
    mosaic_tokens,
    {
        "graph-candidate": {"graphed": True},
        "dtype-casts": {"cast": True},
        "unfused-attention": {"sdpa": True},
        "sync-stall": {"read": False},
        "launch-gap": {"compiled": True},
    },
)
