"""CSRNet on 16 pieces of photographs, training in fp16 with a GradScaler, NCHW; pieces and bells are made in this process, sums are read in each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


class Trees(Dataset[tuple[np.ndarray, np.ndarray]]):
    """Pieces of photographs with a bell at each apple."""

    def __init__(self, photos: int, height: int, width: int, side: int) -> None:
        draw = np.random.default_rng(0)
        self.photos = draw.integers(0, 256, (photos, height, width, 3), dtype=np.uint8)
        self.apples = [np.stack([draw.integers(0, height, 800), draw.integers(0, width, 800)], 1) for _ in range(photos)]
        self.side = side
        line = np.arange(-7, 8)
        bell = np.exp(-(line[:, None] ** 2 + line**2) / 18.0)
        self.bell = (bell / bell.sum()).astype(np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(index)
        photo, side = draw.integers(len(self.photos)), self.side
        top, left = (draw.integers(0, size - side) for size in self.photos.shape[1:3])
        picture = self.photos[photo, top : top + side, left : left + side].astype(np.float32) / 255.0
        picture = np.clip((picture - 0.5) * draw.uniform(0.8, 1.2) + 0.5 + draw.uniform(-0.1, 0.1), 0.0, 1.0) ** draw.uniform(0.8, 1.25)
        picture = (picture - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
        density = np.zeros((side + 14, side + 14), np.float32)
        for y, x in self.apples[photo] - (top, left):
            if 0 <= y < side and 0 <= x < side:
                density[y : y + 15, x : x + 15] += self.bell
        density = density[7:-7, 7:-7].reshape(side // 8, 8, side // 8, 8).sum((1, 3))
        if draw.random() < 0.5:
            picture, density = picture[:, ::-1], density[:, ::-1]
        return np.ascontiguousarray(picture.transpose(2, 0, 1), dtype=np.float32), np.ascontiguousarray(density)[None]


def _counter(s: Setup) -> nn.Sequential:
    """CSRNet: the front of a VGG, then taps that lie apart."""
    inner, layers = 3, list[nn.Module]()
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512):
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        outer = s.size(width, width // 16)
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(inplace=True)]
        inner = outer
    for width in (512, 512, 512, 256, 128, 64):
        outer = s.size(width, width // 16)
        layers += [nn.Conv2d(inner, outer, 3, padding=2, dilation=2), nn.ReLU(inplace=True)]
        inner = outer
    return nn.Sequential(*layers, nn.Conv2d(inner, 1, 1))


def orchard_counts(s: Setup, *, workers: bool = False, last: bool = False, scaled: bool = True, read: bool = True) -> Step:
    """The loss and how many apples too many or too few are added up as each batch ends."""
    count, side = s.size(16, 2), s.size(256, 32)
    model = _counter(s).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    trees = Trees(s.size(6, 1), s.size(1200, 48), s.size(1600, 64), side)
    batches, sums = iter(DataLoader(trees, batch_size=count, **options)), [0.0, 0.0]

    def step() -> Tensor:
        pictures, density = (part.to(s.device, non_blocking=workers) for part in next(batches))
        if last:
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.float16 if scaled and s.cuda else BF16):
            seen = model(pictures)
        loss = F.mse_loss(seen.float(), density, reduction="sum") / count
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if read:
            sums[0] += loss.item()
            sums[1] += (seen.detach().float().sum((1, 2, 3)) - density.sum((1, 2, 3))).abs().mean().item()
        return loss.detach()

    return step


PROGRAM = written(
    "orchard_counts",
    "CSRNet on 16 pieces of photographs, training in fp16 with a GradScaler, NCHW; pieces and bells are made in this process, sums are read in each step.",
    "num_workers=8 and pin_memory; channels_last; bf16 without a scaler; sums not read",
    orchard_counts,
    {"data-loading": {"workers": True}, "memory-layout": {"last": True}, "amp-scaler-sync": {"scaled": False}, "sync-stall": {"read": False}},
)
