"""Vibrations of 32 machines, FP32: running sums of long rows, indicators, an autoencoder with weight norm; limits are asked."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from workloads.base import Prefetcher, Setup, Step, written

BF16, FP16 = torch.bfloat16, torch.float16


def levelled(x: Tensor) -> Tensor:
    """Without the sensor's offset and in units of its spread; spikes of the cable are cut."""
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)
    return x.clamp(-12.0, 12.0)


def running_sum(x: Tensor, parts: int) -> Tensor:
    if parts == 1:
        return x.cumsum(-1)
    inside = x.unflatten(-1, (parts, -1)).cumsum(-1)
    total = inside[..., -1]
    return (inside + (total.cumsum(-1) - total)[..., None]).flatten(-2)


def running_least(x: Tensor, parts: int) -> Tensor:
    if parts == 1:
        return x.cummin(-1).values
    inside = x.unflatten(-1, (parts, -1)).cummin(-1).values
    least = inside[..., -1].cummin(-1).values
    before = F.pad(least[..., :-1], (1, 0), value=float("inf"))
    return torch.minimum(inside, before[..., None]).flatten(-2)


def drifted(loud: Tensor, slack: float, parts: int) -> tuple[Tensor, Tensor]:
    """How far each machine's loudness has gone up and down (CUSUM)."""
    unusual = (loud - loud.mean(-1, keepdim=True)) / loud.std(-1, keepdim=True)
    up, down = running_sum(unusual - slack, parts), running_sum(-unusual - slack, parts)
    return up - running_least(up, parts), down - running_least(down, parts)


def shapes(x: Tensor) -> Tensor:
    """Indicators of wear in each window: crest, kurtosis, skewness, shape, impulse and margin."""
    mean = x.mean(-1, keepdim=True)
    away = x - mean
    spread = away.square().mean(-1).sqrt() + 1e-6
    strong = x.square().mean(-1).sqrt() + 1e-6
    peak, size = x.abs().amax(-1), x.abs().mean(-1) + 1e-6
    kurtosis = (away / spread[..., None]).pow(4).mean(-1)
    skewness = (away / spread[..., None]).pow(3).mean(-1)
    margin = peak / (x.abs() + 1e-6).sqrt().mean(-1).square()
    return torch.stack([peak / strong, kurtosis, skewness.abs(), strong / size, peak / size, margin])


def misfit(windows: Tensor, again: Tensor) -> Tensor:
    wrong = (windows - again).abs()
    wrong = torch.where(wrong < 1.0, 0.5 * wrong.square(), wrong - 0.5)
    return wrong.mean(-1) / (windows.square().mean(-1) + 1e-3)


class Memory(nn.Module):
    """An autoencoder of windows, taught when all machines were new."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            weight_norm(nn.Conv1d(1, width, 16, 4, 6)), nn.ELU(),
            weight_norm(nn.Conv1d(width, 2 * width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.Conv1d(2 * width, 4 * width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.ConvTranspose1d(4 * width, 2 * width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.ConvTranspose1d(2 * width, width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.ConvTranspose1d(width, 1, 8, 4, 2)),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x[:, None])[:, 0]


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


def bearing_streams(
    s: Setup,
    *,
    ahead: bool = False,
    divided: bool = False,
    compiled: bool = False,
    folded: bool = False,
    autocast: bool = False,
    asked: bool = True,
) -> Step:
    """Inference in FP32 with TF32 convolutions on five seconds of 32 machines; nine limits are asked for one after the other."""
    machines, length, window = s.size(32, 2), s.size(131_072, 1024), s.size(2048, 128)
    parts, names = s.size(256, 8) if divided else 1, ("crest", "kurtosis", "skewness", "shape", "impulse", "margin", "up", "down", "memory")
    limits = dict(zip(names, (40.0, 900.0, 90.0, 9.0, 90.0, 120.0, 1e6, 1e6, 50.0), strict=True))
    with s.device:
        model = Memory(s.size(32, 4)).eval()
        pitch = torch.linspace(0.0, 12_800.0, length // 2 + 1)
        band = 2.0 * torch.sigmoid((pitch - 500.0) / 50.0) * torch.sigmoid((10_000.0 - pitch) / 200.0)
    if folded:
        for layer in model.modules():
            if parametrize.is_parametrized(layer, "weight"):
                parametrize.remove_parametrizations(layer, "weight")
    level, shape, miss = (s.compile(f, dynamic=False) if compiled else f for f in (levelled, shapes, misfit))
    remember = s.compile(model, dynamic=False) if compiled else model
    rng = np.random.default_rng(11)
    chunks = [rng.standard_normal((machines, length), dtype=np.float32) for _ in range(4)]
    queue = Prefetcher([(s.pin(torch.from_numpy(chunk)),) for chunk in chunks], s) if ahead else None
    later, turn = None if asked else Later((2, len(names) + 1), s), counter()

    @torch.no_grad()
    def step() -> list[tuple[str, int]]:
        torch.set_float32_matmul_precision("high")
        x = queue.next()[0] if queue else torch.from_numpy(chunks[next(turn) % len(chunks)]).to(s.device)
        whole = torch.isfinite(x).all()
        if asked and not whole:
            raise ValueError("a sensor is broken")
        analytic = torch.fft.ifft(torch.fft.rfft(level(x)) * band, n=length)
        sound, loud = analytic.real, analytic.abs()
        up, down = drifted(loud, 0.25, parts)
        windows = sound.unfold(-1, window, window // 2).flatten(0, 1)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again = remember(windows)
        found = [*shape(windows), up.amax(-1), down.amax(-1), miss(windows, again.float())]
        alarms = []
        if asked:
            for name, values in zip(names, found, strict=True):
                if values.max() > limits[name]:
                    alarms.append((name, int(values.argmax())))
            return alarms
        most = [torch.stack([values.max(), values.argmax().float()]) for values in found]
        most.append(torch.stack([whole.float(), whole.float()]))
        highest, where = later.put(torch.stack(most, 1))
        if later.turn > 1 and not highest[-1]:
            raise ValueError("a sensor is broken")
        return [(name, int(where[n])) for n, name in enumerate(names) if highest[n] > limits[name]]

    return step


PROGRAM = written(
    "bearing_streams",
    "Vibrations of 32 machines, FP32: running sums of long rows, indicators, an autoencoder with weight norm; limits are asked.",
    "pinned chunks ahead; rows divided; torch.compile; weights folded once; bf16 autocast; limits are read a step later",
    bearing_streams,
    {
        "memcpy": {"ahead": True},
        "small-grid": {"divided": True},
        "unfused-elementwise": {"compiled": True},
        "weight-norm": {"folded": True},
        "precision/bf16": {"autocast": True},
        "sync-stall": {"asked": False},
    },
)
