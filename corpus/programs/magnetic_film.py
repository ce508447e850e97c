"""Three moments of a magnetic film of 2048 x 2048, by chains and FFTs in FP32; constants are FP64, each step's film is fetched, its speed read."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, capture, written


def _cross(a: Tensor, b: Tensor) -> Tensor:
    ax, ay, az = a
    bx, by, bz = b
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx])


def _stray(waves: Tensor, shape: Tensor) -> Tensor:
    """The film's own field, wave by wave; in and out of its plane are apart."""
    shape = shape.float()[..., None]
    x, y, z = waves
    return -torch.stack([shape[0] * x + shape[1] * y, shape[1] * x + shape[2] * y, shape[3] * z])


def _turning(m: Tensor, stray: Tensor, axes: Tensor, hardness: Tensor, applied: Tensor, heat: Tensor) -> Tensor:
    """Neighbours pull each other along, each grain has an axis that it likes; then all turn around the field and towards it."""
    axes, hardness = axes.float(), hardness.float()
    pull = -4.0 * m
    for dim in (1, 2):
        for way in (-1, 1):
            pull = pull + torch.roll(m, way, dim)
    liked = hardness * (m * axes).sum(0) * axes
    field = 0.4 * pull + liked + 0.8 * stray + applied[:, None, None] + 0.02 * heat
    around = _cross(m, field)
    return -(around + 0.1 * _cross(m, around))


def magnetic_film(s: Setup, *, compiled: bool = False, once: bool = False, ahead: bool = False, checked: bool = True, graphed: bool = False) -> Step:
    """Moments by Runge and Kutta's rule; constants were worked out in FP64, and a film that turns too fast is an error."""
    side, moments, dt = s.size(2048, 16), s.size(3, 2), 0.05
    kx = 2.0 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64, device=s.device)[:, None]
    ky = 2.0 * math.pi * torch.fft.rfftfreq(side, dtype=torch.float64, device=s.device)
    k2 = (kx * kx + ky * ky).clamp(min=1e-12)
    thick = 4.0 * k2.sqrt()
    out = -torch.expm1(-thick) / thick
    shape = torch.stack([kx * kx / k2 * (1.0 - out), kx * ky / k2 * (1.0 - out), ky * ky / k2 * (1.0 - out), out])

    def grains(parts: int) -> Tensor:
        few = torch.randn(1, parts, side // 8, side // 8, dtype=torch.float64, device=s.device)
        return F.interpolate(few, size=(side, side), mode="nearest")[0]

    axes, hardness = F.normalize(grains(3), dim=0), 0.5 + 0.1 * grains(1)[0]
    if once:
        shape, axes, hardness = shape.float(), axes.float(), hardness.float()
    applied = torch.tensor([0.0, 0.3, -0.9], device=s.device)
    m = F.normalize(torch.randn(3, side, side, device=s.device) + torch.tensor([0.0, 0.0, 5.0], device=s.device)[:, None, None], dim=0)
    fastest = torch.zeros((), device=s.device)
    of_waves = s.compile(_stray) if compiled else _stray
    turning = s.compile(_turning) if compiled else _turning

    def slope(now: Tensor, heat: Tensor) -> Tensor:
        waves = torch.view_as_real(torch.fft.rfft2(now))
        stray = torch.fft.irfft2(torch.view_as_complex(of_waves(waves, shape)), s=(side, side))
        return turning(now, stray, axes, hardness, applied, heat)

    @torch.no_grad()
    def advance() -> None:
        now = m
        for _ in range(moments):
            heat = torch.randn_like(now)
            one = slope(now, heat)
            two = slope(now + 0.5 * dt * one, heat)
            three = slope(now + 0.5 * dt * two, heat)
            four = slope(now + dt * three, heat)
            moved = now + dt / 6.0 * (one + 2.0 * two + 2.0 * three + four)
            now = moved / moved.norm(dim=0, keepdim=True)
            fastest.copy_(one.abs().max())
        m.copy_(now)

    go: Callable[[], object] = capture(advance, s) if graphed else advance
    pictures = [s.pin(torch.zeros(3, side, side)) if ahead else torch.zeros(0) for _ in range(4)]
    beside = torch.cuda.Stream() if ahead and s.cuda else None
    turn = [0]

    def step() -> Tensor:
        go()
        if checked and fastest.item() > 1e3:
            raise RuntimeError("the moments are too long")
        turn[0] += 1
        if not ahead:
            pictures[turn[0] % 4] = m.cpu()
        elif beside is None:
            pictures[turn[0] % 4].copy_(m)
        else:
            shot = m.clone()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                pictures[turn[0] % 4].copy_(shot, non_blocking=True)
            shot.record_stream(beside)
        return m

    return step


PROGRAM = written(
    "magnetic_film",
    "Three moments of a magnetic film of 2048 x 2048, by chains and FFTs in FP32; constants are FP64, each step's film is fetched, its speed read.",
    "torch.compile of both chains; constants made FP32 once; pinned pictures on a side stream; the speed is not read; moments as a CUDA graph",
    magnetic_film,
    {
        "unfused-elementwise": {"compiled": True},
        "dtype-casts": {"once": True},
        "memcpy": {"ahead": True},
        "sync-stall": {"checked": False},
        "graph-candidate": {"graphed": True},
    },
    gpu_bound=True,
)
