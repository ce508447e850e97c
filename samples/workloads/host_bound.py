"""Programs whose own work on the host holds up the launches."""

from __future__ import annotations

import gc
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Make, Setup, Step, Workload
from .models import VisionTransformer


class Ranking:
    """A scorer, and the candidates of each query as Python lists."""

    def __init__(self, s: Setup) -> None:
        dim = s.size(2048, 16)
        self.model = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)).to(s.device, torch.bfloat16)
        self.items = torch.randn(s.size(16384, 32), dim, device=s.device, dtype=torch.bfloat16)
        rng = random.Random(0)
        queries, each = s.size(200, 4), s.size(600, 4)
        self.clicks = [[rng.randrange(len(self.items)) for _ in range(each)] for _ in range(queries)]

    def scored(self) -> Tensor:
        return self.model(self.items).float().norm(dim=-1)


def _pairs(clicks: list[list[int]]) -> list[int]:
    """Each query's candidates without duplicates; what a Python loop does per step. It calls next to nothing, so that the
    profiler's stacks stay small."""
    flat: list[int] = []
    for query in clicks:
        clicked: dict[int, int] = {}
        for item in query:
            clicked[item] = clicked[item] + 1 if item in clicked else 1
        flat += sorted(clicked)
    return flat


def _ranking(ahead: bool) -> Make:
    def make(s: Setup) -> Step:
        ranking = Ranking(s)
        ready = torch.tensor(_pairs(ranking.clicks), device=s.device) if ahead else None

        @torch.inference_mode()
        def step() -> Tensor:
            index = ready if ready is not None else s.pin(torch.tensor(_pairs(ranking.clicks))).to(s.device, non_blocking=True)
            return ranking.scored()[index].logsumexp(0)

        return step

    return make


def _collecting(each_step: bool) -> Make:
    """Training with a large pool of Python objects beside it, which each collection walks through."""

    def make(s: Setup) -> Step:
        pool = [{"id": i, "tags": [str(i), str(i + 1)], "next": [i]} for i in range(s.size(150_000, 100))]
        classes, side = s.size(1000, 10), s.size(224, 32)
        model = VisionTransformer(s.size(384, 32), s.size(6, 2), s.size(4, 1), classes).to(s.device, torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        images = torch.rand(s.size(32, 2), 3, side, side, device=s.device, dtype=torch.bfloat16)
        labels = torch.randint(classes, (len(images),), device=s.device)
        done = 0

        def step() -> int:
            nonlocal done
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            done += 1
            if each_step or done % 1000 == 0:
                gc.collect()
            return len(pool)

        return step

    return make


def _sorting(on_gpu: bool) -> Make:
    """Sampling weights kept on the CPU: a sort and a cumulative sum there in each step."""

    def make(s: Setup) -> Step:
        n, dim = s.size(300_000, 100), s.size(4096, 16)
        weights = torch.rand(n, generator=torch.Generator().manual_seed(0))
        weights = weights.to(s.device) if on_gpu else weights
        layer = nn.Linear(dim, dim).to(s.device, torch.bfloat16)
        x = torch.randn(s.size(4096, 8), dim, device=s.device, dtype=torch.bfloat16)

        @torch.inference_mode()
        def step() -> tuple[Tensor, Tensor]:
            order = torch.argsort(weights)
            mass = torch.cumsum(weights[order], 0)
            y = x
            for _ in range(4):
                y = layer(y)
            return y, mass[-1:]

        return step

    return make


WORKLOADS = (
    Workload(
        name="python_targets", rule="host-bound", main=True, make_slow=_ranking(False), make_fixed=_ranking(True), with_stack=True,
        what="A ranking step that builds its index lists in Python before each launch.",
        fix="build them once, ahead of the loop",
        top=("host-bound",),
    ),
    Workload(
        name="collect_each_step", rule="host-bound", make_slow=_collecting(True), make_fixed=_collecting(False), with_stack=True,
        what="gc.collect() after each training step, beside a large pool of Python objects.",
        fix="collect every 1000 steps",
        top=("host-bound", "launch-gap", "graph-candidate"), fixed_quiet=True,
    ),
    Workload(
        name="sort_on_cpu", rule="host-bound", make_slow=_sorting(False), make_fixed=_sorting(True),
        what="Weights that live on the CPU are sorted and summed there in each step.",
        fix="keep them on the GPU",
        top=("host-bound",),
    ),
)  # fmt: skip
