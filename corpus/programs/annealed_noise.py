"""unfused-elementwise"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


class CountingNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        temperature = max(0.5, math.exp(-1e-4 * self.calls))
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
        soft = torch.sigmoid((logits + noise) / temperature)
        return (torch.abs(soft - target) ** 1.5 + 0.1 * soft * (1 - soft)).mean()


class TensorNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        temperature = torch.exp(-1e-4 * self.calls).clamp(min=0.5)
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
        soft = torch.sigmoid((logits + noise) / temperature)
        return (torch.abs(soft - target) ** 1.5 + 0.1 * soft * (1 - soft)).mean()


def annealed_noise(s: Setup, *, counted: bool = True) -> Step:
    torch._dynamo.config.recompile_limit = 8  # the default, which other workloads raise
    loss = s.compile((CountingNoise() if counted else TensorNoise()).to(s.device))
    logits = torch.randn(s.size(8192, 8), s.size(4096, 8), device=s.device)
    target = torch.rand_like(logits)

    @torch.no_grad()
    def step() -> Tensor:
        return loss(logits, target)

    return step


PROGRAM = _written(
    "annealed_noise",
    "unfused-elementwise",
    "A compiled loss that counts its calls in a Python int: after eight compilations it runs eagerly.",
    "count in a buffer",
    annealed_noise,
    partial(annealed_noise, counted=False),
    gpu_bound=True,
)
