"""S3D of torchvision, training in FP32 on 10 films of 16 pictures from pageable memory, NCDHW; the loss is read in each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, How, _public, training


def s3d(s: Setup, *, pinned: bool = False, nearest: bool = False, **how: Any) -> Step:
    """S3D learns what is done in ten films of 16 pictures: convolutions over the picture, then over time."""
    from torchvision.models.video import s3d as build

    films, kinds = torch.rand(s.size(10, 2), 3, 16, s.size(224, 32), s.size(224, 32)), s.size(400, 5)
    labels = torch.randint(kinds, (len(films),))
    loader = Prefetcher([(s.pin(films), s.pin(labels))], s) if pinned else None
    model = build(weights=None, num_classes=kinds)
    if s.tiny:
        model.avgpool = nn.AdaptiveAvgPool3d(1)
    if nearest:
        model = model.to(memory_format=torch.channels_last_3d)

    def loss(model: Any) -> Tensor:
        seen, done = loader.next() if loader else (films.to(s.device), labels.to(s.device))
        if nearest:
            seen = seen.contiguous(memory_format=torch.channels_last_3d)
        return F.cross_entropy(model(seen), done)

    return training(s, How(**how), model, loss, torch.optim.SGD, momentum=0.9, weight_decay=1e-4)


PROGRAM = _public(
    "s3d_films",
    "S3D of torchvision, training in FP32 on 10 films of 16 pictures from pageable memory, NCDHW; the loss is read in each step.",
    s3d,
    {"read_loss": True},
    {"precision": {"autocast": BF16}, "memory-layout": {"nearest": True}, "memcpy": {"pinned": True}, "sync-stall": {"read_loss": False}},
)
