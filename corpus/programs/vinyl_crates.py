"""A deep interest network in training on 4096 rows, TF32: negatives and padding in Python, AUC by NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count as counter
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Dice(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.alpha = nn.BatchNorm1d(width, eps=1e-8, affine=False), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x.reshape(-1, x.shape[-1])).view(x.shape))
        return self.alpha * (1 - p) * x + p * x


def dice_layers(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), Dice(b)]
    return nn.Sequential(*parts, nn.Linear(widths[-1], 1))


class Interest(nn.Module):
    kind_of: Tensor

    def __init__(self, records: int, kinds: int, customers: int, size: int, unit: tuple[int, ...], head: tuple[int, ...]) -> None:
        super().__init__()
        self.records, self.kinds = nn.Embedding(records, size, padding_idx=0), nn.Embedding(kinds, size)
        self.customers = nn.Embedding(customers, size)
        self.register_buffer("kind_of", torch.randint(0, kinds, (records,)))
        self.unit, self.head = dice_layers(8 * size, *unit), dice_layers(7 * size, *head)

    def both(self, records: Tensor) -> Tensor:
        return torch.cat([self.records(records), self.kinds(self.kind_of[records])], -1)

    def forward(self, customer: Tensor, record: Tensor, crate: Tensor) -> Tensor:
        asked, had = self.both(record), self.both(crate)
        query = asked[:, None].expand_as(had)
        weight = self.unit(torch.cat([query, had, query - had, query * had], -1))
        weight = torch.where(crate[..., None] > 0, weight, torch.zeros_like(weight))
        liked = (weight * had).sum(1)
        return self.head(torch.cat([self.customers(customer), asked, liked, asked * liked], -1))[:, 0]


def auc_on_host(scores: np.ndarray, truth: np.ndarray) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    ones = truth.sum()
    return float((ranks[truth > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(truth) - ones)))


def auc_of(scores: Tensor, truth: Tensor) -> Tensor:
    by_score, ones = truth[scores.argsort(stable=True)], truth.sum()
    ranks = torch.arange(1, len(truth) + 1, device=truth.device, dtype=torch.float64)
    return ((ranks * by_score).sum() - ones * (ones + 1) / 2) / (ones * (len(truth) - ones))


def vinyl_crates(
    s: Setup,
    *,
    prepared: bool = False,
    read: bool = True,
    pinned: bool = False,
    compiled: bool = False,
    fused: bool = False,
    autocast: bool = False,
    graphed: bool = False,
) -> Step:
    """A training step of a deep interest network on 2048 sales and as many negatives drawn in Python; padding by row, AUC by NumPy."""
    sales, most, records, kinds = s.size(2048, 8), s.size(100, 6), s.size(1_000_000, 60), s.size(800, 5)
    customers, size, rows = s.size(200_000, 20), s.size(64, 4), 2 * s.size(2048, 8)
    rng, drawing = np.random.default_rng(403), random.Random(403)
    batches: list[list[tuple[int, int, list[int]]]] = []
    for _ in range(4):
        who, what, lengths = rng.integers(0, customers, sales), rng.integers(1, records, sales), rng.integers(most // 3, most + 1, sales)
        batches.append([(int(a), int(b), rng.integers(1, records, int(n)).tolist()) for a, b, n in zip(who, what, lengths, strict=True)])
    taken = [[{record, *crate} for _, record, crate in batch] for batch in batches]
    told = np.concatenate([np.ones(sales, np.float32), np.zeros(sales, np.float32)])
    room = s.pin(torch.zeros(rows, most + 2, dtype=torch.long))
    with s.device:
        model = Interest(records, kinds, customers, size, (s.size(80, 6), s.size(40, 4)), (s.size(200, 8), s.size(80, 6)))
        truth, noted, held = torch.tensor(told), torch.zeros(2), torch.zeros(rows, most + 2, dtype=torch.long)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=graphed and s.cuda, **({"fused": True} if fused else {}))
    reading = read and not graphed
    turn, log = counter(), []

    def filled(n: int, out: np.ndarray) -> np.ndarray:
        """By row: customer, record, crate; the sales first, then a negative for each."""
        for row, ((customer, record, crate), owned) in enumerate(zip(batches[n], taken[n], strict=True)):
            other = drawing.randrange(1, records)
            while other in owned:
                other = drawing.randrange(1, records)
            for place, offered in ((row, record), (row + sales, other)):
                out[place, 0], out[place, 1] = customer, offered
                out[place, 2 : 2 + len(crate)] = crate
                out[place, 2 + len(crate) :] = 0
        return out

    ready = [torch.from_numpy(filled(n, np.zeros((rows, most + 2), np.int64))[:sales]) for n in range(len(batches))] if prepared else []

    def batch() -> Tensor:
        n = next(turn) % len(batches)
        if prepared:
            part = ready[n].to(s.device)
            other = torch.randint(1, records, (sales,), device=s.device)
            for _ in range(3):
                owned = (part[:, 1:] == other[:, None]).any(1)
                other = torch.where(owned, torch.randint(1, records, (sales,), device=s.device), other)
            return torch.cat([part, torch.cat([part[:, :1], other[:, None], part[:, 2:]], 1)])
        if pinned:
            filled(n, room.numpy())
            return room.to(s.device, non_blocking=True)
        return torch.from_numpy(filled(n, np.zeros((rows, most + 2), np.int64))).to(s.device)

    def learn(given: Tensor, target: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(given[:, 0], given[:, 1], given[:, 2:])
        answers = target()
        loss = F.binary_cross_entropy_with_logits(logits.float(), answers)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if reading:
                chance = torch.sigmoid(logits.float()).cpu().numpy()
                log.append((loss.item(), auc_on_host(chance, told)))
                del log[:-100]
            else:
                noted.add_(torch.stack([loss.detach(), auc_of(torch.sigmoid(logits.float()), answers).float()]))
        return loss.detach()

    work = None
    if graphed:
        torch.set_float32_matmul_precision("high")
        held.copy_(batch())
        work = capture(lambda: learn(held, lambda: truth), s)

    def step() -> object:
        torch.set_float32_matmul_precision("high")
        given = batch()
        if work:
            held.copy_(given)
            work()
            return noted
        return learn(given, lambda: torch.from_numpy(told).to(s.device))

    return step


PROGRAM = written(
    "vinyl_crates",
    "A deep interest network in training on 4096 rows, TF32: negatives and padding in Python, AUC by NumPy.",
    "crates padded once and negatives drawn on the GPU; loss and AUC kept on the GPU; a pinned buffer; torch.compile; "
    "fused Adam; bf16 autocast; CUDA graph of the step",
    vinyl_crates,
    {
        "host-bound": {"prepared": True},
        "sync-stall": {"read": False},
        "memcpy": {"pinned": True},
        "unfused-elementwise": {"compiled": True},
        "optimizer-foreach": {"fused": True},
        "precision": {"autocast": True},
        "graph-candidate": {"graphed": True},
    },
)
