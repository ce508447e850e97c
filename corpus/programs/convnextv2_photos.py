"""ConvNeXt V2 of timm on 64 pictures, FP32, NCHW."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _images, _public, _timm, inference


def convnextv2(s: Setup, **how: Any) -> Step:
    way = How(**how)
    return inference(s, way, _timm("convnextv2_nano"), (_images(s, way, 64, 224, 64),))


PROGRAM = _public(
    "convnextv2_photos",
    "ConvNeXt V2 of timm on 64 pictures, FP32, NCHW.",
    convnextv2,
    {},
    {"precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "unfused-elementwise": {"compiled": COMPILED}},
)
