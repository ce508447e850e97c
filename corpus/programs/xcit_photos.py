"""XCiT of timm on 128 pictures, fp16 autocast over FP32 weights and pictures: attention between channels."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import COMPILED, HALF, How, _images, _public, _timm, inference


def xcit(s: Setup, **how: Any) -> Step:
    """XCiT: attention between channels, and small depthwise convolutions of the same words as pictures."""
    way = How(**how)
    model = _timm("xcit_tiny_12_p16_224" if s.tiny else "xcit_small_12_p16_224", **({"depth": 1, "img_size": 64} if s.tiny else {}))
    return inference(s, way, model, (_images(s, way, 128, 224, 64, way.dtype),))


PROGRAM = _public(
    "xcit_photos",
    "XCiT of timm on 128 pictures, fp16 autocast over FP32 weights and pictures: attention between channels.",
    xcit,
    {"autocast": HALF},
    {
        "unfused-elementwise": {"compiled": COMPILED},
        "dtype-casts": {"autocast": None, "dtype": HALF},
        "graph-candidate": {"graph": True},
        "memory-layout": {"channels_last": True},
    },
)
