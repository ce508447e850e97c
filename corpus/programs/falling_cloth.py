"""A frame of a cloth of 160 x 160 knots: eight moments, threads pulled colour by colour, and a question whether the ball is touched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written


def _threads(place: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both ends of threads that share no knot."""
    for start in (0, 1):
        across, down = place[:, start:], place[start:]
        many, rows = across.shape[1] // 2, down.shape[0] // 2
        yield across[:, 0 : 2 * many : 2], across[:, 1 : 2 * many : 2]
        yield down[0 : 2 * rows : 2], down[1 : 2 * rows : 2]


def falling_cloth(s: Setup, *, asked: bool = True, graphed: bool = False) -> Step:
    """One frame: eight moments, in each of which threads are pulled three times."""
    side, moments, pulls = s.size(160, 8), s.size(8, 2), s.size(3, 1)
    line = torch.linspace(-1, 1, side, device=s.device)
    flat = torch.stack([*torch.meshgrid(line, line, indexing="xy"), torch.ones(side, side, device=s.device)], -1)
    place, speed, rest, dt = flat.clone(), torch.zeros_like(flat), 2.0 / (side - 1), 1.0 / 480
    weight = torch.tensor([0.0, 0.0, -9.81], device=s.device)

    @torch.no_grad()
    def frame() -> None:
        for _ in range(moments):
            before = place.clone()
            speed.add_(weight * dt).mul_(0.999)
            place.add_(speed * dt)
            for _ in range(pulls):
                for one, other in _threads(place):
                    apart = other - one
                    length = apart.norm(dim=-1, keepdim=True)
                    back = 0.5 * (1.0 - rest / length.clamp(min=1e-6)) * apart
                    one.add_(back)
                    other.sub_(back)
            away = place.norm(dim=-1, keepdim=True)
            if not asked or bool((away < 1.0).any()):
                place.copy_(torch.where(away < 1.0, place / away.clamp(min=1e-6), place))
            torch.sub(place, before, out=speed)
            speed.div_(dt)

    run = capture(frame, s) if graphed else frame

    def step() -> np.ndarray:
        place.copy_(flat)
        speed.zero_()
        run()
        return place.cpu().numpy()

    return step


PROGRAM = written(
    "falling_cloth",
    "A frame of a cloth of 160 x 160 knots: eight moments, threads pulled colour by colour, and a question whether the ball is touched.",
    "a CUDA graph of the frame; pushed out of the ball unasked",
    falling_cloth,
    {"graph-candidate": {"asked": False, "graphed": True}, "sync-stall": {"asked": False}},
)
