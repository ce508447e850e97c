"""Cracks that branch in a plate of glass: bond-based peridynamics with explicit time steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step, advised


@dataclass(frozen=True)
class Glass:
    """Soda-lime glass in plane stress, SI units."""

    young: float = 72e9
    density: float = 2440.0
    energy: float = 135.0  # J / m2, what a new surface costs

    @property
    def poisson(self) -> float:
        return 1 / 3  # the only one that bonds in two dimensions allow


class Plate:
    """Points on a jittered grid, their neighbours within the horizon (padded lists), and the state of each bond."""

    def __init__(self, nx: int, ny: int, dx: float, glass: Glass, device: torch.device, m: float = 3.015, seed: int = 0) -> None:
        self.dx, self.horizon, self.glass = dx, m * dx, glass
        rng = np.random.default_rng(seed)
        ix, iy = np.meshgrid(np.arange(nx), np.arange(ny), indexing="ij")
        x = np.stack([ix.ravel(), iy.ravel()], axis=1) * dx
        x = x + rng.uniform(-0.02, 0.02, x.shape) * dx
        reach = math.ceil(m)
        offsets = [(a, b) for a in range(-reach, reach + 1) for b in range(-reach, reach + 1) if 0 < a * a + b * b <= m * m]
        neighbours, there = [], []
        for a, b in offsets:
            jx, jy = ix + a, iy + b
            inside = (jx >= 0) & (jx < nx) & (jy >= 0) & (jy < ny)
            neighbours.append(np.where(inside, jx * ny + jy, ix * ny + iy).ravel())
            there.append(inside.ravel())

        self.x = torch.tensor(x, dtype=torch.float32, device=device)
        self.neighbours = torch.tensor(np.stack(neighbours, axis=1), device=device)  # [N, K]
        self.exists = torch.tensor(np.stack(there, axis=1), device=device)
        self.alive = self.exists.clone()
        self.u = torch.zeros_like(self.x)
        self.v = torch.zeros_like(self.x)
        self.a = torch.zeros_like(self.x)

        self.xi = self.x[self.neighbours] - self.x[:, None, :]
        self.length = self.xi.norm(dim=-1).clamp(min=1e-9)
        # Points whose cell is only partly within the horizon count in part (Hu, Ha and Bobaru).
        self.volume = dx * dx * ((self.horizon + 0.5 * dx - self.length) / dx).clamp(0, 1)
        self.constant = 9 * glass.young / (math.pi * self.horizon**3)
        self.critical = math.sqrt(4 * math.pi * glass.energy / (9 * glass.young * self.horizon))
        self.surface = self.surface_correction()

    def surface_correction(self) -> Tensor:
        """Bonds of points near an edge are made stiffer: they have fewer of them."""
        volume = (self.volume * self.exists).sum(dim=1)
        whole = math.pi * self.horizon**2
        return 2 * whole / (volume[:, None] + volume[self.neighbours])

    def notch(self, x_end: float, y_at: float) -> None:
        """Cuts every bond that crosses the line from the left edge to (x_end, y_at)."""
        here, other = self.x[:, None, :], self.x[self.neighbours]
        crosses = (here[..., 1] - y_at) * (other[..., 1] - y_at) < 0
        t = (y_at - here[..., 1]) / (other[..., 1] - here[..., 1]).where(crosses, torch.ones_like(crosses, dtype=torch.float32))
        at = here[..., 0] + t * (other[..., 0] - here[..., 0])
        self.alive &= ~(crosses & (at < x_end))

    def stable_dt(self, safety: float = 0.6) -> float:
        wave = math.sqrt(self.glass.young / (self.glass.density * (1 - self.glass.poisson**2)))
        return safety * self.dx / wave

    def force_density(self) -> Tensor:
        """Force per volume of each point; bonds that are stretched too far break for good."""
        eta = self.u[self.neighbours] - self.u[:, None, :]
        y = self.xi + eta
        stretched = torch.sqrt((y**2).sum(dim=-1)).clamp(min=1e-12)
        stretch = (stretched - self.length) / self.length
        self.alive = self.alive & (stretch < self.critical)
        magnitude = self.constant * stretch * self.surface * self.volume * self.alive
        direction = y / stretched[..., None]
        return (magnitude[..., None] * direction).sum(dim=1)

    def damage(self) -> Tensor:
        """Share of a point's bonds that are gone."""
        kept = (self.volume * self.alive).sum(dim=1)
        whole = (self.volume * self.exists).sum(dim=1)
        return 1 - kept / whole

    def strain_energy(self) -> Tensor:
        y = self.xi + self.u[self.neighbours] - self.u[:, None, :]
        stretch = y.norm(dim=-1) / self.length - 1
        per_point = 0.25 * self.constant * stretch**2 * self.length * self.volume * self.surface * self.alive
        return per_point.sum() * self.dx**2


class Pull:
    """Traction on the upper and the lower edge, raised within a few microseconds, as a body force on three rows."""

    def __init__(self, plate: Plate, traction: float, rise: float, rows: int = 3) -> None:
        top, bottom = plate.x[:, 1].max(), plate.x[:, 1].min()
        edge = rows * plate.dx - 0.5 * plate.dx
        self.sign = (plate.x[:, 1] > top - edge).float() - (plate.x[:, 1] < bottom + edge).float()
        self.density = traction / (rows * plate.dx)
        self.rise = rise

    def __call__(self, time: float) -> Tensor:
        ramp = min(time / self.rise, 1.0)
        force = torch.zeros(self.sign.shape[0], 2, device=self.sign.device)
        force[:, 1] = self.sign * self.density * ramp
        return force


def sponge(plate: Plate, width: float, strength: float) -> Tensor:
    """Damping that grows towards the left and right edges, so that waves don't come back from there."""
    left, right = plate.x[:, 0].min(), plate.x[:, 0].max()
    near = torch.minimum(plate.x[:, 0] - left, right - plate.x[:, 0])
    return strength * ((width - near) / width).clamp(0, 1) ** 2


def windscreen_cracks(s: Setup, *, fused: bool = False, late: bool = False) -> Step:
    """A pre-notched plate of 100 mm x 40 mm (Bobaru and Zhang's test) under sudden tension."""
    nx, ny = s.size(1000, 40), s.size(400, 16)
    dx = 0.1 / nx
    glass = Glass()
    plate = Plate(nx, ny, dx, glass, s.device)
    plate.notch(0.05, 0.02 + 0.013 * dx)
    pull = Pull(plate, traction=14e6, rise=2e-6)
    dt = plate.stable_dt()
    inner = s.size(10, 2)
    damping = sponge(plate, width=0.01, strength=2e5)
    clock = {"time": 0.0, "steps": 0}

    def verlet(pulled: Tensor) -> None:
        plate.v = plate.v + 0.5 * dt * plate.a
        plate.u = plate.u + dt * plate.v
        force = plate.force_density() + pulled
        plate.a = force / glass.density - damping[:, None] * plate.v
        plate.v = plate.v + 0.5 * dt * plate.a

    damage_now, strain_energy = plate.damage, plate.strain_energy
    if fused:
        verlet, damage_now, strain_energy = s.compile(verlet), s.compile(damage_now), s.compile(strain_energy)

    def advance() -> None:
        """Velocity Verlet."""
        verlet(pull(clock["time"]))
        clock["time"] += dt
        clock["steps"] += 1

    @torch.no_grad()
    def step() -> dict[str, float | Tensor]:
        for _ in range(inner):
            advance()
        damage = damage_now()
        cracked = damage > 0.35
        kinetic = 0.5 * glass.density * (plate.v**2).sum() * dx**2
        if late:  # left on the GPU: to be read every so many steps
            tip = torch.where(cracked, plate.x[:, 0], -torch.inf).max()
            return {
                "time": clock["time"],
                "tip": torch.where(cracked.any(), tip, 0.0),
                "broken": (plate.exists & ~plate.alive).sum() / 2,
                "kinetic": kinetic,
                "strain": strain_energy(),
            }
        ahead = plate.x[:, 0][cracked]
        tip = ahead.max().item() if len(ahead) else 0.0
        return {
            "time": clock["time"],
            "tip": tip,
            "broken": (plate.exists & ~plate.alive).sum().item() / 2,
            "kinetic": kinetic.item(),
            "strain": strain_energy().item(),
        }

    return step


PROGRAM = advised(
    "windscreen_cracks",
    "Ten time steps of bond-based peridynamics: 400,000 points of glass with 28 neighbours each, FP32; crack tip and energies are read.",
    windscreen_cracks,
    {"unfused-elementwise": {"fused": True}, "sync-stall": {"late": True}},
)
