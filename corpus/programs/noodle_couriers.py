"""Eight experts with three gates in training on 4096 rows, TF32: columns copied one by one, a mask picks orders; losses are read."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Tables(nn.Module):
    """An embedding for each column; or one table for all."""

    def __init__(self, columns: int, codes: int, size: int, joined: bool) -> None:
        super().__init__()
        count = 1 if joined else columns
        self.tables = nn.ParameterList(nn.Parameter(0.05 * torch.randn(columns // count * codes, size)) for _ in range(count))
        self.register_buffer("first", torch.arange(columns) * codes)
        self.joined, self.size = joined, size

    def forward(self, codes: Tensor) -> Tensor:
        if self.joined:
            return self.tables[0].index_select(0, (codes + self.first).flatten()).view(len(codes), -1)
        return torch.cat([table.index_select(0, codes[:, n]) for n, table in enumerate(self.tables)], 1)


class Experts(nn.Module):
    """Two layers each; one by one, or all in a product."""

    def __init__(self, count: int, inner: int, hidden: int, out: int, stacked: bool) -> None:
        super().__init__()
        self.stacked = stacked
        if stacked:
            self.w1, self.b1 = nn.Parameter(torch.randn(count, inner, hidden) / inner**0.5), nn.Parameter(torch.zeros(count, 1, hidden))
            self.w2, self.b2 = nn.Parameter(torch.randn(count, hidden, out) / hidden**0.5), nn.Parameter(torch.zeros(count, 1, out))
        else:
            self.each = nn.ModuleList(nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, out), nn.ReLU()) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        if self.stacked:
            y = torch.relu(torch.matmul(x, self.w1) + self.b1)
            return torch.relu(torch.matmul(y, self.w2) + self.b2).transpose(0, 1)
        return torch.stack([expert(x) for expert in self.each], 1)


class Noodles(nn.Module):
    def __init__(self, columns: int, codes: int, size: int, numbers: int, experts: int, hidden: tuple[int, int], joined: bool, stacked: bool) -> None:
        super().__init__()
        inner = columns * size + numbers
        self.tables, self.experts = Tables(columns, codes, size, joined), Experts(experts, inner, *hidden, stacked)
        self.gates = nn.ModuleList(nn.Linear(inner, experts) for _ in range(3))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(hidden[1], hidden[1] // 2), nn.ReLU(), nn.Linear(hidden[1] // 2, 1)) for _ in range(3))
        self.doubt = nn.Parameter(torch.zeros(3))

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self.tables(codes), torch.log1p(numbers)], 1)
        known = self.experts(x)
        out = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            share = torch.softmax(gate(x), -1)
            out.append(tower((share[..., None] * known).sum(1))[:, 0])
        return torch.stack(out, 1)


def surprise(logit: Tensor, truth: Tensor) -> Tensor:
    """Focal loss, row by row."""
    chance = torch.sigmoid(logit.float()).clamp(1e-6, 1 - 1e-6)
    right = truth * chance + (1 - truth) * (1 - chance)
    return -((1 - right) ** 1.5) * torch.log(right)


def noodle_couriers(
    s: Setup,
    *,
    packed: bool = False,
    stacked: bool = False,
    joined: bool = False,
    fused: bool = False,
    masked: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    none: bool = False,
) -> Step:
    """Training of a mixture of eight experts on 4096 rows, TF32: columns copied one by one, orders picked by a mask, Adam(foreach=False); losses are read."""
    rows, columns, codes, size, numbers = s.size(4096, 12), s.size(20, 4), s.size(20000, 30), s.size(16, 4), s.size(12, 3)
    hidden = (s.size(256, 8), s.size(128, 8))
    rng = np.random.default_rng(73)
    days = []
    for _ in range(4):
        day = {f"code{n}": rng.zipf(1.3, rows) % codes for n in range(columns)}
        day |= {f"number{n}": rng.exponential(3.0, rows).astype(np.float32) for n in range(numbers)}
        clicked = rng.random(rows) < 0.3
        clicked[0] = True
        day |= {"clicked": clicked.astype(np.float32), "ordered": (clicked & (rng.random(rows) < 0.4)).astype(np.float32)}
        days.append(day | {"again": (rng.random(rows) < 0.2).astype(np.float32)})
    with s.device:
        model = Noodles(columns, codes, size, numbers, s.size(8, 2), hidden, joined, stacked)
        where, what, truth = torch.zeros(rows, columns, dtype=torch.long), torch.zeros(rows, numbers), torch.zeros(rows, 3)
        noted = torch.zeros(3)
    room = s.pin(torch.zeros(rows, columns, dtype=torch.long)), s.pin(torch.zeros(rows, numbers + 3))
    names = [f"code{n}" for n in range(columns)], [*(f"number{n}" for n in range(numbers)), "clicked", "ordered", "again"]
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-3, eps=1e-7, capturable=graphed and s.cuda, **({"fused": True} if fused else {"foreach": False})
    )  # fmt: skip
    reading = not masked and not graphed
    turn, log = counter(), [0.0, 0.0, 0.0]

    def ready(day: dict[str, np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        if packed:
            for part, of in zip(room, names, strict=True):
                np.stack([day[name] for name in of], 1, out=part.numpy())
            ids, rest = (part.to(s.device, non_blocking=True) for part in room)
        else:
            ids, rest = (torch.stack([torch.from_numpy(day[name]).to(s.device) for name in of], 1) for of in names)
        return ids, rest[:, :numbers], rest[:, numbers:]

    def learn(ids: Tensor, amounts: Tensor, told: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(ids, amounts)
        losses = [surprise(logits[:, 0], told[:, 0]).mean()]
        if reading:
            clicked = told[:, 0] > 0.5
            losses.append(surprise(logits[clicked, 1], told[clicked, 1]).mean())
        else:
            losses.append((surprise(logits[:, 1], told[:, 1]) * told[:, 0]).sum() / told[:, 0].sum())
        losses.append(surprise(logits[:, 2], told[:, 2]).mean())
        each = torch.stack(losses)
        (torch.exp(-model.doubt) * each + model.doubt).sum().backward()
        optimizer.step()
        if reading:
            for n, loss in enumerate(losses):
                log[n] = 0.99 * log[n] + 0.01 * loss.item()
        else:
            noted.mul_(0.99).add_(each.detach(), alpha=0.01)
        return each.detach()

    if graphed:
        torch.set_float32_matmul_precision("high")
        for place, value in zip((where, what, truth), ready(days[0]), strict=True):
            place.copy_(value)
        work = capture(lambda: learn(where, what, truth), s)

    def step() -> object:
        torch.set_float32_matmul_precision("high")
        batch = ready(days[next(turn) % len(days)])
        if not graphed:
            return learn(*batch)
        for place, value in zip((where, what, truth), batch, strict=True):
            place.copy_(value)
        work()
        return noted

    return step


PROGRAM = written(
    "noodle_couriers",
    "Eight experts with three gates in training on 4096 rows, TF32: columns copied one by one, a mask picks orders; losses are read.",
    "columns packed and pinned; experts in one product; one table for all columns; fused Adam; a mask of fixed shape and no reads; CUDA graph of the step; "
    "bf16 autocast; gradients dropped",
    noodle_couriers,
    {
        "memcpy": {"packed": True},
        "launch-gap": {"stacked": True},
        "launch-gap/tables": {"joined": True},
        "optimizer-foreach": {"fused": True},
        "sync-stall": {"masked": True},
        "graph-candidate": {"graphed": True},
        "precision": {"autocast": True},
        "grad-zeroing": {"none": True},
    },
)
