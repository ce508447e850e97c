"""PyTorch's example dcgan on 64 pictures of 64, FP32: five numbers are read in each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import How, _casting, _images, _precision, _public


def _generator(dim: int) -> nn.Module:
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 8 * dim, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * dim), nn.ReLU(True)]
    for wide in (8, 4, 2):
        layers += [nn.ConvTranspose2d(wide * dim, wide * dim // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(wide * dim // 2), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(dim, 3, 4, 2, 1, bias=False), nn.Tanh())


def _critic(dim: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, dim, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for wide in (1, 2, 4):
        layers += [nn.Conv2d(wide * dim, 2 * wide * dim, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * wide * dim), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(8 * dim, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def dcgan(s: Setup, *, read: bool = True, adam: bool | None = None, **how: Any) -> Step:
    """PyTorch's example dcgan on 64 faces; five numbers are read for the line that is printed."""
    way, dim, count = How(**how), s.size(64, 8), s.size(64, 2)
    nets = [_generator(dim).to(s.device), _critic(dim).to(s.device)]
    if way.channels_last:
        nets = [net.to(memory_format=torch.channels_last) for net in nets]
    makes, judges = nets
    adams = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=adam) for net in nets]
    faces = 2 * _images(s, way, 64, 64, 64)[:count] - 1
    line: list[float] = []

    def judged(images: Tensor, label: float) -> tuple[Tensor, Tensor]:
        with _casting(s, way):
            out = judges(images)
            return F.binary_cross_entropy_with_logits(out, torch.full((count,), label, dtype=out.dtype, device=s.device)), out.mean()

    def step() -> None:
        _precision(way)
        judges.zero_grad()
        real, mean = judged(faces, 1.0)
        real.backward()
        said = [mean.item()] if read else []
        with _casting(s, way):
            fake = makes(torch.randn(count, 100, 1, 1, device=s.device))
        fooled, mean = judged(fake.detach(), 0.0)
        fooled.backward()
        said += [mean.item()] if read else []
        adams[1].step()
        makes.zero_grad()
        error, mean = judged(fake, 1.0)
        error.backward()
        said += [mean.item()] if read else []
        adams[0].step()
        line[:] = [*said, (real + fooled).item(), error.item()] if read else said

    return step


PROGRAM = _public(
    "dcgan_faces",
    "PyTorch's example dcgan on 64 pictures of 64, FP32: five numbers are read in each step.",
    dcgan,
    {},
    {"sync-stall": {"read": False}, "optimizer-foreach": {"adam": True}, "memory-layout": {"channels_last": True}},
)
