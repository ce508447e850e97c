"""A tick of 4096 arms of seven joints: three rounds of damped least squares by vmap(jacrev), FP32; each asks whether all have arrived."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from workloads.base import Setup, Step, written

LINKS = ((0.333, 0.0, 0.0), (0.0, 0.0, -1.0), (0.316, 0.0, 1.0), (0.0, 0.0825, 1.0), (0.384, -0.0825, -1.0), (0.0, 0.0, 1.0), (0.107, 0.088, 1.0))


def _links(device: torch.device) -> tuple[Tensor, Tensor]:
    """What stands still in each link, as Denavit and Hartenberg have it: where it leads, and how its axis is tilted."""
    places, tilts = [], []
    for length, aside, quarter in LINKS:
        c, n = math.cos(quarter * math.pi / 2), math.sin(quarter * math.pi / 2)
        places.append([aside, -length * n, length * c])
        tilts.append([[1.0, 0.0, 0.0], [0.0, c, -n], [0.0, n, c]])
    return torch.tensor(places, device=device), torch.tensor(tilts, device=device)


def _hand(angles: Tensor, places: Tensor, tilts: Tensor) -> tuple[Tensor, Tensor]:
    """Where a hand is and how it is turned, link by link."""
    turn, at = torch.eye(3, device=angles.device), torch.zeros(3, device=angles.device)
    zero, one = torch.zeros((), device=angles.device), torch.ones((), device=angles.device)
    for angle, place, tilt in zip(angles.unbind(-1), places, tilts, strict=True):
        c, n = torch.cos(angle), torch.sin(angle)
        at = at + turn @ place
        turn = turn @ tilt @ torch.stack([torch.stack([c, -n, zero]), torch.stack([n, c, zero]), torch.stack([zero, zero, one])])
    return at, turn


def _missing(angles: Tensor, place: Tensor, turn: Tensor, links: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """How far the hand is from where it should be: three lengths and three turns (twice, for jacrev's has_aux)."""
    at, turned = _hand(angles, *links)
    miss = torch.cat([place - at, torch.linalg.cross(turned, turn, dim=0).sum(1) / 2])
    return miss, miss


def _slopes(angles: Tensor, place: Tensor, turn: Tensor, links: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return vmap(jacrev(_missing, has_aux=True), in_dims=(0, 0, 0, None))(angles, place, turn, links)


def arm_reach(s: Setup, *, compiled: bool = False, asked: bool = True, tf32: bool = False) -> Step:
    """Damped least squares; each round asks whether all hands have arrived, and those out of reach never do."""
    count, rounds = s.size(4096, 4), s.size(3, 2)
    slopes, links = s.compile(_slopes, mode="reduce-overhead") if compiled else _slopes, _links(s.device)
    low, high = -2.6 * torch.ones(7, device=s.device), 2.6 * torch.ones(7, device=s.device)
    place, turn = vmap(_hand, in_dims=(0, None, None))((torch.rand(count, 7, device=s.device) - 0.5) * 4, *links)
    place = place * (1 + 0.5 * (torch.rand(count, 1, device=s.device) < 0.02))
    damp = 0.01 * torch.eye(6, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        angles = torch.zeros(count, 7, device=s.device) + 0.1
        for _ in range(rounds):
            jacobian, miss = slopes(angles, place, turn, links)
            if asked and miss.norm(dim=-1).max().item() < 1e-3:
                break
            square = jacobian @ jacobian.transpose(1, 2) + damp
            pushed = torch.linalg.solve(square, miss) if asked else torch.linalg.solve_ex(square, miss)[0]
            # A jacobian of what is missing points the other way.
            angles = torch.clamp(angles - (jacobian.transpose(1, 2) @ pushed[..., None])[..., 0], low, high)
        return angles

    return step


PROGRAM = written(
    "arm_reach",
    "A tick of 4096 arms of seven joints: three rounds of damped least squares by vmap(jacrev), FP32; each asks whether all have arrived.",
    "torch.compile(mode='reduce-overhead') of the jacobian; nobody asks, solve_ex; TF32 products",
    arm_reach,
    {"launch-gap": {"compiled": True}, "sync-stall": {"asked": False}, "precision/tf32": {"tf32": True}},
)
