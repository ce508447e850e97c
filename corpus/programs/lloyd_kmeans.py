"""unfused-elementwise"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Setup, Step, written_pair


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    squared = (x * x).sum(1, keepdim=True) - 2.0 * (x @ centres.T) + (centres * centres).sum(1)[None, :]
    distance = squared.clamp(min=0.0).sqrt()
    closest, at = distance.min(1)
    return closest.mean(), at


def lloyd(s: Setup, *, compiled: bool = False, tf32: bool = False, stops: bool = True) -> Step:
    dim, k = s.size(64, 4), s.size(512, 4)
    x = torch.randn(s.size(500_000, 64), dim, device=s.device)
    start, assign = x[:k].clone(), s.compile(nearest) if compiled else nearest

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        centres = start
        for _ in range(4):
            _, at = assign(x, centres)
            sums = torch.zeros_like(centres).index_add_(0, at, x)
            moved = sums / torch.bincount(at, minlength=k).clamp(min=1)[:, None]
            if stops and (moved - centres).norm().item() < 1e-6:
                break
            centres = moved
        torch.set_float32_matmul_precision("high")
        return centres

    return step


PROGRAM = written_pair(
    "lloyd_kmeans",
    "unfused-elementwise",
    "Four rounds of k-means: 500,000 rows to 512 centres in FP32 without TF32, with a test for the end in each.",
    "torch.compile of the assignment",
    lloyd,
    {"compiled": True},
    alone={"precision/tf32": {"tf32": True}, "sync-stall": {"stops": False}},
    gpu_bound=True,
)
