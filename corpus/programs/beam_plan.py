"""Twenty rounds of projected gradients for 4000 beams through 120,000 voxels, FP32; what the plan costs is read in each."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def beam_plan(s: Setup, *, autocast: bool = False, kept: torch.dtype = torch.float32, asked: bool = True, plans: int = 1) -> Step:
    """Projected gradients with momentum; a plan is what one doctor weighs the organs by. It ends early once nothing changes."""
    voxels, beams, rounds = s.size(120_000, 60), s.size(4000, 12), s.size(20, 3)
    reach = torch.rand(voxels, beams, device=s.device) ** 4
    each: tuple[int, ...] = (plans,) if plans > 1 else ()
    across = (slice(None), *(None for _ in each))
    part = torch.randint(5, (voxels,), device=s.device)
    tumour, organs = (part == 0).float()[across], [(part == organ).float()[across] for organ in (1, 2, 3)]
    sizes = [mask.sum() for mask in (tumour, *organs)]
    bounds = torch.linspace(0.2, 0.6, 3, device=s.device)
    weights = torch.rand(3, *each, device=s.device) + 0.5
    strength = 1.0 / (beams * 0.2)
    reach = reach.to(kept)

    def through(matrix: Tensor, x: Tensor) -> Tensor:
        return (matrix @ x.to(kept)).float()

    def cost(dose: Tensor) -> tuple[Tensor, Tensor]:
        """What the plan costs, and its slope: the tumour has too little or too much, organs have too much, at worst or on the whole."""
        little, much = (1.0 - dose).clamp(min=0.0) * tumour, (dose - 1.07).clamp(min=0.0) * tumour
        total = (10.0 * little.square() + 5.0 * much.square()).sum(0) / sizes[0]
        slope = (10.0 * much - 20.0 * little) / sizes[0]
        for mask, size, bound, weight in zip(organs, sizes[1:], bounds, weights, strict=True):
            over = (dose - bound).clamp(min=0.0) * mask
            mean = (dose * mask).sum(0) / size
            total = total + weight * (over.square().sum(0) / size + 0.1 * mean.square())
            slope = slope + weight * (2.0 * over / size + 0.2 * mean * mask / size)
        return total, slope

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        now = torch.full((beams, *each), strength, device=s.device)
        ahead, before = now, math.inf
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for turn in range(rounds):
                total, slope = cost(through(reach, ahead))
                if asked:
                    value = total.sum().item()
                    if abs(before - value) < 1e-9 * abs(value):
                        break
                    before = value
                new = (ahead - 1e-2 * strength * through(reach.T, slope)).clamp(min=0.0)
                ahead, now = new + turn / (turn + 3.0) * (new - now), new
        return now

    return step


PROGRAM = written(
    "beam_plan",
    "Twenty rounds of projected gradients for 4000 beams through 120,000 voxels, FP32; what the plan costs is read in each.",
    "bf16 autocast; what beams reach in bf16; the cost is not read; eight plans together",
    beam_plan,
    {"precision": {"autocast": True}, "precision/stored": {"kept": BF16}, "sync-stall": {"asked": False}, "low-arithmetic-intensity": {"plans": 8}},
    shared={"low-arithmetic-intensity": 8.0},
    gpu_bound=True,
)
