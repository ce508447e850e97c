"""launch-gap"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written_pair


def advance(alpha: Tensor, emission: Tensor, moves: Tensor, on: Tensor) -> Tensor:
    after = torch.logsumexp(alpha[:, :, None] + moves[None] + emission[:, None, :], 1)
    return torch.where(on[:, None], after, alpha)


def crf_likelihood(s: Setup, *, compiled: bool = False, graphed: bool = False) -> Step:
    rows, length, tags = s.size(64, 2), s.size(72, 4), s.size(32, 4)
    head, moves = nn.Linear(s.size(256, 8), tags).to(s.device), nn.Parameter(torch.randn(tags, tags, device=s.device))
    x = torch.randn(rows, length, s.size(256, 8), device=s.device)
    mask = torch.arange(length, device=s.device) < torch.randint(length // 2, length, (rows, 1), device=s.device)
    optimizer = torch.optim.SGD([*head.parameters(), moves], lr=1e-3, foreach=True)
    forward = s.compile(advance) if compiled else advance

    def step() -> None:
        optimizer.zero_grad()
        emissions = head(x)
        alpha = emissions[:, 0]
        for t in range(1, length):
            alpha = forward(alpha, emissions[:, t], moves, mask[:, t])
        (alpha.logsumexp(1) - emissions.mean((1, 2))).mean().backward()
        optimizer.step()

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "crf_likelihood",
    "launch-gap",
    "Training of a CRF whose forward algorithm is a loop over 72 words.",
    "torch.compile of one word's step",
    crf_likelihood,
    {"compiled": True},
    alone={"graph-candidate": {"graphed": True}},
    top=("launch-gap", "graph-candidate"),
)
