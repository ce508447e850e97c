"""A particle filter of sixteen whales with 262,144 guesses each; pointwise kernels, a cumsum by row; asks every minute."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workloads.base import Setup, Step, written


def swum_and_heard(state: Tensor, dice: Tensor, buoys: Tensor, bearings: Tensor) -> tuple[Tensor, Tensor]:
    """Where each guess is a minute later, and how well it explains the bearings, some of which are echoes."""
    x, y, speed, heading = state
    heading = heading + 0.15 * dice[3]
    speed = (speed + 0.05 * dice[2]).clamp(0.2, 3.0)
    x = x + 0.06 * speed * torch.cos(heading) + 0.02 * dice[0]
    y = y + 0.06 * speed * torch.sin(heading) + 0.02 * dice[1]
    right, up = x - buoys[:, 0, None, None], y - buoys[:, 1, None, None]
    wrong = torch.atan2(up, right) - bearings.T[..., None]
    wrong = torch.atan2(torch.sin(wrong), torch.cos(wrong))
    spread = 0.03 + 0.002 * torch.sqrt(right.square() + up.square())
    call = torch.exp(-0.5 * (wrong / spread).square()) / (spread * math.sqrt(2.0 * math.pi))
    likely = torch.log(0.9 * call + 0.1 / (2.0 * math.pi)).sum(0)
    return torch.stack([x, y, speed, heading]), likely


def running_sum(weight: Tensor, parts: int) -> Tensor:
    """As cumsum, but each row is summed in parts, which then begin where the parts before them ended."""
    within = weight.unflatten(-1, (parts, -1)).cumsum(-1)
    ends = within[..., -1]
    return (within + (ends.cumsum(-1) - ends)[..., None]).flatten(-2)


def whale_tracks(s: Setup, *, spread: bool = False, compiled: bool = False, asked: bool = True, kept: bool = False) -> Step:
    """Five minutes; guesses are drawn again once too few of them count, which is asked every minute."""
    whales, guesses, minutes, parts = s.size(16, 3), s.size(262_144, 64), s.size(5, 2), s.size(512, 8)
    angle = torch.arange(6) * (math.pi / 3.0)
    buoys = 12.0 * torch.stack([angle.cos(), angle.sin()], 1)
    place, course = 6.0 * torch.rand(whales, 2) - 3.0, 6.28 * torch.rand(whales)
    calls = []
    for _ in range(minutes):
        place = place + 0.09 * torch.stack([course.cos(), course.sin()], 1)
        right, up = (place[:, None] - buoys).unbind(-1)
        calls.append(torch.atan2(up, right) + 0.03 * torch.randn(whales, 6))
    with s.device:
        begin = torch.rand(4, whales, guesses)
        scale, shift = torch.tensor([10.0, 10.0, 2.5, 6.28]), torch.tensor([-5.0, -5.0, 0.3, 0.0])
        begin = begin * scale[:, None, None] + shift[:, None, None]
        rungs = torch.arange(guesses) / guesses
    buoys = buoys.to(s.device)
    if kept:
        calls = [call.to(s.device) for call in calls]
    minute = s.compile(swum_and_heard) if compiled else swum_and_heard

    @torch.no_grad()
    def step() -> Tensor:
        state, logs, means = begin, torch.zeros(whales, guesses, device=s.device), []
        for call in calls:
            dice = torch.randn(4, whales, guesses, device=s.device)
            state, likely = minute(state, dice, buoys, call if kept else call.to(s.device))
            logs = logs + likely
            if spread:
                weight = torch.exp(logs - logs.amax(-1, keepdim=True))
                weight = weight / weight.sum(-1, keepdim=True)
            else:
                weight = torch.softmax(logs, -1)
            means.append((state[:2] * weight).sum(-1))
            few = weight.square().sum(-1) * (0.5 * guesses) > 1.0
            if asked and not few.any().item():
                continue
            ladder = running_sum(weight, parts) if spread else weight.cumsum(-1)
            drawn = rungs + torch.rand(whales, 1, device=s.device) / guesses
            these = torch.searchsorted(ladder, drawn).clamp_(max=guesses - 1)
            again = state.gather(-1, these.expand(4, -1, -1))
            state = torch.where(few[:, None], again, state)
            logs = torch.where(few[:, None], 0.0, logs)
        return torch.stack(means)

    return step


PROGRAM = written(
    "whale_tracks",
    "A particle filter of sixteen whales with 262,144 guesses each; pointwise kernels, a cumsum by row; asks every minute.",
    "running sums and softmax in parts; torch.compile of what is swum and heard; nobody asks; bearings on the GPU beforehand",
    whale_tracks,
    {"small-grid": {"spread": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}, "memcpy": {"kept": True}},
    gpu_bound=True,
)
