"""data-loading"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


class Customers(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, many: int) -> None:
        dice = random.Random(0)
        self.cities = {f"city {i}": i for i in range(200)}
        names = list(self.cities)
        self.rows = [{"city": dice.choice(names), "amounts": [dice.random() for _ in range(24)], "left": dice.random() < 0.2} for _ in range(many)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        row: dict[str, Any] = self.rows[at]
        amounts = [math.log1p(amount) for amount in row["amounts"]]
        return {"city": torch.tensor(self.cities[row["city"]]), "amounts": torch.tensor(amounts), "left": torch.tensor(float(row["left"]))}


def customers_left(s: Setup, *, workers: int = 0, once: bool = False, fused: bool = False, autocast: bool = False, pin: bool = False) -> Step:
    data, batch, workers = Customers(s.size(20_000, 40)), s.size(512, 4), workers if s.cuda else 0

    def drawn() -> Iterator[dict[str, Tensor]]:
        whole: dict[str, Tensor] = torch.utils.data.default_collate([data[i] for i in range(len(data))])
        while True:
            for rows in torch.randperm(len(data)).split(batch)[:-1]:
                yield {name: column[rows] for name, column in whole.items()}

    def loaded() -> Iterator[dict[str, Tensor]]:
        loader = torch.utils.data.DataLoader(
            data, batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=pin and s.cuda, persistent_workers=workers > 0
        )
        while True:
            yield from loader

    batches = drawn() if once else loaded()
    width = s.size(2048, 8)
    city, model = nn.Embedding(200, 32).to(s.device), _mlp(56, *[width] * s.size(4, 1), 1).to(s.device)
    optimizer = torch.optim.AdamW([*city.parameters(), *model.parameters()], lr=1e-3, fused=fused)

    def step() -> None:
        row = {name: column.to(s.device, non_blocking=pin) for name, column in next(batches).items()}
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            score = model(torch.cat([city(row["city"]), row["amounts"]], 1))
        F.binary_cross_entropy_with_logits(score.squeeze(1).float(), row["left"]).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "customers_left",
    "data-loading",
    "Rows of a list of dicts made into tensors one by one in the training process, 512 a batch.",
    "make the tensors once",
    customers_left,
    {"once": True},
    alone={"data-loading/workers": {"workers": 4}, "memcpy": {"pin": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True}},
)
