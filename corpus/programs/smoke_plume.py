"""Smoke in 512 x 512 cells: advection, swirl, eighty sweeps of Jacobi by pointwise kernels; the fastest flow is read first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, capture, written


def neighbours(p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Above, below, left and right; walls repeat what is next to them."""
    p = F.pad(p, (1, 1, 1, 1), mode="replicate")
    return p[..., :-2, 1:-1], p[..., 2:, 1:-1], p[..., 1:-1, :-2], p[..., 1:-1, 2:]


def sweeps(p: Tensor, source: Tensor, count: int) -> Tensor:
    for _ in range(count):
        up, down, left, right = neighbours(p)
        p = (up + down + left + right - source) / 4.0
    return p


def carried(what: Tensor, flow: Tensor, time: Tensor, grid: Tensor) -> Tensor:
    """What was upstream a moment ago."""
    back = grid - time * flow.permute(0, 2, 3, 1) * (2.0 / flow.shape[-1])
    return F.grid_sample(what, back, mode="bilinear", padding_mode="border", align_corners=False)


def smoke_plume(s: Setup, *, graphed: bool = False, compiled: bool = False, asked: bool = True) -> Step:
    """A moment is as long as the fastest smoke allows."""
    side, rounds, each = s.size(512, 16), s.size(10, 2), s.size(8, 2)
    with s.device:
        flow, smoke, time = torch.zeros(1, 2, side, side), torch.zeros(1, 1, side, side), torch.zeros(())
        line = (torch.arange(side) + 0.5) * (2.0 / side) - 1.0
        down, right = torch.meshgrid(line, line, indexing="ij")
        grid = torch.stack([right, down], -1)[None]
        inlet = ((right.square() + (down - 0.8).square()) < 0.01).float()[None, None]
    relax = s.compile(sweeps) if compiled else sweeps

    def moment() -> None:
        moved = 0.995 * carried(flow, flow, time, grid)
        new = torch.maximum(0.998 * carried(smoke, flow, time, grid), inlet)
        lift = torch.cat([torch.zeros_like(new), -0.5 * new], 1)
        moved = moved + time * lift
        up, below, left, beyond = neighbours(moved)
        spin = 0.5 * ((beyond - left)[:, 1:] - (below - up)[:, :1])
        up, below, left, beyond = neighbours(spin.abs())
        slope = torch.cat([beyond - left, below - up], 1)
        slope = slope / (slope.square().sum(1, keepdim=True).sqrt() + 1e-5)
        moved = moved + 0.1 * time * spin * torch.cat([slope[:, 1:], -slope[:, :1]], 1)
        up, below, left, beyond = neighbours(moved)
        source = 0.5 * ((beyond - left)[:, :1] + (below - up)[:, 1:])
        pressure = torch.zeros_like(source)
        for _ in range(rounds):
            pressure = relax(pressure, source, each)
        up, below, left, beyond = neighbours(pressure)
        flow.copy_((moved - 0.5 * torch.cat([beyond - left, below - up], 1)).clamp(-20.0, 20.0))
        smoke.copy_(new)

    go = capture(moment, s) if graphed else moment

    @torch.no_grad()
    def step() -> Tensor:
        if asked:
            time.fill_(min(1.0, 2.0 / (flow.abs().max().item() + 1e-6)))
        else:
            time.copy_((2.0 / (flow.abs().max() + 1e-6)).clamp(max=1.0))
        go()
        return smoke

    return step


PROGRAM = written(
    "smoke_plume",
    "Smoke in 512 x 512 cells: advection, swirl, eighty sweeps of Jacobi by pointwise kernels; the fastest flow is read first.",
    "a moment as a CUDA graph; torch.compile of eight sweeps; the fastest flow stays on the GPU",
    smoke_plume,
    {"graph-candidate": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}},
)
