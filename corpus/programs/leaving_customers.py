"""FT-Transformer in training on 2048 customers of 40 columns, TF32; words looked up in Python, two reads a step."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class Columns(nn.Module):
    """Each number by pieces of its range, each word by a table."""

    def __init__(self, edges: Tensor, kinds: list[int], width: int) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        numbers, pieces = edges.shape[0], edges.shape[1] - 1
        self.weight, self.bias = nn.Parameter(0.1 * torch.randn(numbers, pieces, width)), nn.Parameter(torch.zeros(numbers, width))
        self.kinds = nn.ModuleList(nn.Embedding(many + 1, width) for many in kinds)
        self.whole = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        left, right = self.edges[:, :-1], self.edges[:, 1:]
        pieces = ((numbers[..., None] - left) / (right - left)).clamp(0.0, 1.0)
        tokens = torch.einsum("bnp,npd->bnd", pieces, self.weight) + self.bias
        kinds = torch.stack([table(words[:, n]) for n, table in enumerate(self.kinds)], 1)
        return torch.cat([self.whole.expand(len(numbers), -1, -1), tokens.to(kinds.dtype), kinds], 1)


class Among(nn.Module):
    """Attention among the columns, then a ReGLU."""

    def __init__(self, width: int, heads: int, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.drop = nn.Linear(width, 2 * inner), nn.Linear(inner, width), nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
            y = torch.matmul(F.softmax(scores, dim=-1), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        up, gate = self.up(self.two(x)).chunk(2, -1)
        return x + self.down(self.drop(up * F.relu(gate)))


class Notice(nn.Module):
    def __init__(self, edges: Tensor, kinds: list[int], width: int, heads: int, inner: int, layers: int, sdpa: bool) -> None:
        super().__init__()
        self.columns = Columns(edges, kinds, width)
        self.layers = nn.Sequential(*(Among(width, heads, inner, sdpa) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        return self.head(self.layers(self.columns(numbers, words))[:, 0])[:, 0].float()


def leaving_customers(
    s: Setup,
    *,
    autocast: bool = False,
    sdpa: bool = False,
    compiled: bool = False,
    behind: bool = False,
    read: bool = True,
    none: bool = False,
) -> Step:
    """Training with TF32 products on 2048 customers of 40 columns, whose words Python looks up; loss and hits are read each step."""
    count, rows, numeric, worded, pieces = s.size(2048, 6), s.size(60_000, 40), s.size(28, 3), s.size(12, 2), s.size(16, 4)
    rng, draw = np.random.default_rng(33), random.Random(33)
    table = rng.standard_normal((rows, numeric), dtype=np.float32)
    gone = (table[:, 0] + 0.5 * rng.standard_normal(rows) > 0.8).astype(np.float32)
    sizes = [draw.randrange(3, 60) for _ in range(worded)]
    names = [[f"Value {n}-{v}" for v in range(size)] for n, size in enumerate(sizes)]
    known = [{name.lower(): v + 1 for v, name in enumerate(column)} for column in names]
    drawn = [rng.integers(0, size, rows).tolist() for size in sizes]
    people = [[names[n][drawn[n][row]] for n in range(worded)] for row in range(rows)]
    edges = np.quantile(table, np.linspace(0.0, 1.0, pieces + 1), axis=0).T.astype(np.float32)
    edges += 1e-4 * np.arange(pieces + 1, dtype=np.float32)
    with s.device:
        shape = (s.size(192, 16), s.size(8, 2), s.size(256, 12), s.size(4, 2))
        model = Notice(torch.from_numpy(edges).to(s.device), sizes, *shape, sdpa)
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer, log = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5), [0.0, 0.0]
    pool = ThreadPoolExecutor(1) if behind else None
    ahead: list[Future[tuple[Tensor, ...]]] = []

    def batch() -> tuple[Tensor, ...]:
        picked = rng.integers(0, rows, count)
        words = [[known[n].get(name.strip().lower(), 0) for n, name in enumerate(people[row])] for row in picked.tolist()]
        return torch.from_numpy(table[picked]), torch.tensor(words), torch.from_numpy(gone[picked])

    def fetched() -> tuple[Tensor, ...]:
        if pool is None:
            return batch()
        if not ahead:
            ahead.append(pool.submit(batch))
        ready = ahead.pop().result()
        ahead.append(pool.submit(batch))
        return ready

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        numbers, words, left = (part.to(s.device) for part in fetched())
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = network(numbers, words)
        loss = F.binary_cross_entropy_with_logits(guess, 0.96 * left + 0.02)
        optimizer.zero_grad(set_to_none=none)
        loss.backward()
        optimizer.step()
        hits = ((guess > 0) == (left > 0.5)).float().mean()
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + hits.item()
        else:
            noted.add_(torch.stack([loss.detach(), hits]))
        return loss.detach()

    return step


PROGRAM = written(
    "leaving_customers",
    "FT-Transformer in training on 2048 customers of 40 columns, TF32; words looked up in Python, two reads a step.",
    "bf16 autocast; scaled_dot_product_attention; torch.compile; words by a thread; nothing is read; set_to_none",
    leaving_customers,
    {
        "precision/bf16": {"autocast": True},
        "unfused-attention": {"sdpa": True},
        "unfused-elementwise": {"compiled": True},
        "host-bound": {"behind": True},
        "sync-stall": {"read": False},
        "grad-zeroing": {"none": True},
    },
)
