"""DLA-34 of timm, training in FP32 on 64 pictures of 32 under SGD(foreach=False): two numbers are read in each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import How, _casting, _images, _placed, _precision, _public, _timm


def dla_cifar(s: Setup, *, log: bool = True, **how: Any) -> Step:
    """DLA-34 on small pictures, as in a course: SGD goes tensor by tensor, the loss is added up on the host."""
    way = How(**how)
    images, labels = _images(s, way, 64, 32, 32), torch.randint(10, (s.size(64, 2),), device=s.device)
    model = _placed(s, way, _timm("dla34", num_classes=10)).train()
    options: dict[str, Any] = {"fused": True} if way.optimizer == "fused" else {"foreach": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, **options)
    total = [0.0, 0.0]

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        if log:
            total[0] += loss.item()
            total[1] += logits.max(1)[1].eq(labels).sum().item()

    return step


PROGRAM = _public(
    "dla_cifar",
    "DLA-34 of timm, training in FP32 on 64 pictures of 32 under SGD(foreach=False): two numbers are read in each step.",
    dla_cifar,
    {},
    {"optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"log": False}, "memory-layout": {"channels_last": True}},
)
