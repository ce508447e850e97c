"""unfused-elementwise"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


def wide_feed(s: Setup, *, compiled: bool = False) -> Step:
    dim = s.size(6144, 16)
    model = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim)).to(s.device, BF16)
    run = s.compile(model) if compiled else model
    x = torch.randn(s.size(16384, 4), dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return run(x)

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "wide_feed",
    "unfused-elementwise",
    "A feed-forward layer of 6144 x 24576 in bf16: one GELU between two large products.",
    "none: torch.compile gains nothing",
    wide_feed,
    partial(wide_feed, compiled=True),
    trap=True,
    gpu_bound=True,
)
