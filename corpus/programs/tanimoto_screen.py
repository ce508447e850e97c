"""unfused-elementwise"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step, written_pair


def _likeness(common: Tensor, asked: Tensor, known: Tensor) -> Tensor:
    union = asked[:, None] + known[None] - common
    likeness = common / union.clamp(min=1.0)
    likeness = torch.where(likeness < 0.05, torch.zeros_like(likeness), likeness)
    size = 1.0 - 0.1 * torch.abs(asked[:, None] - known[None]) / torch.maximum(asked[:, None], known[None])
    return likeness * size


def tanimoto_screen(s: Setup, *, compiled: bool = False, tf32: bool = False, ahead: bool = False) -> Step:
    bits, count, asked = s.size(1024, 32), s.size(200_000, 50), s.size(320, 3)
    library = (torch.rand(count, bits, device=s.device) < 0.08).float()
    known = library.sum(1)
    host = [((torch.rand(asked, bits) < 0.08).float(),) for _ in range(2)]
    prefetcher = Prefetcher([tuple(s.pin(part) for part in batch) for batch in host], s) if ahead else None
    likeness, turn = s.compile(_likeness) if compiled else _likeness, [0]

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        if prefetcher:
            (queries,) = prefetcher.next()
        else:
            turn[0] += 1
            queries = host[turn[0] % 2][0].to(s.device)
        values, order = likeness(queries @ library.T, queries.sum(1), known).max(1)
        return values.cpu(), order.cpu()

    return step


PROGRAM = written_pair(
    "tanimoto_screen",
    "unfused-elementwise",
    "320 fingerprints against 200,000, FP32 without TF32; the likeness is a chain over all pairs.",
    "torch.compile of the likeness",
    tanimoto_screen,
    {"compiled": True},
    alone={"precision/tf32": {"tf32": True}, "memcpy": {"ahead": True}},
    gpu_bound=True,
)
