"""Programs that compile in every step."""

from __future__ import annotations

from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Make, Setup, Step, Workload


def _limits() -> None:
    # The loops run longer than the eight recompilations after which Dynamo gives up.
    torch._dynamo.config.recompile_limit = 1 << 16
    torch._dynamo.config.accumulated_recompile_limit = 1 << 16


def _pooling(dynamic: bool) -> Make:
    """Masked attention pooling over sequences that are one token longer each time."""

    def make(s: Setup) -> Step:
        _limits()
        dim = s.size(512, 16)
        query = torch.randn(dim, device=s.device)

        def pool(x: Tensor) -> Tensor:
            weights = torch.softmax((x * query).sum(-1) / dim**0.5, -1)
            return F.silu((weights[..., None] * x).sum(1))

        compiled = s.compile(pool, dynamic=dynamic)
        lengths = count(s.size(128, 4))
        whole = torch.randn(s.size(16, 2), s.size(4096, 512), dim, device=s.device)

        @torch.no_grad()
        def step() -> Tensor:
            return compiled(whole[:, : next(lengths) % whole.shape[1] + 2])

        return step

    return make


def _schedule(tensor: bool) -> Make:
    """A compiled loss with a weight that follows the step: as a Python number it is compiled anew each time."""

    def make(s: Setup) -> Step:
        _limits()
        x = torch.randn(s.size(2048, 8), s.size(1024, 8), device=s.device)
        target = torch.randn_like(x)

        def loss(x: Tensor, target: Tensor, step: int | Tensor) -> Tensor:
            warm = step / (step + 100) if tensor else step / (step + 100.0)
            return (F.smooth_l1_loss(x, target, reduction="none") * warm).mean() + 0.01 * x.square().mean()

        compiled = s.compile(loss, dynamic=False)
        steps = count(1)
        on_device = torch.zeros((), device=s.device)

        @torch.no_grad()
        def step() -> Tensor:
            if tensor:
                return compiled(x, target, on_device.add_(1))
            return compiled(x, target, next(steps))

        return step

    return make


WORKLOADS = (
    Workload(
        name="growing_lengths", rule="recompilation", main=True, make_slow=_pooling(False), make_fixed=_pooling(True),
        what="torch.compile(dynamic=False) meets a sequence that is one token longer in each step.",
        fix="dynamic=True",
    ),
    Workload(
        name="python_counter", rule="recompilation", make_slow=_schedule(False), make_fixed=_schedule(True),
        what="A compiled loss takes the step number as a Python int, and is compiled for each value.",
        fix="the step number as a tensor",
    ),
)  # fmt: skip
