"""A one-dimensional U-Net that takes noise from 16 moves of 256 hands, training with TF32; a running mean of weights, tensor by tensor."""

from __future__ import annotations

import copy
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Moves(nn.Module):
    """Two convolutions over time; what the robot sees scales and shifts what lies between."""

    def __init__(self, inner: int, outer: int, seen: int, groups: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv1d(inner, outer, 5, padding=2), nn.GroupNorm(groups, outer), nn.Mish())
        self.two = nn.Sequential(nn.Conv1d(outer, outer, 5, padding=2), nn.GroupNorm(groups, outer), nn.Mish())
        self.film = nn.Sequential(nn.Mish(), nn.Linear(seen, 2 * outer))
        self.past = nn.Conv1d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        scale, shift = self.film(seen)[..., None].chunk(2, 1)
        return self.two(scale * self.one(x) + shift) + self.past(x)


class Policy(nn.Module):
    def __init__(self, moves: int, sight: int, widths: tuple[int, ...], time: int, groups: int) -> None:
        super().__init__()
        self.time = time
        self.when = nn.Sequential(nn.Linear(time, 4 * time), nn.Mish(), nn.Linear(4 * time, time))
        block = partial(Moves, seen=time + sight, groups=groups)
        pairs = list(zip((moves, *widths[:-1]), widths, strict=True))
        self.down = nn.ModuleList(block(start, outer) for inner, outer in pairs for start in (inner, outer))
        self.shorter = nn.ModuleList(nn.Conv1d(width, width, 3, 2, 1) for width in widths[:-1])
        self.middle = nn.ModuleList(block(widths[-1], widths[-1]) for _ in range(2))
        self.up = nn.ModuleList(block(start, inner) for inner, outer in reversed(pairs[1:]) for start in (2 * outer, inner))
        self.longer = nn.ModuleList(nn.ConvTranspose1d(width, width, 4, 2, 1) for width in reversed(widths[:-1]))
        self.last = nn.Sequential(nn.Conv1d(widths[0], widths[0], 5, padding=2), nn.GroupNorm(groups, widths[0]), nn.Mish(), nn.Conv1d(widths[0], moves, 1))

    def forward(self, x: Tensor, turn: Tensor, sight: Tensor) -> Tensor:
        rate = torch.exp(-math.log(10_000.0) * torch.arange(self.time // 2, device=x.device) / (self.time // 2 - 1))
        angle = turn[:, None] * rate
        seen = torch.cat([self.when(torch.cat([angle.sin(), angle.cos()], -1)), sight], -1)
        x, kept = x.transpose(1, 2), []
        for level in range(len(self.down) // 2):
            x = self.down[2 * level + 1](self.down[2 * level](x, seen), seen)
            kept.append(x)
            if level < len(self.shorter):
                x = self.shorter[level](x)
        for block in self.middle:
            x = block(x, seen)
        for level, longer in enumerate(self.longer):
            x = torch.cat([x, kept.pop()], 1)
            x = longer(self.up[2 * level + 1](self.up[2 * level](x, seen), seen))
        return self.last(x).transpose(1, 2)


def gripper_policy(s: Setup, *, foreach: bool = False, graphed: bool = False, autocast: bool = False) -> Step:
    """What people showed lies on the GPU; a running mean of all weights is what will move the robot."""
    count, moments, moves, sight, turns = s.size(256, 3), s.size(16, 8), s.size(10, 3), s.size(132, 5), s.size(100, 5)
    model = Policy(moves, sight, (256, 512, 1024) if not s.tiny else (8, 16), s.size(128, 4), s.size(8, 2)).to(s.device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6, capturable=graphed and s.cuda)
    angle = (torch.arange(turns + 1, device=s.device) / turns + 0.008) / 1.008 * math.pi / 2
    clean = (angle.cos() ** 2 / angle[0].cos() ** 2)[1:].clamp(min=1e-4)
    shown, sights = torch.randn(s.size(20_000, 10), moments, moves, device=s.device), torch.randn(s.size(20_000, 10), sight, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        these = torch.randint(len(shown), (count,), device=s.device)
        x, noise = shown[these], torch.randn(count, moments, moves, device=s.device)
        turn = torch.randint(turns, (count,), device=s.device)
        left = clean[turn][:, None, None]
        noisy = left.sqrt() * x + (1.0 - left).sqrt() * noise
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(noisy, turn, sights[these])
        loss = F.mse_loss(guess.float(), noise)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.005)
            else:
                for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(now, 0.005)
        return loss.detach()

    return capture(step, s) if graphed else step


PROGRAM = written(
    "gripper_policy",
    "A one-dimensional U-Net that takes noise from 16 moves of 256 hands, training with TF32; a running mean of weights, tensor by tensor.",
    "torch._foreach_lerp_; the step as a CUDA graph; bf16 autocast",
    gripper_policy,
    {"optimizer-foreach": {"foreach": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True}},
)
