"""A recommender of 20 small tables on 512 examples, gradients filled with zeros, Adam, FP32."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _workload, training


class Recommender(nn.Module):
    """Bags of categories beside dense numbers; pairs of the embeddings' products, then a multilayer perceptron, as in DLRM."""

    def __init__(self, tables: int, rows: int, dim: int, dense: int, hidden: int, pairs: bool = True) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        self.pairs = pairs
        inside = dim + (tables + 1) * tables // 2 if pairs else (tables + 1) * dim
        self.top = nn.Sequential(nn.Linear(inside, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1))
        self.register_buffer("picked", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        """bags: (table, example, category)."""
        low = self.bottom(dense)
        features = torch.stack([low, *(table(bag).to(low.dtype) for table, bag in zip(self.tables, bags, strict=True))], 1)
        if not self.pairs:
            return self.top(features.flatten(1)).squeeze(1)
        products = (features @ features.transpose(1, 2))[:, self.picked[0], self.picked[1]]
        return self.top(torch.cat([low, products], 1)).squeeze(1)


def recommender(batch: int, tables: int, rows: int, dim: int, hidden: int, pairs: bool, s: Setup, how: How) -> Step:
    count, rows, tables = s.size(batch, 4), s.size(rows, 50), s.size(tables, 3)
    dense = torch.randn(count, 13, device=s.device)
    bags = torch.randint(rows, (tables, count, 4), device=s.device)
    clicked = torch.randint(2, (count,), device=s.device).float()
    model = Recommender(tables, rows, s.size(dim, 8), 13, s.size(hidden, 16), pairs)
    return training(s, how, model, lambda m: F.binary_cross_entropy_with_logits(m(dense, bags).float(), clicked), torch.optim.Adam)


WIDE_DEEP = partial(recommender, 512, 20, 10_000, 32, 256, False)


PROGRAM = _workload(
    "widedeep_small",
    "A recommender of 20 small tables on 512 examples, gradients filled with zeros, Adam, FP32.",
    WIDE_DEEP,
    How(zero=True),
    launch_gap=How(zero=True, compiled=COMPILED),
    optimizer_foreach=How(zero=True, optimizer="fused"),
    precision=How(zero=True, autocast=BF16),
    grad_zeroing=How(),
)
