"""A program in its author's own code: molecular dynamics of salt water with a learned potential, by an author who comes from chemistry."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16
KB, FORCE = 8.617333e-5, 9.648533e-3  # eV / K; eV / (A amu) in A / fs^2
MASSES = (15.999, 1.008, 22.990, 35.453)
CUTOFF, WIDTH, FUNCTIONS = 6.0, 4.0, 16


def symmetry(pos: Tensor, box: Tensor, same: Tensor, shifts: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Radial functions after Behler and Parrinello, by the neighbour's element, and the repulsion of all pairs."""
    delta = pos[:, None] - pos[None]
    delta = delta - box * torch.round(delta / box)
    dist = torch.sqrt((delta**2).sum(-1) + same)
    smooth = 0.5 * (torch.cos(math.pi * dist / CUTOFF) + 1.0) * (dist < CUTOFF) * (1.0 - same)
    radial = torch.exp(-WIDTH * (dist[..., None] - shifts) ** 2) * smooth[..., None]
    repulsion = 0.5 * (200.0 * torch.exp(-dist / 0.28) * smooth).sum()
    return torch.einsum("ijk,je->iek", radial, kinds).flatten(1), repulsion


def brine_cluster(
    s: Setup,
    *,
    still: bool = False,
    read: bool = True,
    hoisted: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    tf32: bool = False,
) -> Step:
    """Ten steps of Langevin dynamics of 768 atoms, FP32: a network for each element, picked by masks; energies are read in each."""
    still, read, hoisted = still or graphed, read and not graphed, hoisted or graphed
    atoms, inner, substeps = s.size(768, 24), s.size(64, 8), s.size(10, 2)
    dt, friction, warm = 0.5, 0.01, 300.0
    side = math.ceil(atoms ** (1 / 3))
    length = side * 2.0
    with s.device:
        nets = nn.ModuleList(
            nn.Sequential(
                nn.Linear(FUNCTIONS * len(MASSES), inner), nn.Tanh(), nn.Linear(inner, inner), nn.Tanh(), nn.Linear(inner, 1),
            )
            for _ in MASSES
        ).requires_grad_(False)  # fmt: skip
        grid = torch.cartesian_prod(*[torch.arange(side)] * 3).float() * 2.0
        pos = grid[torch.randperm(len(grid))[:atoms]] + 0.1 * torch.randn(atoms, 3)
        species = torch.arange(atoms) % 20
        species = torch.where(species < 6, 0, torch.where(species < 18, 1, species - 16))
        mass = torch.tensor(MASSES)[species][:, None]
        vel = torch.randn(atoms, 3) * torch.sqrt(KB * warm * FORCE / mass)
        force, box, noted = torch.zeros(atoms, 3), torch.full((3,), length), torch.zeros(3)
    members = [torch.nonzero(species == kind)[:, 0] for kind in range(len(MASSES))]
    describe = s.compile(symmetry, dynamic=False) if compiled else symmetry
    keep = math.exp(-friction * dt)
    history: list[tuple[float, float]] = []
    turn = 0

    def constants() -> tuple[Tensor, Tensor, Tensor]:
        same = torch.eye(atoms).to(s.device)
        shifts = torch.linspace(0.8, 5.6, FUNCTIONS).to(s.device)
        return same, shifts, nn.functional.one_hot(species, len(MASSES)).float()

    kept = constants()

    def forces(where: Tensor) -> tuple[Tensor, Tensor]:
        where = where.detach().requires_grad_()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            described, energy = describe(where, box, *(kept if hoisted else constants()))
            for kind, net in enumerate(nets):
                mine = described[members[kind]] if still else described[species == kind]
                energy = energy + net(mine).float().sum()
        return energy.detach(), -torch.autograd.grad(energy, where)[0]

    def move() -> None:
        for _ in range(substeps):
            vel.add_(0.5 * dt * FORCE * force / mass)
            pos.add_(0.5 * dt * vel)
            noise = torch.randn_like(vel) * torch.sqrt((1.0 - keep**2) * KB * warm * FORCE / mass)
            vel.mul_(keep).add_(noise)
            pos.add_(0.5 * dt * vel)
            pos.remainder_(length)
            energy, new = forces(pos)
            force.copy_(new)
            vel.add_(0.5 * dt * FORCE * force / mass)
            kinetic = 0.5 * (mass * vel**2).sum() / FORCE
            temperature = 2.0 * kinetic / (3 * atoms * KB)
            if read:
                if torch.isnan(force).any():
                    raise RuntimeError("the simulation blew up")
                history.append((energy.item(), temperature.item()))
            else:
                noted.add_(torch.stack([energy, temperature, torch.isnan(force).any().float()]))

    def precise() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")

    precise()
    force.copy_(forces(pos)[1])
    work = capture(move, s) if graphed else move
    noted.zero_()

    def step() -> None:
        nonlocal turn
        precise()
        work()
        turn += 1
        if not read and turn % 50 == 0:
            energy, temperature, bad = (noted / (50 * substeps)).tolist()
            if bad:
                raise RuntimeError("the simulation blew up")
            history.append((energy, temperature))
            noted.zero_()
        del history[:-100]

    return step


WORKLOADS = (
    written(
        "brine_cluster",
        "Ten steps of dynamics of 768 atoms with a learned potential, FP32: elements picked by masks, constants built on the host, energies read.",
        "each element's atoms found once, and no reads; no reads; constants kept on the GPU; torch.compile of the symmetry functions; "
        "CUDA graph of the ten steps; bf16 autocast; TF32",
        brine_cluster,
        {
            "sync-stall": {"still": True, "read": False}, "sync-stall/read": {"read": False}, "memcpy": {"hoisted": True},
            "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True},
            "precision/tf32": {"tf32": True},
        },
    ),
)  # fmt: skip
