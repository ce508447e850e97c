"""MobileViT of timm, training in fp16 with a GradScaler on 64 pictures, NCHW, gradients filled with zeros."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, HALF, How, _images, _public, _timm, training


def mobilevit(s: Setup, **how: Any) -> Step:
    way = How(**how)
    images, labels = _images(s, way, 64, 256, 64), torch.randint(1000, (s.size(64, 2),), device=s.device)
    images = images[: len(labels)]
    model = _timm("mobilevit_xxs" if s.tiny else "mobilevit_xs")
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


PROGRAM = _public(
    "mobilevit_scaler",
    "MobileViT of timm, training in fp16 with a GradScaler on 64 pictures, NCHW, gradients filled with zeros.",
    mobilevit,
    {"autocast": HALF, "scaler": True, "zero": True},
    {
        "memory-layout": {"channels_last": True},
        "amp-scaler-sync": {"optimizer": "fused"},
        "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False},
        "grad-zeroing": {"zero": False},
    },
)
