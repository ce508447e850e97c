"""unfused-norm"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


class OwnGroupNorm(nn.Module):
    def __init__(self, groups: int, width: int, fused: bool) -> None:
        super().__init__()
        self.groups, self.fused = groups, fused
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.group_norm(x, self.groups, self.gain, self.shift, 1e-6)
        n, c, h, w = x.shape
        x = x.view(n, self.groups, c // self.groups, h, w)
        mean = x.mean(dim=(2, 3, 4), keepdim=True)
        var = x.var(dim=(2, 3, 4), keepdim=True, unbiased=False)
        x = (x - mean) / torch.sqrt(var + 1e-6)
        return x.view(n, c, h, w) * self.gain.view(1, c, 1, 1) + self.shift.view(1, c, 1, 1)


def image_decoder(s: Setup, *, fused: bool = False, compiled: bool = False) -> Step:
    width, side = s.size(256, 8), s.size(96, 8)
    layers: list[nn.Module] = []
    for _ in range(s.size(5, 1)):
        layers += [OwnGroupNorm(s.size(32, 2), width, fused), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)]
    model = nn.Sequential(*layers).to(s.device, BF16).eval()
    decode = s.compile(model) if compiled else model
    x = torch.randn(s.size(16, 1), width, side, side, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return decode(x)

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "own_group_norm",
    "unfused-norm",
    "Image decoder in bf16 whose GroupNorm is written out.",
    "F.group_norm",
    image_decoder,
    partial(image_decoder, fused=True),
    alone={"unfused-elementwise": partial(image_decoder, compiled=True)},
    gpu_bound=True,
    fixed_quiet=False,
)
