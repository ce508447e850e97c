"""SE-ResNeXt-26 of timm, training in bf16 autocast, NCHW, on 2 x 32 photos made in this process; five numbers are read."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _optimizer, _placed, _precision, _public


class _Moths(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Photos of a trap's screen in memory, cut and turned over by chance, as floats or (`raw`) as bytes."""

    def __init__(self, s: Setup, classes: int, raw: bool) -> None:
        drawn = np.random.default_rng(0)
        self.side, larger, self.raw = s.size(176, 64), s.size(192, 72), raw
        self.photos = torch.from_numpy(drawn.integers(0, 256, (s.size(512, 16), 3, larger, larger), dtype=np.uint8))
        self.labels = drawn.integers(0, classes, s.size(8192, 64)).tolist()
        self.room = larger - self.side
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        top, left = torch.randint(self.room + 1, (2,)).tolist()
        photo = self.photos[at % len(self.photos), :, top : top + self.side, left : left + self.side]
        if torch.rand(()) < 0.5:
            photo = photo.flip(-1)
        return (photo.contiguous() if self.raw else (photo.float() / 255 - self.mean) / self.std), self.labels[at]


def moth_traps(
    s: Setup, *, workers: int = 0, raw: bool = False, kept: bool = False, mean_at_once: bool = False, **how: Any
) -> Step:  # fmt: skip
    """A SE-ResNeXt learns moths by a tutorial's loop: two micro-batches a step, gradients clipped, a mean model, metrics by torch."""
    import timm

    way, classes, batch = How(**{"autocast": BF16, **how}), s.size(240, 7), s.size(32, 4)
    model: Any = timm.create_model("seresnext26d_32x4d", pretrained=False, num_classes=classes, drop_rate=0.1)
    model = _placed(s, way, model).train()
    mean_model = deepcopy(model).eval().requires_grad_(False)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    count = workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        _Moths(s, classes, raw), batch, shuffle=True, drop_last=True, num_workers=count, persistent_workers=count > 0,
        pin_memory=count > 0, prefetch_factor=4 if count else None,
    )  # fmt: skip
    mean, std = (255 * part.to(s.device) for part in (loader.dataset.mean, loader.dataset.std))  # type: ignore[attr-defined]
    means = [value for value in mean_model.state_dict().values() if value.is_floating_point()]
    values = [value for value in model.state_dict().values() if value.is_floating_point()]
    sums, log = torch.zeros(2, device=s.device), {"loss": 0.0, "right": 0.0, "norm": 0.0}

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    @torch.no_grad()
    def averaged() -> None:
        if mean_at_once:
            torch._foreach_lerp_(means, values, 0.001)
            return
        for kept_value, value in zip(mean_model.state_dict().values(), model.state_dict().values(), strict=True):
            if value.is_floating_point():
                kept_value.copy_(0.999 * kept_value + 0.001 * value)
            else:
                kept_value.copy_(value)

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        for _ in range(2):
            x, y = (part.to(s.device, non_blocking=workers > 0) for part in next(batches))
            if raw:
                x = (x.float() - mean) / std
            if way.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            with _casting(s, way):
                out = model(x)
                loss = F.cross_entropy(out, y, label_smoothing=0.1)
            (loss / 2).backward()
            right = (out.detach().argmax(1) == y).float().mean()
            if kept:
                sums.add_(torch.stack([loss.detach(), right]))
            else:
                log["loss"] += loss.item()
                log["right"] += right.item()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        if not kept:
            log["norm"] = norm.item()
        optimizer.step()
        schedule.step()
        averaged()

    return step


PROGRAM = _public(
    "moth_traps",
    "SE-ResNeXt-26 of timm, training in bf16 autocast, NCHW, on 2 x 32 photos made in this process; five numbers are read.",
    moth_traps,
    {},
    {
        "data-loading": {"workers": 8},
        "host-bound": {"raw": True},
        "sync-stall": {"kept": True},
        "memory-layout": {"channels_last": True},
        "optimizer-foreach": {"mean_at_once": True},
        "precision": {"tf32": True},
    },
)
