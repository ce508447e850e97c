"""Six moments of four particle filters of a million guesses: softmax and running sums over all of them, and a question whether to draw anew."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, written


def _advance(state: Tensor, doubt: Tensor, noise: Tensor, headings: Tensor, chart: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """Each guess drifts with its own current; then the depth under it is compared to what the echo said."""
    place, current = state[..., :2], state[..., 2:]
    current = 0.995 * current + 2e-4 * noise[..., 2:]
    place = place + 1e-3 * headings[:, None] + 1e-2 * current + 5e-4 * noise[..., :2]
    place = torch.remainder(place + 1.0, 2.0) - 1.0
    depth = F.grid_sample(chart.expand(len(place), 1, -1, -1), place[:, None], align_corners=True)[:, 0, 0]
    off = (depth - heard[:, None]) / (0.02 + 0.01 * depth.abs())
    return torch.cat([place, current], -1), doubt - 2.5 * torch.log1p(off * off / 4.0)


def _shares(doubt: Tensor, pieces: int) -> Tensor:
    """Softmax over all guesses of a glider; by pieces, each of which has then its share of the whole."""
    if pieces == 1:
        return torch.softmax(doubt, 1)
    parts = doubt.view(len(doubt), pieces, -1)
    return (torch.softmax(parts, -1) * torch.softmax(torch.logsumexp(parts, -1), -1)[..., None]).flatten(1)


def _added_up(share: Tensor, pieces: int) -> Tensor:
    if pieces == 1:
        return torch.cumsum(share, 1)
    parts = torch.cumsum(share.view(len(share), pieces, -1), -1)
    before = F.pad(torch.cumsum(parts[..., -1], -1)[..., :-1], (1, 0))
    return (parts + before[..., None]).flatten(1)


def glider_terrain(s: Setup, *, pieces: int = 1, compiled: bool = False, asked: bool = True) -> Step:
    """Guesses are drawn anew once few of them have all the weight."""
    gliders, count, moments, side = s.size(4, 2), s.size(1 << 20, 64), s.size(6, 2), s.size(2048, 16)
    pieces = min(pieces, s.size(pieces, 8))
    chart = F.interpolate(torch.randn(1, 1, s.size(64, 4), s.size(64, 4), device=s.device), size=(side, side), mode="bicubic")
    angle = torch.rand(gliders, device=s.device) * 2.0 * math.pi
    headings = torch.stack([angle.cos(), angle.sin()], 1)
    echoes = torch.randn(moments, gliders, device=s.device)
    begin = torch.cat([0.5 * torch.randn(gliders, count, 2, device=s.device), 0.01 * torch.randn(gliders, count, 2, device=s.device)], -1)
    even = torch.arange(count, device=s.device)
    advance = s.compile(_advance) if compiled else _advance

    def drawn(state: Tensor, share: Tensor) -> Tensor:
        ends = _added_up(share, pieces)
        points = (even + torch.rand(gliders, 1, device=s.device)) / count
        which = torch.searchsorted(ends, points).clamp(max=count - 1)
        return torch.gather(state, 1, which[..., None].expand(-1, -1, 4))

    @torch.no_grad()
    def step() -> Tensor:
        state, doubt, track = begin, torch.zeros(gliders, count, device=s.device), []
        for heard in echoes:
            state, doubt = advance(state, doubt, torch.randn_like(state), headings, chart, heard)
            share = _shares(doubt, pieces)
            track.append((share[..., None] * state).sum(1))
            poor = share.square().sum(1) > 2.0 / count
            if not asked or poor.any().item():
                state = torch.where(poor[:, None, None], drawn(state, share), state)
                doubt = torch.where(poor[:, None], torch.zeros_like(doubt), doubt)
        return torch.stack(track).cpu()

    return step


PROGRAM = written(
    "glider_terrain",
    "Six moments of four particle filters of a million guesses: softmax and running sums over all of them, and a question whether to draw anew.",
    "softmax and running sums in 1024 pieces; torch.compile of how guesses move and weigh; nobody asks, where() chooses",
    glider_terrain,
    {"small-grid": {"pieces": 1024}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}},
    gpu_bound=True,
)
