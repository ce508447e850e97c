"""launch-gap"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step, written_pair


def evolution_search(s: Setup, *, together: bool = False, read: bool = True, on_gpu: bool = False) -> Step:
    many, rows, widths = s.size(40, 3), s.size(512, 8), (16, s.size(64, 8), s.size(64, 8), 4)
    shapes = list(pairwise(widths))
    weights = [torch.randn(shape, device=s.device) / shape[0] ** 0.5 for shape in shapes]
    x, y = torch.randn(rows, widths[0], device=s.device), torch.randn(rows, widths[-1], device=s.device)

    @torch.no_grad()
    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        place = s.device if on_gpu else torch.device("cpu")
        noise = [torch.randn(many, *shape, device=place) for shape in shapes]
        if together:
            moved = [part.to(s.device) for part in noise]
            hidden = x.expand(many, -1, -1)
            for layer, (weight, part) in enumerate(zip(weights, moved, strict=True)):
                hidden = torch.bmm(hidden, weight + 0.1 * part)
                hidden = torch.tanh(hidden) if layer < 2 else hidden
            fitness = -(hidden - y).square().mean((1, 2))
            scores = torch.tensor(fitness.tolist(), device=s.device) if read else fitness
        else:
            each: list[Any] = []
            parts: list[list[Tensor]] = []
            for member in range(many):
                hidden = x
                parts.append([part[member].to(s.device) for part in noise])
                for layer, (weight, part) in enumerate(zip(weights, parts[-1], strict=True)):
                    hidden = hidden @ (weight + 0.1 * part)
                    hidden = torch.tanh(hidden) if layer < 2 else hidden
                fitness = -(hidden - y).square().mean()
                each.append(fitness.item() if read else fitness)
            scores = torch.tensor(each, device=s.device) if read else torch.stack(each)
            moved = [torch.stack(layer) for layer in zip(*parts, strict=True)]
        scores = (scores - scores.mean()) / (scores.std() + 1e-8)
        for weight, part in zip(weights, moved, strict=True):
            weight += 0.01 / many * torch.einsum("m,mio->io", scores, part)

    return step


PROGRAM = written_pair(
    "evolution_search",
    "launch-gap",
    "Forty small networks one after another, each with noise copied from the host and its fitness read.",
    "one bmm over the population",
    evolution_search,
    {"together": True},
    alone={"sync-stall": {"read": False}, "memcpy": {"on_gpu": True}},
    top=("launch-gap", "sync-stall"),
)
