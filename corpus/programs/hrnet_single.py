"""HRNet of timm on one picture, FP32: hundreds of small convolutions."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, How, _images, _public, _timm, inference


def high_resolution(s: Setup, **how: Any) -> Step:
    """Four resolutions side by side, mixed with one another again and again: hundreds of small convolutions."""
    way = How(**how)
    return inference(s, way, _timm("hrnet_w18_small"), (_images(s, way, 1, 224, 64)[:1],))


PROGRAM = _public(
    "hrnet_single",
    "HRNet of timm on one picture, FP32: hundreds of small convolutions.",
    high_resolution,
    {},
    {"graph-candidate": {"graph": True}, "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}},
)
