"""memory-layout"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        half = outer // 2
        self.body = nn.Sequential(
            nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half), nn.ReLU(), nn.Conv2d(half, outer, 1),
        )  # fmt: skip
        self.short = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.body(x)


class Hourglass(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.beside, self.before, self.after = (Bottleneck(width, width) for _ in range(3))
        self.inside = Hourglass(width, depth - 1) if depth > 1 else Bottleneck(width, width)

    def forward(self, x: Tensor) -> Tensor:
        below = self.after(self.inside(self.before(F.max_pool2d(x, 2))))
        return self.beside(x) + F.interpolate(below, scale_factor=2.0)


def pose_hourglass(s: Setup, *, last: bool = False, log: bool = True, fused: bool = False) -> Step:
    width, side, joints = s.size(256, 8), s.size(256, 32), s.size(16, 3)
    layout = torch.channels_last if last else torch.contiguous_format
    model = nn.Sequential(
        nn.Conv2d(3, width // 4, 7, 2, 3), nn.BatchNorm2d(width // 4), nn.ReLU(), Bottleneck(width // 4, width // 2), nn.MaxPool2d(2),
        Bottleneck(width // 2, width), Hourglass(width, s.size(3, 1)), Bottleneck(width, width), nn.Conv2d(width, joints, 1),
    ).to(s.device, memory_format=layout)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused)
    pictures = torch.rand(s.size(64, 2), 3, side, side, device=s.device).to(memory_format=layout)
    maps = torch.rand(len(pictures), joints, side // 4, side // 4, device=s.device)
    history: list[tuple[float, float]] = []

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            heat = model(pictures)
        loss = F.mse_loss(heat.float(), maps)
        loss.backward()
        optimizer.step()
        if log:
            hits = (heat.flatten(2).argmax(2) == maps.flatten(2).argmax(2)).float().mean()
            history.append((loss.item(), hits.item()))

    return step


PROGRAM = written_pair(
    "pose_hourglass",
    "memory-layout",
    "Training of an hourglass in bf16 autocast on 64 pictures, NCHW; loss and hits are read in each step.",
    "channels_last",
    pose_hourglass,
    {"last": True},
    alone={"sync-stall": {"log": False}, "optimizer-foreach": {"fused": True}},
    gpu_bound=True,
)
