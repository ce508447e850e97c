"""precision"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


def small_tabular(s: Setup, *, autocast: bool = False) -> Step:
    width = s.size(192, 16)
    layers: list[nn.Module] = [nn.Linear(40, width), nn.SELU()]
    for _ in range(s.size(10, 1)):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.SELU()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    rows, target = torch.randn(s.size(1024, 8), 40, device=s.device), torch.randn(s.size(1024, 8), 1, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.smooth_l1_loss(model(rows), target)
        loss.backward()
        optimizer.step()
        torch.set_float32_matmul_precision("high")

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "tabular_autocast",
    "precision",
    "Small tabular network in FP32 without TF32: launches are the bound, and autocast adds to them.",
    "none: bf16 autocast gains nothing",
    small_tabular,
    partial(small_tabular, autocast=True),
    trap=True,
    fixed_quiet=False,
)
