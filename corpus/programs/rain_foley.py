"""Flow matching with a 1-D DiT in training on 32 x 512 latents, bf16 autocast; attention written out, EMA by a loop."""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16, FP16 = torch.bfloat16, torch.float16


class HeadNorm(nn.Module):
    """RMSNorm of queries and keys."""

    def __init__(self, size: int, library: bool) -> None:
        super().__init__()
        self.scale, self.library = nn.Parameter(torch.ones(size)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.scale.to(x.dtype), 1e-6)
        h = x.float()
        h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)
        return (h * self.scale).to(x.dtype)


class FlowBlock(nn.Module):
    """adaLN-Zero block of DiT."""

    def __init__(self, dim: int, heads: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2 = (nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = HeadNorm(dim // heads, library), HeadNorm(dim // heads, library)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulation = nn.Linear(dim, 6 * dim)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.sdpa:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            out = attn.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(c))[:, None].chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class RainFlow(nn.Module):
    def __init__(self, channels: int, frames: int, kinds: int, dim: int, heads: int, depth: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.dim = dim
        self.embed, self.kind = nn.Linear(channels, dim), nn.Embedding(kinds + 1, dim)
        self.position = nn.Parameter(0.02 * torch.randn(1, frames, dim))
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(FlowBlock(dim, heads, sdpa, library) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim, elementwise_affine=False), nn.Linear(dim, channels)

    def forward(self, x: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(10_000.0) * torch.arange(self.dim // 2, device=x.device) / (self.dim // 2))
        angle = 1000.0 * t[:, None] * freqs
        c = self.time(torch.cat([angle.cos(), angle.sin()], -1)) + self.kind(kind)
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x, c)
        return self.out(self.norm(x))


def rain_foley(
    s: Setup,
    *,
    sdpa: bool = False,
    library: bool = False,
    compiled: bool = False,
    foreach: bool = False,
    read: bool = True,
    ahead: bool = False,
) -> Step:
    """Flow-matching training of a 1-D DiT on 32 clips of 512 latent frames, bf16 autocast; EMA by a loop over the parameters."""
    clips, frames, channels, kinds = s.size(32, 2), s.size(512, 12), s.size(64, 4), s.size(50, 3)
    dim, heads, depth = s.size(768, 16), s.size(12, 2), s.size(6, 2)
    rng = np.random.default_rng(1)
    stored = [(rng.standard_normal((clips, frames, channels), np.float32), rng.integers(0, kinds, clips)) for _ in range(4)]
    with s.device:
        model = RainFlow(channels, frames, kinds, dim, heads, depth, sdpa, library)
        mean, std = torch.randn(channels) * 0.1, torch.rand(channels) + 0.5
    if compiled:
        for n, block in enumerate(model.blocks):
            model.blocks[n] = s.compile(block, dynamic=False)
    params = list(model.parameters())
    ema = [p.detach().clone() for p in params]
    opt = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01)
    queue = Prefetcher([tuple(s.pin(torch.from_numpy(part)) for part in batch) for batch in stored], s) if ahead else None
    turn, running = counter(), [0.0]

    @torch.no_grad()
    def follow(decay: float = 0.9995) -> None:
        if foreach:
            torch._foreach_lerp_(ema, params, 1.0 - decay)
            return
        for e, p in zip(ema, params, strict=True):
            e.mul_(decay).add_(p.detach(), alpha=1.0 - decay)

    def step() -> tuple[float, float] | None:
        torch.set_float32_matmul_precision("high")
        if queue:
            latents, kind = queue.next()
        else:
            latents, kind = (torch.from_numpy(part).to(s.device) for part in stored[next(turn) % len(stored)])
        x1 = (latents - mean) / std
        x0 = torch.randn_like(x1)
        t = torch.sigmoid(torch.randn(clips, device=s.device))
        kind = torch.where(torch.rand(clips, device=s.device) < 0.1, torch.full_like(kind, kinds), kind)
        xt = torch.lerp(x0, x1, t[:, None, None])
        with torch.autocast(s.device.type, BF16):
            v = model(xt, t, kind)
        loss = F.mse_loss(v.float(), x1 - x0)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        follow()
        if read:
            running[0] = 0.98 * running[0] + 0.02 * loss.item()
            return running[0], norm.item()
        return None

    return step


PROGRAM = written(
    "rain_foley",
    "Flow matching with a 1-D DiT in training on 32 x 512 latents, bf16 autocast; attention written out, EMA by a loop.",
    "SDPA; F.rms_norm; torch.compile of the blocks; EMA by foreach; the loss is not read; pinned batches ahead",
    rain_foley,
    {
        "unfused-attention": {"sdpa": True},
        "unfused-norm": {"library": True},
        "unfused-elementwise": {"compiled": True},
        "optimizer-foreach": {"foreach": True},
        "sync-stall": {"read": False},
        "memcpy": {"ahead": True},
    },
)
