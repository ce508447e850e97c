"""Eight moments of a phase field in 1536 x 1536 cells, in doubles: torch.roll, chaos drawn by NumPy, each moment asked for NaN and read."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written


def across(x: Tensor) -> Tensor:
    return (torch.roll(x, -1, 1) - torch.roll(x, 1, 1)) / 0.06


def along(x: Tensor) -> Tensor:
    return (torch.roll(x, -1, 0) - torch.roll(x, 1, 0)) / 0.06


def laplacian(x: Tensor) -> Tensor:
    return (torch.roll(x, 1, 0) + torch.roll(x, -1, 0) + torch.roll(x, 1, 1) + torch.roll(x, -1, 1) - 4 * x) / 0.0009


def frozen(ice: Tensor, warmth: Tensor, chaos: Tensor) -> tuple[Tensor, Tensor]:
    """One moment: six arms, heat that freezing sets free, a little chaos at the edge."""
    px, py = across(ice), along(ice)
    angle = torch.atan2(py, px)
    depth = 0.01 * (1 + 0.04 * torch.cos(6 * (angle - 0.2)))
    slope = -0.01 * 0.04 * 6 * torch.sin(6 * (angle - 0.2))
    square = depth**2
    turned = along(depth * slope * px) - across(depth * slope * py)
    spread = square * laplacian(ice) + across(square) * px + along(square) * py
    pull = 0.9 / math.pi * torch.atan(10.0 * (1.0 - warmth))
    edge = ice * (1 - ice)
    grown = (turned + spread + edge * (ice - 0.5 + pull) + 0.01 * edge * (chaos - 0.5)) / 3e-4
    return ice + 1e-4 * grown, warmth + 1e-4 * (laplacian(warmth) + 1.8 * grown)


def frost_ferns(
    s: Setup,
    *,
    compiled: bool = False,
    graphed: bool = False,
    single: bool = False,
    asked: bool = True,
    made: bool = False,
    pinned: bool = False,
) -> Step:
    """Eight moments of frost in 1536 x 1536 cells, in doubles as NumPy made them: its chaos is drawn on the host, each moment is asked for NaN."""
    side, moments = s.size(1536, 24), s.size(8, 2)
    rng = np.random.default_rng(351)
    seeds = np.zeros((side, side))
    for row, column in rng.integers(2, side - 2, (s.size(40, 2), 2)):
        seeds[row - 2 : row + 3, column - 2 : column + 3] = 1.0
    dtype = torch.float32 if single else torch.float64
    ice = torch.from_numpy(seeds).to(s.device, dtype)
    warmth, chaos = torch.zeros_like(ice), torch.zeros_like(ice)
    shares = torch.zeros(moments, device=s.device, dtype=dtype)
    staged = s.pin(torch.zeros(side, side, dtype=dtype)) if pinned else torch.zeros(0)
    grow = s.compile(frozen, dynamic=False) if compiled else frozen
    within, told = asked and not graphed, [0.0]

    def frame() -> None:
        told.clear()
        for n in range(moments):
            new_ice, new_warmth = grow(ice, warmth, chaos)
            ice.copy_(new_ice)
            warmth.copy_(new_warmth)
            if within:
                if torch.isnan(ice).any():
                    raise ArithmeticError("the frost has burst")
                told.append(ice.mean().item())
            else:
                shares[n].copy_(ice.mean())

    with torch.no_grad():
        work = capture(frame, s) if graphed else frame

    @torch.no_grad()
    def step() -> tuple[list[float], Tensor]:
        if made:
            chaos.copy_(torch.rand(side, side, device=s.device, dtype=dtype))
        elif pinned:
            rng.random(out=staged.numpy(), dtype=np.float32 if single else np.float64)
            chaos.copy_(staged, non_blocking=True)
        else:
            chaos.copy_(torch.from_numpy(rng.random((side, side), dtype=np.float32 if single else np.float64)))
        work()
        picture = (ice.clamp(0, 1) * 255).to(torch.uint8).cpu()
        return (told if within else shares.tolist()), picture

    return step


def turned(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    odd = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cosine + odd * sine


PROGRAM = written(
    "frost_ferns",
    "Eight moments of a phase field in 1536 x 1536 cells, in doubles: torch.roll, chaos drawn by NumPy, each moment asked for NaN and read.",
    "torch.compile of a moment; FP32; CUDA graph of the eight; nothing asked between; chaos made on the GPU, or drawn into pinned memory",
    frost_ferns,
    {
        "unfused-elementwise": {"compiled": True},
        "precision": {"single": True},
        "graph-candidate": {"graphed": True},
        "sync-stall": {"asked": False},
        "memcpy": {"made": True},
        "memcpy/pinned": {"pinned": True},
    },
)
