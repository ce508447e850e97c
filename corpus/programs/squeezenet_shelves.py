"""SqueezeNet of torchvision, training on 64 pictures that numpy changes in this process; two numbers are read in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _optimizer, _precision, _public, _vision

WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _loaded(s: Setup, data: Dataset[Any], batch: int, workers: bool) -> Iterator[Any]:
    options = WORKERS | {"pin_memory": s.cuda} if workers and s.cuda else {}
    return _without_end(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options))


class Shelves(Dataset[tuple[Tensor, int]]):
    """Photographs of a shop's shelves, cropped, turned and made lighter or darker by numpy."""

    def __init__(self, s: Setup) -> None:
        self.side = s.size(128, 64)
        self.photos = np.random.default_rng(0).integers(0, 256, (s.size(96, 8), self.side + 32, self.side + 32, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        top, left = rng.integers(32, size=2)
        photo = self.photos[index % len(self.photos), top : top + self.side, left : left + self.side].astype(np.float32) / 255
        if rng.random() < 0.5:
            photo = photo[:, ::-1]
        photo = np.clip((photo - photo.mean()) * rng.uniform(0.7, 1.3) + photo.mean() + rng.uniform(-0.1, 0.1), 0, 1)
        photo = (photo - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
        return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1), np.float32)), index % 40


def squeezenet(s: Setup, *, workers: bool = False, log: bool = True, **how: Any) -> Step:
    way = How(**how)
    model = _vision("squeezenet1_1", num_classes=40).to(s.device).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.SGD, momentum=0.9)
    batches = _loaded(s, Shelves(s), s.size(64, 2), workers)
    sums = [0.0, 0.0]

    def step() -> None:
        _precision(way)
        photos, labels = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(photos)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        if log:
            sums[0] += loss.item()
            sums[1] += (logits.argmax(1) == labels).sum().item()

    return step


PROGRAM = _public(
    "squeezenet_shelves",
    "SqueezeNet of torchvision, training on 64 pictures that numpy changes in this process; two numbers are read in each step.",
    squeezenet,
    {},
    {"data-loading": {"workers": True}, "sync-stall": {"log": False}, "precision": {"autocast": BF16}},
)
