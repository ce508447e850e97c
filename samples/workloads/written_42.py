"""An FT-Transformer that learns prices of used tractors from auction records, by an author who knows tables better than GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, written

BF16 = torch.bfloat16
Row = tuple[np.ndarray, np.ndarray, np.ndarray]


class Auctions(Dataset[Row]):
    """Hours, power, year and the like, with gaps; maker, model, gearbox and the like as words; the hammer price."""

    def __init__(self, rows: int, numbers: int, sizes: list[int]) -> None:
        rng = np.random.default_rng(0)
        self.numbers = rng.lognormal(0.0, 1.0, (rows, numbers)).astype(np.float32)
        self.numbers[rng.random((rows, numbers)) < 0.05] = np.nan
        codes = [rng.integers(0, size, rows) for size in sizes]
        self.names = np.stack([np.array([f"kind {n}" for n in range(size)], dtype=object)[code] for size, code in zip(sizes, codes, strict=True)], 1)
        self.books = [{f"kind {n}": n + 1 for n in range(size)} for size in sizes]
        self.prices = rng.lognormal(10.0, 0.6, rows).astype(np.float32)
        logs = np.log1p(self.numbers)
        self.mean, self.std = np.nanmean(logs, 0), np.nanstd(logs, 0)

    def __len__(self) -> int:
        return len(self.prices)

    def __getitem__(self, index: int) -> Row:
        row = np.log1p(self.numbers[index])
        row = np.where(np.isnan(row), self.mean, row)
        row = ((row - self.mean) / self.std).astype(np.float32)
        codes = np.array([book.get(name, 0) for book, name in zip(self.books, self.names[index], strict=True)])
        return row, codes, np.log(self.prices[index])


def collate(rows: list[Row]) -> list[Tensor]:
    return [torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True)]


class Prepared(Dataset[Any]):
    """The same rows, prepared once; a batch is one index."""

    def __init__(self, data: Auctions) -> None:
        self.parts = collate([data[index] for index in range(len(data))])

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        where = torch.tensor(indices)
        return [part[where] for part in self.parts]


def hand_on(batch: list[Tensor]) -> list[Tensor]:
    return batch


class Tokens(nn.Module):
    """A linear layer for each number, a table for each kind."""

    def __init__(self, numbers: int, sizes: list[int], dim: int) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.linears = nn.ModuleList(nn.Linear(1, dim) for _ in range(numbers))
        self.tables = nn.ModuleList(nn.Embedding(size + 1, dim) for size in sizes)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        tokens = [self.cls.expand(len(x), -1, -1)]
        for at, linear in enumerate(self.linears):
            tokens.append(linear(x[:, at : at + 1]).unsqueeze(1))
        for at, table in enumerate(self.tables):
            tokens.append(table(codes[:, at]).unsqueeze(1))
        return torch.cat(tokens, 1)


class TokensTogether(nn.Module):
    """Likewise, with all layers in one weight and all tables in one."""

    offsets: Tensor

    def __init__(self, numbers: int, sizes: list[int], dim: int) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.weight = nn.Parameter(torch.empty(numbers, dim).uniform_(-1.0, 1.0))
        self.bias = nn.Parameter(torch.empty(numbers, dim).uniform_(-1.0, 1.0))
        self.table = nn.Embedding(sum(sizes) + len(sizes), dim)
        self.register_buffer("offsets", torch.tensor([0, *[size + 1 for size in sizes[:-1]]]).cumsum(0))

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        numbers = torch.addcmul(self.bias, x.unsqueeze(-1), self.weight)
        return torch.cat([self.cls.expand(len(x), -1, -1), numbers, self.table(codes + self.offsets)], 1)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, sdpa: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.sdpa, self.dropout = heads, sdpa, dropout
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.inner, self.outer = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        drop = self.dropout if self.training else 0.0
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        else:
            weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1)
            y = F.dropout(weights, drop) @ v
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        a, b = self.inner(self.norm2(x)).chunk(2, -1)
        return x + self.outer(F.dropout(a * F.relu(b), self.dropout, self.training))


class FTTransformer(nn.Module):
    def __init__(self, tokens: nn.Module, dim: int, layers: int, heads: int, hidden: int, sdpa: bool) -> None:
        super().__init__()
        self.tokens, self.blocks = tokens, nn.ModuleList(Block(dim, heads, hidden, sdpa) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        x = self.tokens(x, codes)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x[:, 0]))).squeeze(-1)


def endless(loader: DataLoader[Any]) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def tractor_prices(
    s: Setup,
    *,
    workers: bool = False,
    prepared: bool = False,
    together: bool = False,
    compiled: bool = False,
    sdpa: bool = False,
    autocast: bool = False,
    read: bool = True,
    pinned: bool = False,
) -> Step:
    """Training of an FT-Transformer on batches of 512 auctions in FP32: rows are prepared one by one, columns are embedded one by one."""
    rows, batch, numbers, dim = s.size(60_000, 64), s.size(512, 8), s.size(20, 4), s.size(192, 16)
    sizes = [24, 180, 12, 6, 50, 9, 30, 5] if not s.tiny else [3, 5]
    data = Auctions(rows, numbers, sizes)
    more: dict[str, Any] = {"num_workers": s.size(4, 1), "persistent_workers": True, "pin_memory": s.cuda} if workers else {}
    loader = DataLoader(
        Prepared(data) if prepared else data, batch_size=batch, shuffle=True, drop_last=True, collate_fn=hand_on if prepared else collate, **more
    )
    batches = endless(loader)
    with s.device:
        tokens = (TokensTogether if together else Tokens)(numbers, sizes, dim)
        model = FTTransformer(tokens, dim, s.size(3, 2), s.size(8, 2), s.size(256, 16), sdpa).train()
        noted = torch.zeros(3)
    network = s.compile(model, dynamic=False) if compiled else model
    parameters = list(model.parameters())
    plain = {id(p) for name, p in model.named_parameters() if "tokens" in name or "norm" in name or name.endswith("bias")}
    groups = [
        {"params": [p for p in parameters if id(p) not in plain], "weight_decay": 1e-5},
        {"params": [p for p in parameters if id(p) in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    turn, history = counter(), []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        now = next(turn)
        x, codes, target = next(batches)
        if pinned:
            x, codes, target = (s.pin(part).to(s.device, non_blocking=True) for part in (x, codes, target))
        else:
            x, codes, target = (part.to(s.device, non_blocking=workers) for part in (x, codes, target))
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 * min(1.0, (now + 1) / 500)
        optimizer.zero_grad()
        target = (target - 10.0) / 0.6
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            pred = network(x, codes)
        loss = F.mse_loss(pred.float(), target)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        error = ((pred.detach().float() - target).abs() * 0.6).mean()
        if read:
            history.append((loss.item(), error.item(), norm.item()))
            del history[:-100]
        else:
            noted.add_(torch.stack([loss.detach(), error, norm]))
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "tractor_prices",
        "An FT-Transformer in training on 512 auctions, FP32: rows prepared one by one in the loop, a layer for each column, three reads.",
        "four workers; rows prepared once; torch.compile; columns embedded at once; scaled_dot_product_attention; bf16 autocast; no reads; "
        "pinned batches",
        tractor_prices,
        {
            "data-loading": {"workers": True}, "host-bound": {"prepared": True}, "launch-gap": {"compiled": True},
            "launch-gap/columns": {"together": True}, "unfused-attention": {"sdpa": True}, "precision": {"autocast": True},
            "sync-stall": {"read": False}, "memcpy": {"pinned": True},
        },
    ),
)  # fmt: skip
