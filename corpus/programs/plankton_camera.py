"""A residual network on 64 pictures, fp16 with a GradScaler, NCHW; a loader without workers decompresses, shrinks and turns them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _drift(draw: np.random.Generator, side: int) -> bytes:
    """A creature as a camera keeps it: a few round shadows on bright water, compressed."""
    down, right = np.mgrid[0:side, 0:side].astype(np.float32) / side
    picture = np.full((side, side), 220.0, dtype=np.float32)
    for _ in range(6):
        y, x, r = draw.random(3)
        picture -= 60.0 * np.exp(-((down - y) ** 2 + (right - x) ** 2) / (0.003 + 0.02 * r))
    picture += draw.integers(-3, 4, (side, side))
    return zlib.compress(picture.clip(0, 255).astype(np.uint8).tobytes(), 1)


class Water(Dataset[tuple[np.ndarray, int]]):
    def __init__(self, kept: int, side: int, smaller: int) -> None:
        draw = np.random.default_rng(0)
        self.side, self.smaller = side, smaller
        self.bottles = [_drift(draw, side) for _ in range(kept)]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        draw = np.random.default_rng(index)
        shadow = np.frombuffer(zlib.decompress(self.bottles[index % len(self.bottles)]), dtype=np.uint8).reshape(self.side, self.side)
        times = self.side // self.smaller
        small = shadow.reshape(self.smaller, times, self.smaller, times).mean((1, 3), dtype=np.float32) / 255.0
        small = np.rot90(small, int(draw.integers(4)))
        if draw.random() < 0.5:
            small = small[:, ::-1]
        small = (small - small.mean()) * (0.8 + 0.4 * draw.random()) / (small.std() + 1e-3)
        small = small + draw.normal(0.0, 0.05, small.shape)
        return np.ascontiguousarray(small[None], dtype=np.float32), index % 103


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        thin = outer // 4
        self.body = nn.Sequential(
            nn.Conv2d(inner, thin, 1, bias=False), nn.BatchNorm2d(thin), nn.ReLU(inplace=True),
            nn.Conv2d(thin, thin, 3, stride, 1, bias=False), nn.BatchNorm2d(thin), nn.ReLU(inplace=True),
            nn.Conv2d(thin, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        same = inner == outer and stride == 1
        self.skip: nn.Module = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def plankton_camera(s: Setup, *, workers: bool = False, scaled: bool = True, last: bool = False) -> Step:
    count, width = s.size(64, 3), s.size(64, 4)
    stages = [(width, 4 * width, 1)] + [(4 * width * 2**level, 8 * width * 2**level, 2) for level in range(3)]
    blocks = [Bottleneck(*((inner, outer, stride) if not turn else (outer, outer, 1))) for inner, outer, stride in stages for turn in range(s.size(3, 1))]
    model = nn.Sequential(nn.Conv2d(1, width, 5, 2, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32 * width, 103)).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    kind = torch.float16 if scaled and s.cuda else BF16
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches = iter(DataLoader(Water(s.size(64, 3), s.size(384, 64), s.size(128, 16)), batch_size=count, **options))

    def step() -> Tensor:
        pictures, names = (part.to(s.device, non_blocking=workers) for part in next(batches))
        if last:
            pictures = pictures.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, kind):
            loss = F.cross_entropy(model(pictures), names, label_smoothing=0.1)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


PROGRAM = written(
    "plankton_camera",
    "A residual network on 64 pictures, fp16 with a GradScaler, NCHW; a loader without workers decompresses, shrinks and turns them.",
    "num_workers=8, persistent_workers and pin_memory; bf16 without a scaler; channels_last",
    plankton_camera,
    {"data-loading": {"workers": True}, "amp-scaler-sync": {"scaled": False}, "memory-layout": {"last": True}},
)
