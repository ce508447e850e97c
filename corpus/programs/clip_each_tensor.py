"""sync-stall"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step, Workload


def clip_each(s: Setup, *, how: str = "if") -> Step:
    dim = s.size(1024, 16)
    layers: list[nn.Module] = []
    for _ in range(s.size(40, 2)):
        layers += [nn.Linear(dim, dim), nn.ReLU()]
    model = nn.Sequential(*layers).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    x = torch.randn(s.size(4096, 4), dim, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if how == "foreach":
            scales = torch._foreach_norm(grads)
            torch._foreach_add_(scales, 1e-6)
            torch._foreach_reciprocal_(scales)
            torch._foreach_clamp_max_(scales, 1.0)
            torch._foreach_mul_(grads, scales)
        for grad in grads if how != "foreach" else []:
            norm = grad.norm()
            if how == "clamp":
                grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            elif norm > 1.0:
                grad.mul_(1.0 / (norm + 1e-6))
        optimizer.step()

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "clip_each_tensor",
    "sync-stall",
    "Each of 80 gradients is clipped by its own norm: `if norm > 1` waits for the GPU.",
    "scale by a clamped factor, without `if`",
    clip_each,
    partial(clip_each, how="clamp"),
    with_stack=True,
    alone={"optimizer-foreach": partial(clip_each, how="foreach")},
    top=("sync-stall", "optimizer-foreach", "launch-gap"),
    fixed_quiet=False,
)
