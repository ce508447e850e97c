"""Four rounds of t-SNE over all pairs of 8192 cells in FP32, with torch.cuda.empty_cache() after each."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Setup, Step, written


def _pull(y: Tensor, p: Tensor, ones: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of each cell's place, and how far the map is from the data."""
    square = (y * y).sum(1)
    near = 1.0 / (1.0 + (square[:, None] - 2.0 * (y @ y.T) + square[None]).clamp(min=0.0))
    near = near * (1.0 - ones)
    q = (near / near.sum()).clamp(min=1e-12)
    pull = (p - q) * near
    slope = 4.0 * (pull.sum(1)[:, None] * y - pull @ y)
    return slope, (p * torch.log(p / q)).sum()


def cell_map(s: Setup, *, compiled: bool = False, empties: bool = True, tf32: bool = False) -> Step:
    """Four rounds; the notebook once ran out of memory, and has given it back after each round since."""
    cells, rounds = s.size(8192, 20), s.size(4, 2)
    p = torch.rand(cells, cells, device=s.device) ** 8
    p = ((p + p.T) / (2 * p.sum())).clamp(min=1e-12)
    y, same = torch.randn(cells, 2, device=s.device) * 1e-2, torch.eye(cells, device=s.device)
    velocity, gains = torch.zeros_like(y), torch.ones_like(y)
    pull, costs = s.compile(_pull) if compiled else _pull, torch.zeros(rounds, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for turn in range(rounds):
            slope, costs[turn] = pull(y, p, same)
            apart = (slope > 0) != (velocity > 0)
            gains.copy_(torch.where(apart, gains + 0.2, gains * 0.8).clamp(min=0.01))
            velocity.mul_(0.8).sub_(200.0 * gains * slope)
            y.add_(velocity)
            y.sub_(y.mean(0))
            if empties and s.cuda:
                torch.cuda.empty_cache()
        return costs

    return step


PROGRAM = written(
    "cell_map",
    "Four rounds of t-SNE over all pairs of 8192 cells in FP32, with torch.cuda.empty_cache() after each.",
    "torch.compile of a round's gradient; no empty_cache(); TF32 products",
    cell_map,
    {"unfused-elementwise": {"compiled": True}, "allocator": {"empties": False}, "precision/tf32": {"tf32": True}},
    gpu_bound=True,
)
