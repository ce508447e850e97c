"""small-grid"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, written_pair


def largest_fall(s: Setup, *, chunks: int = 1, single: bool = False, compiled: bool = False) -> Step:
    many = s.size(1 << 20, 64)
    returns = 1e-3 * torch.randn(s.size(4, 2), many, device=s.device, dtype=torch.float32 if single else torch.float64)
    chunks = s.size(chunks, min(chunks, 4))

    def fall(wealth: Tensor, peak: Tensor) -> Tensor:
        return (1.0 - torch.exp(wealth - peak)).amax(-1)

    measured = s.compile(fall) if compiled else fall

    def running(x: Tensor, scan: Callable[[Tensor], Tensor], join: Callable[[Tensor, Tensor], Tensor], none: float) -> Tensor:
        if chunks == 1:
            return scan(x)
        inside = scan(x.view(len(x), chunks, -1))
        before = F.pad(scan(inside[:, :, -1])[:, :-1], (1, 0), value=none)
        return join(inside, before[..., None]).view(len(x), -1)

    @torch.no_grad()
    def step() -> Tensor:
        wealth = running(returns, lambda x: x.cumsum(-1), torch.add, 0.0)
        peak = running(wealth, lambda x: x.cummax(-1).values, torch.maximum, -math.inf)
        return measured(wealth, peak)

    return step


PROGRAM = written_pair(
    "largest_fall",
    "small-grid",
    "Running sum and maximum of four paths of a million steps in FP64: a block for each path.",
    "scan 1024 pieces, then join them",
    largest_fall,
    {"chunks": 1024},
    alone={"precision": {"single": True}, "unfused-elementwise": {"compiled": True}},
    gpu_bound=True,
)
