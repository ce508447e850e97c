"""U-ViT on blocks of timm, training in bf16 autocast on 96 latents, attention written out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _public, training


class UViT(nn.Module):
    """U-ViT: latents, time and class are tokens alike; a long skip goes from each early block to a late one."""

    def __init__(self, side: int, dim: int, pairs: int, heads: int, fused: bool) -> None:
        super().__init__()
        from timm.models.vision_transformer import Block

        def block() -> nn.Module:
            made = Block(dim, heads)
            made.attn.fused_attn = fused
            return made

        self.side, self.dim = side // 2, dim
        self.patches, self.classes = nn.Conv2d(4, dim, 2, 2), nn.Embedding(1001, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 2 + self.side**2, dim))
        self.early, self.middle = nn.ModuleList(block() for _ in range(pairs)), block()
        self.late, self.skips = nn.ModuleList(block() for _ in range(pairs)), nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(pairs))
        self.norm, self.decode, self.last = nn.LayerNorm(dim), nn.Linear(dim, 16), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.dim // 2, device=x.device) * (-9.21 / (self.dim // 2))) * times[:, None]
        time = torch.cat([rates.cos(), rates.sin()], dim=-1)
        x = torch.cat([time[:, None], self.classes(labels)[:, None], self.patches(x).flatten(2).transpose(1, 2)], dim=1) + self.positions
        kept: list[Tensor] = []
        for block in self.early:
            x = block(x)
            kept.append(x)
        x = self.middle(x)
        for skip, block in zip(self.skips, self.late, strict=True):
            x = block(skip(torch.cat([x, kept.pop()], dim=-1)))
        x = self.decode(self.norm(x))[:, 2:].view(-1, self.side, self.side, 2, 2, 4)
        return self.last(x.permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 2 * self.side, 2 * self.side))  # type: ignore[no-any-return]


def u_vit(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    way, batch, side = How(**how), s.size(96, 2), s.size(32, 8)
    model = UViT(side, s.size(512, 32), s.size(4, 1), s.size(8, 2), attention == SDPA)
    latents = torch.randn(batch, 4, side, side, device=s.device)
    latents = latents.contiguous(memory_format=torch.channels_last) if way.channels_last else latents
    labels, betas = torch.randint(1000, (batch,), device=s.device), torch.linspace(1e-4, 0.02, 1000, device=s.device)
    kept = torch.cumprod(1.0 - betas, 0)

    def loss(model: Any) -> Tensor:
        times, noise = torch.randint(1000, (batch,), device=s.device), torch.randn_like(latents)
        level = kept[times].view(-1, 1, 1, 1)
        return F.mse_loss(model(level.sqrt() * latents + (1 - level).sqrt() * noise, times, labels), noise)

    return training(s, way, model, loss)


PROGRAM = _public(
    "uvit_latents",
    "U-ViT on blocks of timm, training in bf16 autocast on 96 latents, attention written out.",
    u_vit,
    {"autocast": BF16},
    {"unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}, "memory-layout": {"channels_last": True}},
)
