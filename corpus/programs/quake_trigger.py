"""Four hours of six seismograms, int32 from pageable memory: five running sums of 1,440,000 float64 each, ratios and kurtosis between them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, written


def _sums(x: Tensor, pieces: int) -> Tensor:
    """Running sums along time; of so many pieces at once, each of which then goes on where the one before it ends."""
    if pieces == 1:
        return torch.cumsum(x, -1)
    parts = torch.cumsum(x.view(*x.shape[:-1], pieces, -1), -1)
    before = F.pad(torch.cumsum(parts[..., -1], -1)[..., :-1], (1, 0))
    return (parts + before[..., None]).flatten(-2)


def _window(x: Tensor, wide: int, pieces: int) -> Tensor:
    """The mean of the last `wide` samples, of fewer at the beginning."""
    sums = _sums(x, pieces)
    return (sums - F.pad(sums[..., :-wide], (wide, 0))) / wide


def _shaken(counts: Tensor, gain: Tensor, windows: tuple[int, int, int], pieces: int) -> Tensor:
    """Where the ratio of short to long and the kurtosis are both high; in double, as sums over hours lose what is small."""
    short, long, peaked = windows
    ground = counts.double() * gain[:, None]
    ground = ground - _window(ground, long, pieces)
    power = ground * ground
    ratio = _window(power, short, pieces) / (_window(power, long, pieces) + 1e-12)
    kurtosis = _window(power * power, peaked, pieces) / (_window(power, peaked, pieces) ** 2 + 1e-12) - 3.0
    shaken = torch.sqrt(ratio.clamp(min=0.0)) * torch.log1p(kurtosis.clamp(min=0.0))
    shaken[:, :long] = 0.0
    return shaken.view(-1, 3, shaken.shape[-1]).amax(1).float()


def _trembling(draw: np.random.Generator, samples: int, long: int) -> np.ndarray:
    """Noise, and eight earthquakes that fade away."""
    ground = 300.0 * draw.standard_normal((6, samples), dtype=np.float32)
    for begin in draw.integers(long, samples - long, 8):
        ground[:, begin : begin + long] *= 1.0 + 20.0 * np.exp(-5.0 * np.arange(long, dtype=np.float32) / long)
    return ground.astype(np.int32)


def quake_trigger(s: Setup, *, pieces: int = 1, compiled: bool = False, pinned: bool = False) -> Step:
    """Four hours of two stations, three directions each, 100 counts a second; the first moments that exceed the threshold are printed by whoever calls."""
    samples, windows = s.size(1_440_000, 400), (s.size(100, 4), s.size(3000, 40), s.size(500, 10))
    draw = np.random.default_rng(0)
    hours = [torch.from_numpy(_trembling(draw, samples, windows[1])) for _ in range(2)]
    if pinned:
        hours = [s.pin(each) for each in hours]
    gain = torch.rand(6, device=s.device, dtype=torch.float64) * 1e-3
    shaken = s.compile(_shaken) if compiled else _shaken
    turn = [0]

    @torch.no_grad()
    def step() -> list[list[int]]:
        turn[0] += 1
        counts = hours[turn[0] % 2].to(s.device, non_blocking=pinned)
        over = shaken(counts, gain, windows, s.size(pieces, min(pieces, 4))) > 3.0
        begins = over[:, 1:] & ~over[:, :-1]
        return begins.nonzero()[:100].tolist()

    return step


PROGRAM = written(
    "quake_trigger",
    "Four hours of six seismograms, int32 from pageable memory: five running sums of 1,440,000 float64 each, ratios and kurtosis between them.",
    "running sums of 1200 pieces at once; torch.compile of the trigger; pinned memory and non_blocking",
    quake_trigger,
    {"small-grid": {"pieces": 1200}, "unfused-elementwise": {"compiled": True}, "memcpy": {"pinned": True}},
    gpu_bound=True,
)
