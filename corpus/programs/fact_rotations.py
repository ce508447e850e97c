"""RotatE over 40,943 things in FP32: 512 facts with 256 wrong ones each, turned and compared by a chain, under Adam."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def _distance(head: Tensor, turn: Tensor, tail: Tensor) -> Tensor:
    """How far a thing, turned by a relation, is from another: RotatE."""
    head_re, head_im = head.chunk(2, -1)
    tail_re, tail_im = tail.chunk(2, -1)
    turn_re, turn_im = torch.cos(turn), torch.sin(turn)
    re = head_re * turn_re - head_im * turn_im - tail_re
    im = head_re * turn_im + head_im * turn_re - tail_im
    return torch.stack([re, im]).norm(dim=0).sum(-1)


class Facts(nn.Module):
    def __init__(self, things: int, relations: int, width: int, margin: float, distance: Callable[..., Tensor]) -> None:
        super().__init__()
        self.margin, self.distance = margin, distance
        self.reach = (margin + 2.0) / width
        self.things = nn.Parameter(torch.empty(things, 2 * width).uniform_(-self.reach, self.reach))
        self.relations = nn.Parameter(torch.empty(relations, width).uniform_(-self.reach, self.reach))

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        head, tail = (F.embedding(part, self.things) for part in (head, tail))
        turn = F.embedding(relation, self.relations) * (math.pi / self.reach)
        return self.margin - self.distance(head, turn, tail)


def fact_rotations(s: Setup, *, compiled: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    """Wrong tails weigh the more the likelier they seem."""
    things, relations, width = s.size(40_943, 30), s.size(237, 4), s.size(500, 6)
    batch, wrong = s.size(512, 3), s.size(256, 4)
    model = Facts(things, relations, width, 9.0, s.compile(_distance) if compiled else _distance).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, fused=True if fused else None)
    known = torch.stack([torch.randint(most, (s.size(86_835, 20),), device=s.device) for most in (things, relations, things)], 1)

    def step() -> Tensor:
        head, relation, tail = known[torch.randint(len(known), (batch,), device=s.device)].T[..., None]
        others = torch.randint(things, (batch, wrong), device=s.device)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            right, false = model(head, relation, tail), model(head, relation, others)
        weight = torch.softmax(false, 1).detach()
        loss = -0.5 * (F.logsigmoid(right).mean() + (weight * F.logsigmoid(-false)).sum(1).mean())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


PROGRAM = written(
    "fact_rotations",
    "RotatE over 40,943 things in FP32: 512 facts with 256 wrong ones each, turned and compared by a chain, under Adam.",
    "torch.compile of the distance; Adam(fused=True); bf16 autocast",
    fact_rotations,
    {"unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True}},
    gpu_bound=True,
)
