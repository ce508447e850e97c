"""data-loading"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


class Baskets(torch.utils.data.Dataset[tuple[Tensor, Tensor, Tensor]]):
    def __init__(self, goods: int, length: int) -> None:
        self.goods, self.length, self.dice = goods, length, np.random.default_rng(0)
        self.bought = self.dice.integers(1, goods, (2048, length + 1))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor, Tensor]:
        row = self.bought[at % len(self.bought)]
        known, wrong = set(row.tolist()), np.zeros(self.length, dtype=np.int64)
        for i in range(self.length):
            other = int(self.dice.integers(1, self.goods))
            while other in known:
                other = int(self.dice.integers(1, self.goods))
            wrong[i] = other
        return torch.as_tensor(row[:-1]), torch.as_tensor(row[1:]), torch.from_numpy(wrong)


class NextGoods(nn.Module):
    def __init__(self, goods: int, length: int, dim: int) -> None:
        super().__init__()
        self.goods, self.places = nn.Embedding(goods, dim), nn.Parameter(torch.zeros(length, dim))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, 2, dim, 0.2, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, row: Tensor) -> Tensor:
        x = self.goods(row) * self.places.shape[1] ** 0.5 + self.places
        for block in self.blocks:
            x = block(x, src_mask=self.later, is_causal=True)
        return self.norm(x)


def basket_goods(s: Setup, *, workers: int = 0, autocast: bool = False, fused: bool = False) -> Step:
    goods, length, workers = s.size(20_000, 50), s.size(50, 4), workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        Baskets(goods, length), s.size(128, 2), shuffle=True, num_workers=workers, pin_memory=workers > 0, persistent_workers=workers > 0, drop_last=True
    )
    model = NextGoods(goods, length, s.size(64, 4)).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), **({"fused": True} if fused else {"foreach": True}))

    def endless() -> Iterator[list[Tensor]]:
        while True:
            yield from loader

    batches = endless()

    def step() -> None:
        row, right, wrong = (part.to(s.device) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            x = model(row)
            good, bad = (x * model.goods(right)).sum(-1), (x * model.goods(wrong)).sum(-1)
        loss = F.binary_cross_entropy_with_logits(good.float(), torch.ones_like(good, dtype=torch.float32))
        loss = loss + F.binary_cross_entropy_with_logits(bad.float(), torch.zeros_like(bad, dtype=torch.float32))
        loss.backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "basket_goods",
    "data-loading",
    "Training of a small transformer on baskets; the dataset draws wrong goods one by one in the training process.",
    "num_workers=8, persistent_workers and pin_memory",
    basket_goods,
    {"workers": 8},
    alone={"precision": {"autocast": True}, "optimizer-foreach": {"fused": True}},
)
