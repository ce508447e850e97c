"""gemm-alignment"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


class GatedFeed(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def gated_width(s: Setup, *, multiple: int = 1) -> Step:
    dim = s.size(2048, 24)
    hidden = -(-(8 * dim // 3) // multiple) * multiple
    model = nn.Sequential(*(GatedFeed(dim, hidden) for _ in range(s.size(3, 1)))).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(s.size(8192, 4), dim, device=s.device, dtype=BF16)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "gated_width_5461",
    "gemm-alignment",
    "SwiGLU training in bf16 whose hidden width is 8/3 of 2048, 5461.",
    "a width of 5504",
    gated_width,
    partial(gated_width, multiple=128),
    gpu_bound=True,
)
