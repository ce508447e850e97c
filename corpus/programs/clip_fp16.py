"""CLIP's picture encoder in fp16, 64 pictures, attention written out over 197 patches."""

from __future__ import annotations

import torch

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _images, _workload, inference


def clip(s: Setup, how: How) -> Step:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        num_hidden_layers=s.size(8, 1), hidden_size=s.size(768, 32), intermediate_size=s.size(3072, 64), num_attention_heads=s.size(12, 2),
        image_size=s.size(224, 64), patch_size=16, attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, CLIPVisionModel(config), {"pixel_values": _images(s, how, 64, dtype=how.dtype)})


HALF, SDPA = torch.float16, "sdpa"


PROGRAM = _workload(
    "clip_fp16",
    "CLIP's picture encoder in fp16, 64 pictures, attention written out over 197 patches.",
    clip,
    How(dtype=HALF),
    unfused_attention=How(dtype=HALF, attention=SDPA),
    unfused_elementwise=How(dtype=HALF, compiled=COMPILED),
)
