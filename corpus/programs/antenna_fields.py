"""Six moments of Maxwell's equations in 256 x 256 x 256 cells; matter is FP16, probes are read, empty_cache."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written


def magnetic(electric: Tensor, field: Tensor, pull: float) -> None:
    x, y, z = electric.unbind(0)
    field[0, :, :-1, :-1] -= pull * ((z[:, 1:, :-1] - z[:, :-1, :-1]) - (y[:, :-1, 1:] - y[:, :-1, :-1]))
    field[1, :-1, :, :-1] -= pull * ((x[:-1, :, 1:] - x[:-1, :, :-1]) - (z[1:, :, :-1] - z[:-1, :, :-1]))
    field[2, :-1, :-1, :] -= pull * ((y[1:, :-1, :] - y[:-1, :-1, :]) - (x[:-1, 1:, :] - x[:-1, :-1, :]))


def electrified(field: Tensor, electric: Tensor, matter: Tensor, loss: Tensor, edge: Tensor, pull: float) -> None:
    x, y, z = field.unbind(0)
    push = pull / matter[1:, 1:, 1:]
    keeps = 1.0 - loss[1:, 1:, 1:]
    inner = electric[:, 1:, 1:, 1:]
    one, two = (z[1:, 1:, 1:] - z[1:, :-1, 1:]) - (y[1:, 1:, 1:] - y[1:, 1:, :-1]), (x[1:, 1:, 1:] - x[1:, 1:, :-1])
    two = two - (z[1:, 1:, 1:] - z[:-1, 1:, 1:])
    three = (y[1:, 1:, 1:] - y[:-1, 1:, 1:]) - (x[1:, 1:, 1:] - x[1:, :-1, 1:])
    for n, curl in enumerate((one, two, three)):
        inner[n].mul_(keeps).add_(push * curl)
    electric.mul_(edge[:, None, None]).mul_(edge[:, None]).mul_(edge)


def antenna_fields(s: Setup, *, compiled: bool = False, kept: bool = False, read: bool = True, whole: bool = False, graphed: bool = False) -> Step:
    """Six moments; matter is kept in FP16, probes are read in each moment, and memory is given back after each step."""
    side, moments, pull = s.size(256, 12), s.size(6, 2), 0.45
    with s.device:
        electric, field = torch.zeros(3, side, side, side), torch.zeros(3, side, side, side)
        matter, loss = 1.0 + 3.0 * (torch.rand(side, side, side) > 0.9).half(), (0.01 * torch.rand(side, side, side)).half()
        away = torch.arange(side).sub(0.5 * (side - 1)).abs()
        edge = torch.exp(-0.02 * (away - 0.4 * side).clamp(min=0.0))
        spots = torch.randint(side, (3, 16))
        ticks, seen = torch.zeros(()), torch.zeros(moments, 16)
    if kept:
        matter, loss = matter.float(), loss.float()
    turn_field = s.compile(magnetic, dynamic=False) if compiled else magnetic
    turn_electric = s.compile(electrified, dynamic=False) if compiled else electrified
    middle, log = side // 2, [[0.0] * 16 for _ in range(moments)]
    asked = read and not graphed

    @torch.no_grad()
    def advance() -> None:
        for moment in range(moments):
            turn_field(electric, field, pull)
            turn_electric(field, electric, matter if kept else matter.float(), loss if kept else loss.float(), edge, pull)
            ticks.add_(1.0)
            electric[2, middle, middle, middle] += torch.sin(0.2 * ticks)
            probes = electric[2, spots[0], spots[1], spots[2]]
            if asked:
                log[moment] = probes.tolist()
            else:
                seen[moment].copy_(probes)

    work = capture(advance, s) if graphed else advance

    def step() -> Tensor:
        work()
        if graphed and read:
            log[:] = seen.tolist()
        if not whole and s.cuda:
            torch.cuda.empty_cache()
        return electric

    return step


PROGRAM = written(
    "antenna_fields",
    "Six moments of Maxwell's equations in 256 x 256 x 256 cells; matter is FP16, probes are read, empty_cache.",
    "torch.compile of both halves; matter in FP32; probes are kept; no empty_cache; the moments as a CUDA graph",
    antenna_fields,
    {
        "unfused-elementwise": {"compiled": True},
        "dtype-casts": {"kept": True},
        "sync-stall": {"read": False},
        "allocator": {"whole": True},
        "graph-candidate": {"graphed": True},
    },
    gpu_bound=True,
)
