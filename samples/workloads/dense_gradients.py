"""Embedding tables whose gradients are as large as the tables, for the few rows that a batch reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload


class Clicks(nn.Module):
    """Many small categories, one wide network behind them. how: a table each, one table with offsets, or tables with sparse gradients."""

    def __init__(self, tables: int, rows: int, width: int, how: str) -> None:
        super().__init__()
        self.how = how
        if how == "one table":
            self.table = nn.Embedding(tables * rows, width, sparse=True)
            self.register_buffer("offsets", torch.arange(tables) * rows)
        else:
            self.tables = nn.ModuleList(nn.Embedding(rows, width, sparse=how == "sparse") for _ in range(tables))
        self.top = nn.Sequential(nn.Linear(tables * width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids: Tensor) -> Tensor:
        if self.how == "one table":
            rows = self.table(ids + self.offsets)
        else:
            rows = torch.stack([table(ids[:, at]) for at, table in enumerate(self.tables)], 1)
        return self.top(rows.flatten(1))


def clicks(s: Setup, how: str = "dense", optimizer: str = "sgd") -> Step:
    tables, rows, width, batch = s.size(16, 3), s.size(200_000, 50), s.size(48, 4), s.size(2048, 4)
    with s.device:
        model = Clicks(tables, rows, width, how)
        ids, clicked = torch.randint(rows, (batch, tables)), torch.rand(batch, 1).round()
    tuned = [p for name, p in model.named_parameters() if name.startswith("table")]
    others = list(model.top.parameters())
    if optimizer == "adam":
        optimizers = [torch.optim.Adam(others, fused=True), (torch.optim.SparseAdam if how != "dense" else torch.optim.Adam)(tuned)]
    else:
        optimizers = [torch.optim.SGD([*others, *tuned], lr=0.01)]

    def step() -> None:
        for one in optimizers:
            one.zero_grad()
        F.binary_cross_entropy_with_logits(model(ids), clicked).backward()
        for one in optimizers:
            one.step()

    return step


def _made(make, *how):
    return lambda s: make(s, *how)


WORKLOADS = (
    Workload("clicks", "dense-gradients", "sixteen tables of 200,000 rows, 32,768 of them read, SGD", "one table with offsets and sparse gradients", _made(clicks, "one table"), _made(clicks), main=True, gpu_bound=True, fixed_quiet=False),
)
