"""Attention U-Net in training with clDice, bf16 autocast, NCHW; pageable batches; each picture's Dice is read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counter
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written


class Later:
    """Gives back in each call what was put in the call before."""

    def __init__(self, size: tuple[int, ...], s: Setup) -> None:
        self.places = [s.pin(torch.zeros(size)) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
        self.turn = 0

    def put(self, x: Tensor) -> list[list[float]]:
        now, before = self.turn % 2, (self.turn + 1) % 2
        self.turn += 1
        self.places[now].copy_(x, non_blocking=True)
        if self.events:
            self.events[now].record()
            self.events[before].synchronize()
        return self.places[before].tolist()


BF16 = torch.bfloat16


class Residual(nn.Module):
    def __init__(self, inner: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two, self.norm_skip = nn.BatchNorm2d(out), nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(inner, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.norm_one(self.one(x)), 0.01)
        return F.leaky_relu(self.norm_two(self.two(y)) + self.norm_skip(self.skip(x)), 0.01)


class Gate(nn.Module):
    """What of the fine features the coarse ones ask for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine, self.coarse, self.weigh = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width, width // 2, 1), nn.Conv2d(width // 2, 1, 1)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        return fine * torch.sigmoid(self.weigh(F.relu(self.fine(fine) + self.coarse(coarse))))


class Vessels(nn.Module):
    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width * 2**n for n in range(levels)]
        self.begin = Residual(3, width)
        self.down = nn.ModuleList(Residual(a, b, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.gates = nn.ModuleList(Gate(a) for a in sizes[:-1])
        self.join = nn.ModuleList(Residual(2 * a, a) for a in sizes[:-1])
        self.end = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.begin(x)]
        for down in self.down:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up, gate, join in zip(reversed(self.up), reversed(self.gates), reversed(self.join), strict=True):
            x, fine = up(x), kept.pop()
            x = join(torch.cat([gate(fine, x), x], 1))
        return self.end(x)


def eroded(x: Tensor) -> Tensor:
    return torch.min(-F.max_pool2d(-x, (3, 1), 1, (1, 0)), -F.max_pool2d(-x, (1, 3), 1, (0, 1)))


def thinner(x: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    x = eroded(x)
    more = F.relu(x - F.max_pool2d(eroded(x), 3, 1, 1))
    return x, found + F.relu(more - found * more)


def skeleton(x: Tensor, times: int, thin: Callable[..., Any]) -> Tensor:
    found = F.relu(x - F.max_pool2d(eroded(x), 3, 1, 1))
    for _ in range(times):
        x, found = thin(x, found)
    return found


def unlike(logits: Tensor, true: Tensor, times: int, thin: Callable[..., Any]) -> Tensor:
    """Cross-entropy, Dice, and clDice."""
    guess = torch.sigmoid(logits)
    dice = 1.0 - (2.0 * (guess * true).sum() + 1.0) / (guess.sum() + true.sum() + 1.0)
    bones, true_bones = skeleton(guess, times, thin), skeleton(true, times, thin)
    exact = ((bones * true).sum() + 1.0) / (bones.sum() + 1.0)
    whole = ((true_bones * guess).sum() + 1.0) / (true_bones.sum() + 1.0)
    return F.binary_cross_entropy_with_logits(logits, true) + 0.5 * dice + 0.5 * (1.0 - 2.0 * exact * whole / (exact + whole))


def vessel_skeletons(
    s: Setup,
    *,
    last: bool = False,
    compiled: bool = False,
    fused: bool = False,
    ahead: bool = False,
    asked: bool = True,
) -> Step:
    """Training in bf16 autocast on eight pictures of 512 x 512, NCHW; each picture's Dice is read; SGD goes from tensor to tensor."""
    count, side, times = s.size(8, 2), s.size(512, 32), s.size(10, 2)
    with s.device:
        model: nn.Module = Vessels(s.size(32, 4), s.size(5, 3))
    if last:
        model = model.to(memory_format=torch.channels_last)
    network = s.compile(model, dynamic=False) if compiled else model
    thin = s.compile(thinner, dynamic=False) if compiled else thinner
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.99, nesterov=True, weight_decay=3e-5, foreach=None if fused else False, fused=fused or None
    )
    films = [(torch.rand(count, 3, side, side), (torch.rand(count, 1, side, side) < 0.2).float()) for _ in range(4)]
    queue = Prefetcher([(s.pin(film), s.pin(true)) for film, true in films], s) if ahead else None
    later, turn = None if asked else Later((1, count + 1), s), counter()
    scores: list[float] = []

    def overlap(guess: Tensor, true: Tensor) -> Tensor:
        return 2.0 * (guess * true).sum((-3, -2, -1)) / (guess.sum((-3, -2, -1)) + true.sum((-3, -2, -1)) + 1e-6)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        film, true = queue.next() if queue else (part.to(s.device) for part in films[next(turn) % len(films)])
        if last:
            film = film.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            logits = network(film)
        loss = unlike(logits.float(), true, times, thin)
        loss.backward()
        optimizer.step()
        guess = (logits.detach() > 0).float()
        if later is None:
            scores[:] = [loss.item(), *(overlap(guess[n], true[n]).item() for n in range(count))]
        else:
            scores[:] = later.put(torch.cat([loss.detach()[None], overlap(guess, true)])[None])[0]
        return loss.detach()

    return step


PROGRAM = written(
    "vessel_skeletons",
    "Attention U-Net in training with clDice, bf16 autocast, NCHW; pageable batches; each picture's Dice is read.",
    "channels_last; torch.compile of network and skeletons; scores a step later; pinned batches ahead; fused SGD",
    vessel_skeletons,
    {
        "memory-layout": {"last": True},
        "unfused-elementwise": {"compiled": True},
        "sync-stall": {"asked": False},
        "memcpy": {"ahead": True},
        "optimizer-foreach": {"fused": True},
    },
)
