"""unfused-norm"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def channel_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return gain[:, None, None] * ((x - mean) / torch.sqrt(variance + 1e-6)) + shift[:, None, None]


def library_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), gain.shape, gain, shift, 1e-6).permute(0, 3, 1, 2).contiguous()


class SimpleBlock(nn.Module):
    """NAFNet's block: gates in the place of activations."""

    def __init__(self, width: int, norm: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.gains, self.shifts = norm, nn.Parameter(torch.ones(2, width)), nn.Parameter(torch.zeros(2, width))
        self.expand, self.mix = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.attend, self.project = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.up, self.down = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.mix(self.expand(self.norm(x, self.gains[0], self.shifts[0]))).chunk(2, 1)
        y = a * b
        x = x + self.project(y * self.attend(y.mean((2, 3), keepdim=True)))
        a, b = self.up(self.norm(x, self.gains[1], self.shifts[1])).chunk(2, 1)
        return x + self.down(a * b)


def denoise_photos(s: Setup, *, norm: str = "own", last: bool = False) -> Step:
    width, side = s.size(48, 4), s.size(256, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    how = {"own": channel_norm, "library": library_norm, "compiled": s.compile(channel_norm) if norm == "compiled" else channel_norm}[norm]
    blocks = [SimpleBlock(width, how) for _ in range(s.size(8, 1))]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 3, 3, padding=1))
    model = model.to(s.device, BF16, memory_format=layout).eval()
    photos = torch.rand(s.size(8, 1), 3, side, side, device=s.device, dtype=BF16).to(memory_format=layout)

    @torch.no_grad()
    def step() -> Tensor:
        return photos + model(photos)

    return step


PROGRAM = written_pair(
    "denoise_photos",
    "unfused-norm",
    "Blocks of NAFNet in bf16 on eight photos, whose norm over channels is written out.",
    "torch.compile of the norm",
    denoise_photos,
    {"norm": "compiled"},
    alone={"unfused-norm/library": {"norm": "library"}, "memory-layout": {"last": True}},
    gpu_bound=True,
)
