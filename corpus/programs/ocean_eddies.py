"""Ten steps of four oceans of two layers, FP32, whole FFTs; a pace that is read, host winds, a spectrum by masks."""

from __future__ import annotations

import math
from itertools import count as counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written


class Ocean:
    """An ensemble of two layers in a periodic box, and what drives them."""

    def __init__(self, side: int, half: bool, s: Setup, compiled: bool) -> None:
        self.side, self.half = side, half
        with s.device:
            k = torch.fft.fftfreq(side, 1.0 / side)
            wide = torch.fft.rfftfreq(side, 1.0 / side) if half else k
            ky, kx = torch.meshgrid(k, wide, indexing="ij")
            square = kx.square() + ky.square()
            self.square, self.ix, self.iy = square, 1j * kx, 1j * ky
            self.drag = 0.1 * square
            whole = torch.where(square > 0, square * (square + 50.0), 1.0)
            self.own = torch.where(square > 0, -(square + 25.0) / whole, 0.0)
            self.cross = torch.where(square > 0, -25.0 / whole, 0.0)
            cut = square.sqrt() / (side / 3.0)
            self.filter = torch.where(cut < 0.65, 1.0, torch.exp(-23.6 * (cut - 0.65).clamp(min=0.0) ** 4 / 0.35**4)) * (cut < 1.0)
            self.bins = (square.sqrt() / 4.0).round().long().clamp(max=side // 8)
            twice = torch.where((kx > 0) & (kx < side // 2), 2.0, 1.0) if half else torch.ones_like(kx)
            self.share = twice / side**4
            self.shear = torch.tensor([0.5, -0.5])[:, None, None]
            self.slope = torch.tensor([10.0 + 25.0, 10.0 - 25.0])[:, None, None]
            self.bottom = torch.tensor([0.0, 1.0])[:, None, None]
            self.top = torch.tensor([1.0, 0.0])[:, None, None]
        fuse = s.compile if compiled else lambda f, **_: f
        self.flux, self.paced = fuse(self._flux, dynamic=False), fuse(self._paced, dynamic=False)
        self.streams, self.change = fuse(self._streams, dynamic=False), fuse(self._change, dynamic=False)

    def there(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(x) if self.half else torch.fft.fft2(x)

    def back(self, x: Tensor) -> Tensor:
        return torch.fft.irfft2(x, s=(self.side, self.side)) if self.half else torch.fft.ifft2(x).real

    def _streams(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two = q[:, 0], q[:, 1]
        psi = torch.stack([self.own * one + self.cross * two, self.cross * one + self.own * two], 1)
        return psi, -self.iy * psi, self.ix * psi

    def _flux(self, u: Tensor, v: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return (u + self.shear) * q, v * q

    def _change(self, along: Tensor, across: Tensor, psi: Tensor, wind: Tensor) -> Tensor:
        change = -self.ix * along - self.iy * across - self.slope * (self.ix * psi)
        return (change + self.bottom * (self.drag * psi) + self.top * wind) * self.filter

    def _paced(self, u: Tensor, v: Tensor) -> Tensor:
        return torch.maximum((u + self.shear).abs().amax(), v.abs().amax())

    def tendency(self, q: Tensor, wind: Tensor) -> Tensor:
        psi, u, v = self.streams(q)
        along, across = self.flux(self.back(u), self.back(v), self.back(q))
        return self.change(self.there(along), self.there(across), psi, wind)

    def fastest(self, q: Tensor) -> Tensor:
        _, u, v = self.streams(q)
        return self.paced(self.back(u), self.back(v))

    def advanced(self, q: Tensor, pace: float | Tensor, wind: Tensor) -> Tensor:
        """One step of Runge and Kutta's method."""
        wind = self.there(wind)
        one = self.tendency(q, wind)
        two = self.tendency(q + 0.5 * pace * one, wind)
        three = self.tendency(q + 0.5 * pace * two, wind)
        four = self.tendency(q + pace * three, wind)
        return self.filter * (q + pace / 6.0 * (one + 2.0 * two + 2.0 * three + four))

    def energy(self, q: Tensor) -> Tensor:
        psi = self.streams(q)[0]
        return 0.5 * (self.square * self.share * psi.abs().square()).mean(0).sum(0)


def ocean_eddies(
    s: Setup,
    *,
    members: int = 4,
    asked: bool = True,
    kept: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    half: bool = False,
) -> Step:
    """Ten steps of an ensemble in FP32 with whole FFTs, a pace that is read and a wind from the host; then a spectrum by masks."""
    count, side, steps = s.size(members, min(members, 3)), s.size(256, 16), s.size(10, 2)
    ocean, rng = Ocean(side, half, s, compiled), np.random.default_rng(5)
    winds: list[Any] = [0.1 * rng.standard_normal((side, side), dtype=np.float32) for _ in range(24)]
    if kept:
        winds = list(torch.from_numpy(np.stack(winds)).to(s.device))
    start = 4.0 * torch.from_numpy(rng.standard_normal((1, 2, side, side), dtype=np.float32)) + 0.01 * torch.randn(count, 2, side, side)
    q = ocean.there(start.to(s.device)) * torch.exp(-ocean.square / 200.0) * ocean.filter
    pace, gust, turn = torch.zeros((), device=s.device), torch.zeros(side, side, device=s.device), counter()

    def inner() -> None:
        q.copy_(ocean.advanced(q, pace, gust))

    before = q.clone()
    replay = capture(inner, s) if graphed else None
    q.copy_(before)
    limit, gap = 0.005, 0.5 * 2.0 * math.pi / side

    def spectrum() -> list[float]:
        energy = ocean.energy(q)
        if asked:
            return [energy[ocean.bins == k].sum().item() for k in range(side // 8)]
        total = energy.new_zeros(side // 8 + 1).index_add_(0, ocean.bins.flatten(), energy.flatten())
        return total[:-1].tolist()

    @torch.no_grad()
    def step() -> list[float]:
        for _ in range(steps):
            wind = winds[next(turn) % len(winds)]
            wind = wind if kept else torch.from_numpy(wind).to(s.device)
            speed = ocean.fastest(q)
            now: float | Tensor = min(limit, gap / max(speed.item(), 1e-6)) if asked else (gap / speed.clamp(min=1e-6)).clamp(max=limit)
            if replay:
                pace.fill_(now)
                gust.copy_(wind)
                replay()
            else:
                q.copy_(ocean.advanced(q, now, wind))
        return spectrum()

    return step


PROGRAM = written(
    "ocean_eddies",
    "Ten steps of four oceans of two layers, FP32, whole FFTs; a pace that is read, host winds, a spectrum by masks.",
    "one read at the end; winds on the GPU; torch.compile; a step as a CUDA graph; 12 oceans; FFTs of real numbers",
    ocean_eddies,
    {
        "sync-stall": {"asked": False},
        "memcpy": {"kept": True},
        "unfused-elementwise": {"compiled": True},
        "graph-candidate": {"graphed": True},
        "launch-gap": {"members": 12},
        "other/rfft": {"half": True},
    },
    shared={"launch-gap": 3.0},
)
