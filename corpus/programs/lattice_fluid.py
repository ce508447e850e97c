"""unfused-elementwise"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written_pair

VELOCITIES = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
OPPOSITE = (0, 3, 4, 1, 2, 7, 8, 5, 6)


def collide(f: Tensor, weights: Tensor, ex: Tensor, ey: Tensor) -> Tensor:
    rho = f.sum(0)
    ux, uy = (f * ex).sum(0) / rho, (f * ey).sum(0) / rho
    along = 3.0 * (ex * ux + ey * uy)
    rest = weights * rho * (1.0 + along + 0.5 * along**2 - 1.5 * (ux**2 + uy**2))
    return f - 1.7 * (f - rest)


def lattice_fluid(s: Setup, *, compiled: bool = False, graphed: bool = False) -> Step:
    high, wide, moments = s.size(1024, 8), s.size(2048, 12), s.size(12, 2)
    ex, ey = (torch.tensor([v[axis] for v in VELOCITIES], dtype=torch.float32, device=s.device)[:, None, None] for axis in (0, 1))
    weights = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, device=s.device)[:, None, None]
    back = torch.tensor(OPPOSITE, device=s.device)
    start = weights * (1.0 + 0.01 * torch.rand(high, wide, device=s.device))
    y, x = torch.meshgrid(torch.arange(high, device=s.device), torch.arange(wide, device=s.device), indexing="ij")
    solid = (y - high // 2) ** 2 + (x - wide // 4) ** 2 < (high // 8) ** 2
    meet = s.compile(collide) if compiled else collide

    @torch.no_grad()
    def step() -> Tensor:
        f = start
        for _ in range(moments):
            f = torch.stack([torch.roll(f[i], (vy, vx), (0, 1)) for i, (vx, vy) in enumerate(VELOCITIES)])
            bounced = f[back]
            f = torch.where(solid, bounced, meet(f, weights, ex, ey))
        return f

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "lattice_fluid",
    "unfused-elementwise",
    "Twelve moments of a fluid by the lattice Boltzmann method on 1024 x 2048 cells around a pillar.",
    "torch.compile of the collision",
    lattice_fluid,
    {"compiled": True},
    alone={"graph-candidate": {"graphed": True}},
    gpu_bound=True,
)
