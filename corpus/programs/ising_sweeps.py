"""graph-candidate"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written_pair


def flip(spins: Tensor, noise: Tensor, turn: Tensor, beta: float) -> Tensor:
    """`spins` may be int8: they are made floats for the energy, and put back."""
    s = spins.float()
    around = torch.roll(s, 1, 0) + torch.roll(s, -1, 0) + torch.roll(s, 1, 1) + torch.roll(s, -1, 1)
    chance = torch.exp(-2.0 * beta * s * around)
    return torch.where(turn & (noise < chance), -s, s).to(spins.dtype)


def ising_sweeps(s: Setup, *, graphed: bool = False, compiled: bool = False, floats: bool = False) -> Step:
    side, sweeps = s.size(512, 8), s.size(40, 2)
    spins = (torch.rand(side, side, device=s.device) < 0.5).to(torch.float32 if floats else torch.int8) * 2 - 1
    even = (torch.arange(side, device=s.device)[:, None] + torch.arange(side, device=s.device)) % 2 == 0
    turns, one = (even, ~even), s.compile(flip) if compiled else flip

    @torch.no_grad()
    def step() -> Tensor:
        now = spins
        for _ in range(sweeps):
            for turn in turns:
                now = one(now, torch.rand(side, side, device=s.device), turn, 0.44)
        spins.copy_(now)
        return now.float().mean()

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "ising_sweeps",
    "graph-candidate",
    "Forty sweeps of Metropolis over 512 x 512 spins, which are int8 and made floats for each half.",
    "the step as a CUDA graph",
    ising_sweeps,
    {"graphed": True},
    alone={"unfused-elementwise": {"compiled": True}, "dtype-casts": {"floats": True}},
    top=("launch-gap", "graph-candidate"),
)
