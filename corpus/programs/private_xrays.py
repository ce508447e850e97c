"""DP-SGD by vmap(grad) on 256 X-rays, FP32 with TF32: clipping and noise written out over each picture's gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def _clipped(grads: list[Tensor], limit: float, noise: float) -> list[Tensor]:
    """What all pictures together are allowed to say."""
    norms = torch.stack([each.flatten(1).norm(dim=1) for each in grads]).norm(dim=0)
    weight = (limit / (norms + 1e-6)).clamp(max=1.0)
    together = []
    for each in grads:
        total = (each * weight.view(-1, *[1] * (each.dim() - 1))).sum(0)
        together.append((total + noise * limit * torch.randn_like(total)) / len(weight))
    return together


def private_xrays(s: Setup, *, autocast: bool = False, compiled: bool = False) -> Step:
    """DP-SGD by torch.func, without a library for it."""
    count, side, width = s.size(256, 3), s.size(64, 16), s.size(32, 4)
    model = nn.Sequential(
        nn.Conv2d(1, width, 5, 2, 2), nn.GroupNorm(4, width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * width * (side // 8) ** 2, 4 * width), nn.ReLU(), nn.Linear(4 * width, 14),
    ).to(s.device)  # fmt: skip
    params = {name: param.detach() for name, param in model.named_parameters()}
    velocity = {name: torch.zeros_like(param) for name, param in params.items()}
    pictures, found = torch.randn(count, 1, side, side, device=s.device), torch.rand(count, 14, device=s.device).round()
    clipped = s.compile(_clipped) if compiled else _clipped

    def loss_of_one(params: dict[str, Tensor], picture: Tensor, found: Tensor) -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast, cache_enabled=False):
            logits = functional_call(model, params, (picture[None],))
        return F.binary_cross_entropy_with_logits(logits.float(), found[None])

    grads_of_each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        grads = grads_of_each(params, pictures, found)
        for (name, param), slope in zip(params.items(), clipped(list(grads.values()), 1.0, 0.8), strict=True):
            velocity[name].mul_(0.9).add_(slope)
            param.sub_(0.05 * velocity[name])

    return step


PROGRAM = written(
    "private_xrays",
    "DP-SGD by vmap(grad) on 256 X-rays, FP32 with TF32: clipping and noise written out over each picture's gradients.",
    "bf16 autocast of the network; torch.compile of clipping and noise",
    private_xrays,
    {"precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}},
    gpu_bound=True,
)
