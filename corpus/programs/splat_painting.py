"""1024 soft strokes over 256 x 256 pixels, all pairs written out and laid over each other by running sums, training in FP32; the loss is read."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def _strokes(pixels: Tensor, at: Tensor, spread: Tensor, angle: Tensor, cover: Tensor) -> Tensor:
    """How much of each stroke is seen at each pixel: (pixels, strokes)."""
    away = pixels[:, None, :] - at[None, :, :]
    c, n = torch.cos(angle), torch.sin(angle)
    along = (away[..., 0] * c + away[..., 1] * n) / torch.exp(spread[:, 0])
    across = (away[..., 1] * c - away[..., 0] * n) / torch.exp(spread[:, 1])
    opaque = (torch.sigmoid(cover) * torch.exp(-0.5 * (along**2 + across**2))).clamp(max=0.99)
    clear = torch.log1p(-opaque)
    return opaque * torch.exp(torch.cumsum(clear, 1) - clear)


def splat_painting(s: Setup, *, compiled: bool = False, autocast: bool = False, log: bool = True) -> Step:
    side, count = s.size(256, 8), s.size(1024, 12)
    line = torch.linspace(0, 1, side, device=s.device)
    pixels = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
    picture = torch.rand(side * side, 3, device=s.device)
    at, spread = nn.Parameter(torch.rand(count, 2, device=s.device)), nn.Parameter(torch.full((count, 2), -3.5, device=s.device))
    angle, cover = nn.Parameter(torch.rand(count, device=s.device) * math.pi), nn.Parameter(torch.full((count,), -1.0, device=s.device))
    colour = nn.Parameter(torch.randn(count, 3, device=s.device))
    groups = [(at, 2e-4), (spread, 5e-3), (angle, 1e-2), (cover, 5e-2), (colour, 2.5e-2)]
    optimizer = torch.optim.Adam([{"params": [param], "lr": rate} for param, rate in groups], eps=1e-15)
    strokes = s.compile(_strokes) if compiled else _strokes
    losses: list[float] = []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            painted = strokes(pixels, at, spread, angle, cover) @ torch.sigmoid(colour)
        difference = painted.float() - picture
        loss = 0.8 * difference.abs().mean() + 0.2 * (difference**2).mean()
        loss.backward()
        optimizer.step()
        if log:
            losses.append(loss.item())
        return loss.detach()

    return step


PROGRAM = written(
    "splat_painting",
    "1024 soft strokes over 256 x 256 pixels, all pairs written out and laid over each other by running sums, training in FP32; the loss is read.",
    "torch.compile of the strokes; bf16 autocast; the loss not read",
    splat_painting,
    {"unfused-elementwise": {"compiled": True}, "precision": {"autocast": True}, "sync-stall": {"log": False}},
    gpu_bound=True,
)
