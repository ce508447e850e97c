"""Optimizers that update one parameter after the other, and one whose update the GPU does not notice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Make, Setup, Step, Workload
from .models import Block


class Adapters(nn.Module):
    """A frozen encoder with many small trained adapters, as in parameter-efficient tuning."""

    def __init__(self, s: Setup) -> None:
        super().__init__()
        dim, rank = s.size(512, 32), s.size(16, 2)
        self.blocks = nn.ModuleList(Block(dim, s.size(8, 2)) for _ in range(s.size(24, 2)))
        self.down = nn.ModuleList(nn.Linear(dim, rank) for _ in self.blocks)
        self.up = nn.ModuleList(nn.Linear(rank, dim) for _ in self.blocks)
        self.scale = nn.ParameterList(torch.ones(dim) for _ in self.blocks)
        self.shift = nn.ParameterList(torch.zeros(dim) for _ in self.blocks)
        for parameter in self.blocks.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for block, down, up, scale, shift in zip(self.blocks, self.down, self.up, self.scale, self.shift, strict=True):
            x = block(x)
            x = torch.addcmul(shift, x + up(F.gelu(down(x))), scale)
        return x


def _adapters(fused: bool) -> Make:
    def make(s: Setup) -> Step:
        model = Adapters(s).to(s.device, torch.bfloat16)
        trained = [p for p in model.parameters() if p.requires_grad]
        kind = {"fused": True} if fused else {"foreach": False}
        optimizer = torch.optim.AdamW(trained, lr=1e-4, **kind)
        x = torch.randn(s.size(8, 2), s.size(128, 8), s.size(512, 32), device=s.device, dtype=torch.bfloat16)

        def step() -> None:
            optimizer.zero_grad()
            F.mse_loss(model(x), x).backward()
            optimizer.step()

        return step

    return make


class Momentum(torch.optim.Optimizer):
    """Somebody's own SGD with momentum and weight decay: a loop, or with `together` the same on lists."""

    def __init__(self, params: Iterable[Tensor], lr: float, together: bool) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9, "weight_decay": 1e-4})
        self.together = together

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            buffers = [self.state[p].setdefault("buffer", torch.zeros_like(p)) for p in params]
            grads = [p.grad for p in params]
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            if self.together:
                torch._foreach_add_(grads, params, alpha=decay)
                torch._foreach_mul_(buffers, momentum)
                torch._foreach_add_(buffers, grads)
                torch._foreach_add_(params, buffers, alpha=-lr)
            else:
                for p, grad, buffer in zip(params, grads, buffers, strict=True):
                    grad.add_(p, alpha=decay)
                    buffer.mul_(momentum).add_(grad)
                    p.add_(buffer, alpha=-lr)


class Narrow(nn.Module):
    """A deep residual network with many small layers."""

    def __init__(self, s: Setup) -> None:
        super().__init__()
        width = s.size(64, 4)
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, groups=1), nn.GroupNorm(4, width), nn.ReLU())
            for _ in range(s.size(16, 2))
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.mean((2, 3)))


def _own_sgd(together: bool) -> Make:
    def make(s: Setup) -> Step:
        model = Narrow(s).to(s.device, memory_format=torch.channels_last)
        optimizer = Momentum(model.parameters(), 0.1, together)
        images = torch.rand(s.size(16, 2), 3, s.size(32, 8), s.size(32, 8), device=s.device)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(10, (len(images),), device=s.device)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(s.device.type, torch.bfloat16):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

        return step

    return make


def _wide(fused: bool) -> Make:
    """Few large layers and a batch so large that the optimizer is a percent of the step, in a loop or not."""

    def make(s: Setup) -> Step:
        dim = s.size(2048, 32)
        with s.device:
            model = nn.Sequential(*(Block(dim, s.size(16, 2), causal=True) for _ in range(s.size(2, 1)))).to(torch.bfloat16)
        kind = {"fused": True} if fused else {"foreach": False}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)
        x = torch.randn(s.size(64, 2), s.size(1024, 8), dim, device=s.device, dtype=torch.bfloat16)
        compiled = s.compile(lambda x: F.mse_loss(model(x), x))

        def step() -> None:
            optimizer.zero_grad()
            compiled(x).backward()
            optimizer.step()

        return step

    return make


WORKLOADS = (
    Workload(
        name="adapter_tuning", rule="optimizer-foreach", main=True, in_columns=True, make_slow=_adapters(False), make_fixed=_adapters(True),
        what="Adapter tuning: AdamW with foreach=False over 144 small parameters.",
        fix="fused=True",
        top=("optimizer-foreach", "launch-gap", "graph-candidate"),
    ),
    Workload(
        name="own_momentum", rule="optimizer-foreach", make_slow=_own_sgd(False), make_fixed=_own_sgd(True),
        what="A hand-written SGD with momentum that loops over 68 parameters.",
        fix="the same update with torch._foreach_* ops",
        top=("optimizer-foreach", "launch-gap", "graph-candidate"),
    ),
    Workload(
        name="loop_behind_gpu", rule="optimizer-foreach", trap=True, make_slow=_wide(False), make_fixed=_wide(True),
        what="AdamW with foreach=False over 24 parameters, in a step that the GPU bounds.",
        fix="none worth making: fused=True gains about a percent",
        gpu_bound=True,
    ),
)  # fmt: skip
