"""host-bound"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair


class Ahead:
    """Batches drawn on the host, pinned, and copied on a stream of their own one batch ahead."""

    def __init__(self, draw: Callable[[], tuple[Tensor, ...]], s: Setup) -> None:
        self.draw, self.setup = draw, s
        self.stream = torch.cuda.Stream() if s.cuda else None
        self.batch = self._copy()

    def _copy(self) -> tuple[Tensor, ...]:
        host = [self.setup.pin(part) for part in self.draw()]
        with torch.cuda.stream(self.stream):
            return tuple(part.to(self.setup.device, non_blocking=True) for part in host)

    def next(self) -> tuple[Tensor, ...]:
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for part in self.batch:
                part.record_stream(current)
        return self.batch

    def refill(self) -> None:
        self.batch = self._copy()


def word_vectors(s: Setup, *, drawn: bool = False, ahead: bool = False, fused: bool = False) -> Step:
    words, dim, batch, wrong = s.size(50_000, 40), s.size(200, 8), s.size(4096, 4), s.size(10, 2)
    middle, around = nn.Embedding(words, dim).to(s.device), nn.Embedding(words, dim).to(s.device)
    how: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam([*middle.parameters(), *around.parameters()], lr=1e-3, **how)
    dice = np.random.default_rng(0)
    often = (1.0 / np.arange(1, words + 1)) ** 0.75
    often /= often.sum()
    text = dice.choice(words, size=s.size(500_000, 100), p=often)

    def draw() -> tuple[Tensor, ...]:
        at = dice.integers(5, len(text) - 5, size=batch)
        near = text[at + dice.integers(1, 5, size=batch) * dice.choice([-1, 1], size=batch)]
        return tuple(torch.from_numpy(part) for part in (text[at], near, dice.choice(words, size=(batch, wrong), p=often)))

    ready, turns = [draw() for _ in range(8)], count()
    copied = Ahead(draw, s) if ahead else None

    def step() -> None:
        if copied:
            word, near, far = copied.next()
        else:
            word, near, far = (part.to(s.device) for part in (ready[next(turns) % 8] if drawn else draw()))
        optimizer.zero_grad()
        x = middle(word)
        right = F.logsigmoid((x * around(near)).sum(-1))
        unlike = F.logsigmoid(-(around(far) @ x[:, :, None]).squeeze(-1)).sum(-1)
        (-(right + unlike)).mean().backward()
        optimizer.step()
        if copied:
            copied.refill()

    return step


PROGRAM = written_pair(
    "word_vectors",
    "host-bound",
    "Word vectors by negative sampling; numpy draws 40,960 wrong words by their frequency in each step; Adam(foreach=False).",
    "draw the words beforehand",
    word_vectors,
    {"drawn": True},
    alone={"memcpy": {"ahead": True}, "optimizer-foreach": {"fused": True}},
)
