"""NODE scores 256 claims, TF32: Python makes columns, each copied alone; entmax in each call; alarms are read."""

from __future__ import annotations

import math
import random
from itertools import count as counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written


def entmax(x: Tensor) -> Tensor:
    """Entmax with alpha 1.5 over the first axis: a softmax with true zeros."""
    x = (x - x.amax(0, keepdim=True)) / 2.0
    ordered = x.sort(0, descending=True).values
    many = torch.arange(1, len(x) + 1, device=x.device, dtype=x.dtype)[:, None]
    mean, square = ordered.cumsum(0) / many, (ordered**2).cumsum(0) / many
    delta = (1.0 - many * (square - mean**2)) / many
    edge = mean - torch.sqrt(delta.clamp(min=0.0))
    last = (edge <= ordered).sum(0, keepdim=True) - 1
    return (x - edge.gather(0, last)).clamp(min=0.0) ** 2


class Trees(nn.Module):
    """Trees that ask the same question everywhere on a level."""

    def __init__(self, senses: int, trees: int, depth: int, out: int) -> None:
        super().__init__()
        self.trees, self.depth = trees, depth
        self.choice = nn.Parameter(torch.randn(senses, trees * depth))
        self.edge, self.sharp = nn.Parameter(torch.randn(trees, depth)), nn.Parameter(torch.zeros(trees, depth))
        self.answer = nn.Parameter(50.0 * torch.randn(trees, out, 2**depth))
        bits = torch.arange(2**depth)[None] >> torch.arange(depth)[:, None] & 1
        self.register_buffer("bits", torch.stack([bits, 1 - bits], -1).float())
        self.chosen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        chosen = entmax(self.choice) if self.chosen is None else self.chosen
        asked = (x @ chosen).view(-1, self.trees, self.depth)
        asked = (asked - self.edge) * torch.exp(-self.sharp)
        yes = torch.stack([-asked, asked], -1)
        yes = (0.5 * yes + 0.5).clamp(0.0, 1.0)
        here = torch.einsum("btdc,dlc->btdl", yes, self.bits).prod(2)
        return torch.einsum("btl,tol->bto", here, self.answer)


class Grove(nn.Module):
    """Each layer sees the fields and all earlier layers' answers."""

    def __init__(self, numbers: int, words: list[int], width: int, layers: int, trees: int, depth: int, out: int) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(many, width) for many in words)
        senses = numbers + width * len(words)
        self.layers = nn.ModuleList(Trees(senses + n * trees * out, trees, depth, out) for n in range(layers))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        x = torch.cat([numbers, *(table(words[:, n]) for n, table in enumerate(self.words))], 1)
        answers = []
        for layer in self.layers:
            answers.append(layer(x))
            x = torch.cat([x, answers[-1].flatten(1)], 1)
        return torch.sigmoid(torch.cat(answers, 1).mean(1))


class Claims:
    """Claims as they come, as dictionaries, and what the service makes of them."""

    def __init__(self, plain: int, amounts: int, words: int) -> None:
        rng = random.Random(28)
        names = (("n", plain), ("eur", amounts), ("is", words))
        self.plain, self.amounts, self.words = ([f"{kind}_{n}" for n in range(many)] for kind, many in names)
        self.known = [{f"kind {v}": v + 1 for v in range(rng.randrange(5, 90))} for _ in self.words]
        self.middle, self.wide = [rng.uniform(3.0, 7.0) for _ in self.amounts], [rng.uniform(1.0, 3.0) for _ in self.amounts]

    def came(self, many: int, seed: int) -> list[dict[str, Any]]:
        rng = random.Random(seed)
        return [
            {name: rng.gauss(0.0, 1.0) for name in self.plain}
            | {name: rng.lognormvariate(5.0, 2.0) for name in self.amounts}
            | {name: f" Kind {rng.randrange(90)}" for name in self.words}
            for _ in range(many)
        ]

    def columns(self, claims: list[dict[str, Any]], raw: bool) -> tuple[list[list[float]], list[list[int]]]:
        numbers = [[claim[name] for claim in claims] for name in self.plain]
        for name, middle, wide in zip(self.amounts, self.middle, self.wide, strict=True):
            if raw:
                numbers.append([claim[name] for claim in claims])
            else:
                numbers.append([min(max((math.log1p(max(claim[name], 0.0)) - middle) / wide, -4.0), 4.0) for claim in claims])
        pairs = zip(self.words, self.known, strict=True)
        return numbers, [[known.get(claim[name].strip().lower(), 0) for claim in claims] for name, known in pairs]


def claims_grove(
    s: Setup,
    *,
    on_device: bool = False,
    at_once: bool = False,
    kept: bool = False,
    graphed: bool = False,
    asked: bool = True,
) -> Step:
    """Inference in FP32 with TF32 products on 256 claims; Python makes columns of them, each is copied; entmax runs in each call."""
    many, plain, amounts, words = s.size(256, 5), s.size(40, 3), s.size(16, 2), s.size(14, 2)
    kinds, service = s.size(3, 2), Claims(plain, amounts, words)
    requests, turn = [service.came(many, n) for n in range(4)], counter()
    with s.device:
        sizes = [len(known) + 1 for known in service.known]
        model = Grove(plain + amounts, sizes, s.size(8, 2), s.size(3, 2), s.size(256, 3), s.size(6, 2), kinds).eval()
        middle, wide = torch.tensor(service.middle), torch.tensor(service.wide)
        inputs = torch.zeros(many, plain + amounts), torch.zeros(many, words, dtype=torch.long)
        scores = torch.zeros(many, kinds)
    if kept:
        with torch.no_grad():
            for layer in model.layers:
                layer.chosen = entmax(layer.choice)
    pinned = [s.pin(torch.zeros_like(part, device="cpu")) for part in inputs]

    def scored() -> None:
        scores.copy_(model(*inputs))

    def arrived(columns: list[list[Any]], place: Tensor, host: Tensor) -> None:
        if at_once:
            host.copy_(torch.from_numpy(np.array(columns, np.float32 if host.is_floating_point() else np.int64).T))
            place.copy_(host, non_blocking=True)
        else:
            place.copy_(torch.stack([torch.tensor(column, device=s.device) for column in columns], 1))

    torch.set_float32_matmul_precision("high")
    with torch.no_grad():
        numbers, kind_of = (torch.tensor(columns, device=s.device).T for columns in service.columns(requests[0], False))
        limits = model(numbers, kind_of).quantile(0.97, 0).tolist()
        work = capture(scored, s) if graphed else scored

    @torch.no_grad()
    def step() -> list[tuple[int, int, float]]:
        torch.set_float32_matmul_precision("high")
        for columns, place, host in zip(service.columns(requests[next(turn) % len(requests)], on_device), inputs, pinned, strict=True):
            arrived(columns, place, host)
        if on_device:
            money = inputs[0][:, plain:]
            money.copy_(((torch.log1p(money.clamp(min=0.0)) - middle) / wide).clamp(-4.0, 4.0))
        work()
        if not asked:
            found = scores.tolist()
            return [(kind, n, row[kind]) for kind in range(kinds) for n, row in enumerate(found) if row[kind] > limits[kind]]
        alarms = []
        for kind in range(kinds):
            column = scores[:, kind]
            if (column > limits[kind]).any():
                alarms += [(kind, n, column[n].item()) for n in torch.nonzero(column > limits[kind])[:, 0].tolist()]
        return alarms

    return step


PROGRAM = written(
    "claims_grove",
    "NODE scores 256 claims, TF32: Python makes columns, each copied alone; entmax in each call; alarms are read.",
    "logarithms on the GPU; pinned copies at once; choices made once; CUDA graph of trees; one read",
    claims_grove,
    {
        "host-bound": {"on_device": True},
        "memcpy": {"at_once": True},
        "other/choices": {"kept": True},
        "graph-candidate": {"graphed": True},
        "sync-stall": {"asked": False},
    },
)
