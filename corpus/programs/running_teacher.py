"""optimizer-foreach"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


def _encoder(dim: int, heads: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.LayerNorm(dim), nn.Linear(dim, 4 * dim))


def running_teacher(s: Setup, *, foreach: bool = False) -> Step:
    dim = s.size(384, 16)
    student, teacher = (_encoder(dim, s.size(6, 2), s.size(12, 1)).to(s.device) for _ in range(2))
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)
    views = [torch.randn(s.size(16, 2), s.size(196, 4), dim, device=s.device) for _ in range(2)]

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            with torch.no_grad():
                target = F.softmax(teacher(views[0]).mean(1).float() / 0.04, -1)
            loss = -(target * F.log_softmax(student(views[1]).mean(1).float() / 0.1, -1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.004)
            else:
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.data.mul_(0.996).add_(fast.data, alpha=0.004)

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "running_teacher",
    "optimizer-foreach",
    "Self-distillation of a small ViT; the teacher follows the student parameter by parameter.",
    "torch._foreach_lerp_",
    running_teacher,
    partial(running_teacher, foreach=True),
    top=("optimizer-foreach", "launch-gap", "graph-candidate", "host-bound"),
    fixed_quiet=False,
)
