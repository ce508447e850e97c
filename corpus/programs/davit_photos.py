"""DaViT of timm, training in bf16 autocast on 96 pictures, NCHW, gradients filled with zeros."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _images, _public, _timm, training


def davit(s: Setup, **how: Any) -> Step:
    """DaViT: attention in windows of 7 x 7, then attention between channels, a depthwise convolution in front of each part."""
    way = How(**how)
    small: dict[str, Any] = {"embed_dims": (8, 16, 32, 64), "num_heads": (1, 2, 4, 8), "depths": (1, 1, 1, 1)} if s.tiny else {}
    model = _timm("davit_tiny", num_classes=100, drop_path_rate=0.1, **small)
    images, labels = _images(s, way, 96, 224, 64, way.dtype), torch.randint(100, (s.size(96, 2),), device=s.device)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels, label_smoothing=0.1), weight_decay=0.05)


PROGRAM = _public(
    "davit_photos",
    "DaViT of timm, training in bf16 autocast on 96 pictures, NCHW, gradients filled with zeros.",
    davit,
    {"autocast": BF16, "zero": True},
    {
        "memory-layout": {"channels_last": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "dtype-casts": {"autocast": None, "dtype": BF16},
        "grad-zeroing": {"zero": False},
    },
)
