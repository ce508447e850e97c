"""EfficientViT of timm on 128 pictures, bf16 autocast over FP32 weights and pictures, NCHW."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, How, _images, _public, _timm, inference


def efficientvit(s: Setup, **how: Any) -> Step:
    """EfficientViT: depthwise convolutions and attention that is linear in the number of pixels."""
    way = How(**how)
    return inference(s, way, _timm("efficientvit_b1"), (_images(s, way, 128, 224, 64, way.dtype),))


PROGRAM = _public(
    "efficientvit_photos",
    "EfficientViT of timm on 128 pictures, bf16 autocast over FP32 weights and pictures, NCHW.",
    efficientvit,
    {"autocast": BF16},
    {"dtype-casts": {"autocast": None, "dtype": BF16}, "memory-layout": {"channels_last": True}, "graph-candidate": {"graph": True}},
)
