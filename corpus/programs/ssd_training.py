"""SSD300 of torchvision on VGG-16, training in FP32 on 12 pictures from pageable memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, training


def ssd(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """Pictures come from the host one by one; the boxes of each are matched with 8732 of the model's own."""
    from torchvision.models.detection import ssd300_vgg16, ssdlite320_mobilenet_v3_large

    count, boxes = s.size(12, 2), 6
    pictures = [torch.rand(3, 300, 300) for _ in range(count)]
    if pinned:
        pictures = [s.pin(picture) for picture in pictures]
    corners = torch.rand(count, boxes, 2, 2, device=s.device).mul(150).cumsum(2).flatten(2) + torch.tensor([0.0, 0.0, 1.0, 1.0], device=s.device)
    targets = [{"boxes": box, "labels": torch.randint(1, 21, (boxes,), device=s.device)} for box in corners]

    def loss(model: Any) -> Tensor:
        losses = model([picture.to(s.device, non_blocking=pinned) for picture in pictures], targets)
        return sum(losses.values(), torch.zeros((), device=s.device))

    model = (ssdlite320_mobilenet_v3_large if s.tiny else ssd300_vgg16)(weights=None, weights_backbone=None, num_classes=21)
    return training(s, How(**how), model, loss, torch.optim.SGD, momentum=0.9)


PROGRAM = _public(
    "ssd_training",
    "SSD300 of torchvision on VGG-16, training in FP32 on 12 pictures from pageable memory.",
    ssd,
    {},
    {
        "memcpy": {"pinned": True},
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "memory-layout": {"channels_last": True},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
