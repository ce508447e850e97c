"""precision"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def centred(transform: Callable[..., Tensor], x: Tensor) -> Tensor:
    return torch.fft.fftshift(transform(torch.fft.ifftshift(x, (-2, -1)), norm="ortho"), (-2, -1))


def to_coils(image: Tensor, coils: Tensor) -> Tensor:
    return coils * image[:, None]


def from_coils(each: Tensor, coils: Tensor) -> Tensor:
    return (coils.conj() * each).sum(1)


class Denoiser(nn.Module):
    def __init__(self, dim: int, last: bool) -> None:
        super().__init__()
        self.last = last
        layers: list[nn.Module] = []
        for inner, outer in pairwise((2, dim, dim, dim)):
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.InstanceNorm2d(outer), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers, nn.Conv2d(dim, 2, 1))

    def forward(self, image: Tensor) -> Tensor:
        x = torch.view_as_real(image).permute(0, 3, 1, 2)
        y = self.net(x if self.last else x.contiguous()).float()
        return torch.view_as_complex(y.permute(0, 2, 3, 1).contiguous())


def unrolled_mri(s: Setup, *, autocast: bool = False, last: bool = False, compiled: bool = False) -> Step:
    slices, coils, side, dim = s.size(4, 1), s.size(16, 2), s.size(320, 16), s.size(64, 4)
    nets = nn.ModuleList(Denoiser(dim, last) for _ in range(s.size(5, 2))).to(s.device, memory_format=torch.channels_last if last else None)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(nets.parameters(), lr=3e-4)
    maps = torch.randn(slices, coils, side, side, dtype=torch.complex64, device=s.device)
    maps = maps / maps.abs().square().sum(1, keepdim=True).sqrt()
    true = torch.randn(slices, side, side, dtype=torch.complex64, device=s.device)
    lines = (torch.arange(side, device=s.device) % 4 == 0).float()
    spread, joined = (s.compile(to_coils), s.compile(from_coils)) if compiled else (to_coils, from_coils)
    with torch.no_grad():
        measured = lines * centred(torch.fft.fft2, to_coils(true, maps))
        first = from_coils(centred(torch.fft.ifft2, measured), maps)

    def step() -> None:
        optimizer.zero_grad()
        image = first
        for net in nets:
            missed = lines * centred(torch.fft.fft2, spread(image, maps)) - measured
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                cleaned = net(image)
            image = image - joined(centred(torch.fft.ifft2, missed), maps) - cleaned
        (image - true).abs().mean().backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "unrolled_mri",
    "precision",
    "Training of five unrolled rounds that rebuild slices from 16 coils: FFTs, complex products, and small FP32 networks.",
    "bf16 autocast of the networks",
    unrolled_mri,
    {"autocast": True},
    alone={"memory-layout": {"last": True}, "unfused-elementwise": {"compiled": True}},
    gpu_bound=True,
)
