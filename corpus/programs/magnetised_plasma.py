"""Four moments of 3,000,000 electrons in 512 x 512 cells, FP64; waves come anew from NumPy, columns are copied, energies read."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workloads.base import Setup, Step, capture, written


def corners(x: Tensor, y: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """The four nearest knots of each particle, and how much each counts: (4, particles)."""
    left, low = torch.floor(x), torch.floor(y)
    right_part, high_part = x - left, y - low
    left_part, low_part = 1.0 - right_part, 1.0 - high_part
    column, row = left.long() % cells, low.long() % cells
    next_column, next_row = (column + 1) % cells, (row + 1) % cells
    index = torch.stack([row * cells + column, row * cells + next_column, next_row * cells + column, next_row * cells + next_column])
    weight = torch.stack([low_part * left_part, low_part * right_part, high_part * left_part, high_part * right_part])
    return index, weight


def density(x: Tensor, y: Tensor, cells: int, each: float) -> Tensor:
    index, weight = corners(x, y, cells)
    grid = torch.zeros(cells * cells, dtype=x.dtype, device=x.device)
    return (each * grid.scatter_add(0, index.flatten(), weight.flatten())).view(cells, cells)


def pushed(x: Tensor, y: Tensor, u: Tensor, v: Tensor, east: Tensor, north: Tensor, pace: float, turning: float) -> tuple[Tensor, Tensor]:
    """Boris' push: half of the field, a turn about the magnetic field, the other half."""
    cells = east.shape[0]
    index, weight = corners(x, y, cells)
    along, across = (east.flatten()[index] * weight).sum(0), (north.flatten()[index] * weight).sum(0)
    half_u, half_v = u - 0.5 * pace * along, v - 0.5 * pace * across
    tangent = 0.5 * pace * turning
    sine = 2.0 * tangent / (1.0 + tangent * tangent)
    middle_u, middle_v = half_u + tangent * half_v, half_v - tangent * half_u
    turned_u, turned_v = half_u + sine * middle_v, half_v - sine * middle_u
    new_u, new_v = turned_u - 0.5 * pace * along, turned_v - 0.5 * pace * across
    place = torch.stack([torch.remainder(x + pace * new_u, cells), torch.remainder(y + pace * new_v, cells)], dim=1)
    return place, torch.stack([new_u, new_v], dim=1)


def waves_of(cells: int) -> tuple[NDArray[np.float64], ...]:
    """Poisson's equation in Fourier space, with smoothed particles, and the numbers of the waves."""
    ky, kx = 2.0 * np.pi * np.fft.fftfreq(cells), 2.0 * np.pi * np.fft.rfftfreq(cells)
    square = ky[:, None] ** 2 + kx[None, :] ** 2
    square[0, 0] = 1.0
    green = np.exp(-square) / square
    green[0, 0] = 0.0
    return green, kx[None, :].copy(), ky[:, None].copy()


def magnetised_plasma(
    s: Setup,
    *,
    single: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    read: bool = True,
    kept: bool = False,
    strided: bool = False,
) -> Step:
    """Four moments of three million electrons in 512 x 512 cells, in doubles as NumPy drew them; the energies are logged at each."""
    particles, cells, moments = s.size(3_000_000, 200), s.size(512, 8), s.size(4, 2)
    number = np.float32 if single else np.float64
    rng = np.random.default_rng(322)
    where, speeds = rng.uniform(0.0, cells, (particles, 2)), 0.3 * rng.standard_normal((particles, 2))
    speeds[:, 0] += np.where(np.arange(particles) % 2 == 0, 1.0, -1.0)
    place, speed = (torch.from_numpy(array.astype(number)).to(s.device) for array in (where, speeds))
    tables = tuple(torch.from_numpy(table.astype(number)).to(s.device) for table in waves_of(cells))
    energies = torch.zeros(moments, 2, dtype=place.dtype, device=s.device)
    each, pace, turning = cells * cells / particles, 0.1, 0.5
    spread = s.compile(density, dynamic=False) if compiled else density
    push = s.compile(pushed, dynamic=False) if compiled else pushed
    log: list[tuple[float, float]] = []

    def columns(pair: Tensor) -> tuple[Tensor, Tensor]:
        first, second = pair[:, 0], pair[:, 1]
        return (first, second) if strided else (first.contiguous(), second.contiguous())

    def note(kinetic: float, field: float) -> None:
        if math.isnan(kinetic):
            raise FloatingPointError("the plasma has blown up")
        log.append((kinetic, field))
        del log[:-1000]

    def run(inside: bool) -> None:
        green, kx, ky = tables
        for moment in range(moments):
            (x, y), (u, v) = columns(place), columns(speed)
            charge = torch.fft.rfft2(spread(x, y, cells, each) - 1.0)
            potential = -green * charge
            east = torch.fft.irfft2(-1j * kx * potential, s=(cells, cells))
            north = torch.fft.irfft2(-1j * ky * potential, s=(cells, cells))
            new_place, new_speed = push(x, y, u, v, east, north, pace, turning)
            place.copy_(new_place)
            speed.copy_(new_speed)
            energies[moment, 0] = 0.5 * each * (new_speed**2).sum()
            energies[moment, 1] = 0.5 * (east**2 + north**2).sum()
            if inside:
                note(energies[moment, 0].item(), energies[moment, 1].item())

    with torch.no_grad():
        work = capture(lambda: run(False), s) if graphed else lambda: run(read)

    @torch.no_grad()
    def step() -> Tensor:
        if not kept:
            for table, array in zip(tables, waves_of(cells), strict=True):
                table.copy_(torch.from_numpy(array.astype(number)))
        work()
        if graphed and read:
            for kinetic, field in energies.tolist():
                note(kinetic, field)
        return energies

    return step


PROGRAM = written(
    "magnetised_plasma",
    "Four moments of 3,000,000 electrons in 512 x 512 cells, FP64; waves come anew from NumPy, columns are copied, energies read.",
    "FP32; torch.compile of density and push; CUDA graph of the moments; energies stay on the GPU; waves made once; columns as views",
    magnetised_plasma,
    {
        "precision": {"single": True},
        "unfused-elementwise": {"compiled": True},
        "graph-candidate": {"graphed": True},
        "sync-stall": {"read": False},
        "memcpy": {"kept": True},
        "memory-layout": {"strided": True},
    },
    gpu_bound=True,
)
