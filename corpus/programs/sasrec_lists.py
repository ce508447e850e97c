"""SASRec of 128 users, training in FP32: goods not bought are drawn one by one in Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import How, _casting, _precision, _public


class SASRec(nn.Module):
    """The next good of a user's list, as pmixer/SASRec.pytorch has it."""

    def __init__(self, goods: int, dim: int, length: int, blocks: int, how: How, weights: bool) -> None:
        super().__init__()
        self.dim, self.how, self.weights = dim, how, weights
        self.goods, self.places = nn.Embedding(goods + 1, dim, padding_idx=0), nn.Embedding(length + 1, dim, padding_idx=0)
        self.drop = nn.Dropout(0.2)
        self.norms, self.forward_norms = (nn.ModuleList(nn.LayerNorm(dim, eps=1e-8) for _ in range(blocks)) for _ in range(2))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(dim, 1, 0.2) for _ in range(blocks))
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.Conv1d(dim, dim, 1), nn.Dropout(0.2), nn.ReLU(), nn.Conv1d(dim, dim, 1), nn.Dropout(0.2)) for _ in range(blocks)
        )
        self.last = nn.LayerNorm(dim, eps=1e-8)

    def forward(self, seen: Tensor, places: Tensor, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        x = self.drop(self.goods(seen) * self.dim**0.5 + self.places(places))
        mask = ~torch.tril(torch.ones((x.shape[1], x.shape[1]), dtype=torch.bool, device=x.device))
        for norm, attention, forward_norm, forward in zip(self.norms, self.attentions, self.forward_norms, self.forwards, strict=True):
            x = x.transpose(0, 1)
            query = norm(x)
            x = (query + attention(query, x, x, attn_mask=mask, need_weights=self.weights, is_causal=not self.weights)[0]).transpose(0, 1)
            x = forward_norm(x)
            x = x + forward(x.transpose(1, 2)).transpose(1, 2)
        x = self.last(x)
        return (x * self.goods(good)).sum(-1), (x * self.goods(bad)).sum(-1)


def next_goods(s: Setup, *, sampled_ahead: bool = False, on_gpu: bool = False, weights: bool = True, **how: Any) -> Step:
    """Users and goods that they have not bought are drawn in Python, good by good."""
    way, goods, count, length = How(**how), s.size(3416, 50), s.size(128, 4), s.size(100, 10)
    draw = random.Random(0)
    bought = [[draw.randint(1, goods) for _ in range(draw.randint(length // 2, 2 * length))] for _ in range(s.size(2000, 20))]

    def sample() -> tuple[np.ndarray[Any, Any], ...]:
        rows = []
        for _ in range(count):
            user = bought[draw.randrange(len(bought))]
            known, following, place = set(user), user[-1], length - 1
            seen, good, bad = (np.zeros(length, dtype=np.int64) for _ in range(3))
            for each in reversed(user[:-1]):
                seen[place], good[place] = each, following
                other = draw.randint(1, goods)
                while other in known:
                    other = draw.randint(1, goods)
                bad[place], following, place = other, each, place - 1
                if place == -1:
                    break
            rows.append((seen, good, bad))
        return tuple(np.array(column) for column in zip(*rows, strict=True))

    ahead = [sample() for _ in range(8)] if sampled_ahead else []
    ids = torch.arange(1, length + 1, device=s.device)
    model = SASRec(goods, s.size(50, 10), length, 2, way, weights).to(s.device).train()
    optimizer, turns, sums = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98)), iter(range(10**9)), [0.0]

    def step() -> None:
        _precision(way)
        seen, good, bad = ahead[next(turns) % len(ahead)] if ahead else sample()
        if on_gpu:
            seen_there, good_there, bad_there = s.pin(torch.from_numpy(np.stack([seen, good, bad]))).to(s.device, non_blocking=True)
            places = ids * (seen_there != 0)
        else:
            places = torch.LongTensor(np.tile(np.arange(1, length + 1), [count, 1]) * (seen != 0)).to(s.device)
            seen_there, good_there, bad_there = (torch.LongTensor(column).to(s.device) for column in (seen, good, bad))
        with _casting(s, way):
            high, low = model(seen_there, places, good_there, bad_there)
            errors = F.binary_cross_entropy_with_logits(high, torch.ones_like(high), reduction="none")
            errors = errors + F.binary_cross_entropy_with_logits(low, torch.zeros_like(low), reduction="none")
            real = (good_there != 0).float()
            loss = (errors * real).sum() / real.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums[0] += loss.item()

    return step


PROGRAM = _public(
    "sasrec_lists",
    "SASRec of 128 users, training in FP32: goods not bought are drawn one by one in Python.",
    next_goods,
    {},
    {"host-bound": {"sampled_ahead": True}, "memcpy": {"on_gpu": True}, "unfused-attention": {"weights": False}},
)
