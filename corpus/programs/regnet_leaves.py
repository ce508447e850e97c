"""RegNetY of timm, training in fp16 with a GradScaler on 64 pictures from pageable memory, NCHW; gradients are zeroed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, HALF, How, _public, _timm, training


def regnet(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """RegNetY learns from 64 pictures of leaves that come as floats."""
    way, count, side = How(**how), s.size(64, 2), s.size(224, 64)
    batch = torch.rand(count, 3, side, side), torch.randint(100, (count,))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Callable[[Tensor], Tensor]) -> Tensor:
        pictures, labels = loader.next() if loader else (part.to(s.device) for part in batch)
        return F.cross_entropy(model(pictures.contiguous(memory_format=torch.channels_last) if way.channels_last else pictures), labels)

    return training(s, way, _timm("regnety_002", num_classes=100), loss, torch.optim.SGD, momentum=0.9, weight_decay=5e-5)


PROGRAM = _public(
    "regnet_leaves",
    "RegNetY of timm, training in fp16 with a GradScaler on 64 pictures from pageable memory, NCHW; gradients are zeroed.",
    regnet,
    {"autocast": HALF, "scaler": True, "zero": True},
    {
        "memcpy": {"pinned": True},
        "amp-scaler-sync": {"autocast": BF16, "scaler": False},
        "grad-zeroing": {"zero": False},
        "launch-gap": {"compiled": COMPILED},
        "memory-layout": {"channels_last": True},
    },
)
