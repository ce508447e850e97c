"""UperNet on ConvNeXt of transformers, 4 pictures of 512, FP32, NCHW."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, How, _images, _public, inference


def street_scenes(s: Setup, **how: Any) -> Step:
    """UperNet on ConvNeXt: a wide pyramid of convolutions after blocks that turn NCHW for their linear layers."""
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    backbone = ConvNextConfig(
        hidden_sizes=[s.size(96, 8) * 2**k for k in range(4)], depths=[s.size(3, 1), s.size(3, 1), s.size(6, 1), s.size(3, 1)],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = UperNetConfig(backbone_config=backbone, hidden_size=s.size(512, 16), use_auxiliary_head=False, num_labels=150)
    way = How(**how)
    return inference(s, way, UperNetForSemanticSegmentation(config), {"pixel_values": _images(s, way, 4, 512, 64)})


PROGRAM = _public(
    "upernet_scenes",
    "UperNet on ConvNeXt of transformers, 4 pictures of 512, FP32, NCHW.",
    street_scenes,
    {},
    {"memory-layout": {"channels_last": True}, "precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}},
)
