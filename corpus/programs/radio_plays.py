"""A retentive network of four layers in training, bf16 autocast, 32,003 pieces; norms written out; the loss is read."""

from __future__ import annotations

from itertools import count as counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def root_mean(x: Tensor, gain: Tensor | None, library: bool) -> Tensor:
    """RMS norm in FP32; written out unless `library`."""
    if library:
        return F.rms_norm(x, x.shape[-1:], None if gain is None else gain.to(x.dtype), 1e-6)
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y.to(x.dtype) if gain is None else (y * gain).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def retained(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, decay: Tensor, cos: Tensor, sin: Tensor, library: bool) -> Tensor:
    """What each head still remembers, normed head by head, as much of it as the gate lets through."""
    scores = (turned(q, cos, sin) @ turned(k, cos, sin).transpose(-1, -2)) * decay
    scores = scores / scores.detach().float().abs().sum(-1, keepdim=True).clamp(1.0, 5e4).to(scores.dtype)
    seen = root_mean(scores @ v, None, library).transpose(1, 2).flatten(2)
    return F.silu(gate) * seen


class Scene(nn.Module):
    def __init__(self, width: int, heads: int, library: bool, core: Any) -> None:
        super().__init__()
        self.heads, self.library, self.core = heads, library, core
        self.qkvg, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.before, self.between = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, decay: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v, gate = self.qkvg(root_mean(x, self.before, self.library)).chunk(4, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        x = x + self.out(self.core(q, k * q.shape[-1] ** -0.5, v, gate, decay, cos, sin, self.library))
        return x + self.down(F.gelu(self.up(root_mean(x, self.between, self.library))))


class Playwright(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, length: int, library: bool, core: Any) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.scenes = nn.ModuleList(Scene(width, heads, library, core) for _ in range(layers))
        self.last, self.library = nn.Parameter(torch.ones(width)), library
        rate = torch.log1p(-torch.exp2(-5.0 - torch.arange(heads)))
        place = torch.arange(length)
        apart = (place[:, None] - place[None]).float()
        decay = torch.where(apart >= 0, torch.exp(rate[:, None, None] * apart.clamp(min=0)), 0.0)
        decay = decay / decay.sum(-1, keepdim=True).sqrt()
        angle = place[:, None] * (1.0 / 10000 ** torch.linspace(0, 1, width // heads // 2))
        self.register_buffer("decay", decay.to(BF16))
        self.register_buffer("cos", angle.cos().to(BF16))
        self.register_buffer("sin", angle.sin().to(BF16))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for scene in self.scenes:
            x = scene(x, self.decay, self.cos, self.sin)
        return self.head(root_mean(x, self.last, self.library))


def radio_plays(s: Setup, *, padded: bool = False, library: bool = False, compiled: bool = False, fused: bool = False, read: bool = True) -> Step:
    """Training in bf16 autocast; the tokenizer knows 32,003 pieces."""
    words, width, heads, length, count = s.size(32_003, 101), s.size(1024, 32), s.size(8, 2), s.size(1024, 12), s.size(8, 2)
    core = s.compile(retained, dynamic=False) if compiled else retained
    with s.device:
        model = Playwright(words, width, heads, s.size(4, 1), length, library, core)
        plays = [torch.randint(words, (count, length + 1)) for _ in range(4)]
        if padded:
            more = -words % 64
            weight, bias = F.pad(model.head.weight.detach(), (0, 0, 0, more)), F.pad(model.head.bias.detach(), (0, more), value=-1e4)
            model.head = nn.Linear(1, 1)
            model.head.weight, model.head.bias = nn.Parameter(weight), nn.Parameter(bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=fused or None)
    turn, mean = counter(), torch.zeros((), device=s.device)
    log = [0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        play = plays[next(turn) % len(plays)]
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            says = model(play[:, :-1])
        loss = F.cross_entropy(says.float().flatten(0, 1), play[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if read:
            log[0] = 0.99 * log[0] + 0.01 * loss.item()
        else:
            mean.lerp_(loss.detach(), 0.01)
        return loss.detach()

    return step


PROGRAM = written(
    "radio_plays",
    "A retentive network of four layers in training, bf16 autocast, 32,003 pieces; norms written out; the loss is read.",
    "vocabulary of 32,064; F.rms_norm; torch.compile of the retention; fused AdamW; the loss is not read",
    radio_plays,
    {
        "gemm-alignment": {"padded": True},
        "unfused-norm": {"library": True},
        "unfused-elementwise": {"compiled": True},
        "optimizer-foreach": {"fused": True},
        "sync-stall": {"read": False},
    },
    gpu_bound=True,
)
