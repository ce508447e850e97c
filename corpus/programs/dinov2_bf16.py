"""DINOv2 of transformers in bf16 on 64 pictures, attention written out over 257 patches."""

from __future__ import annotations

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, SDPA, How, _images, _workload, inference


def dinov2(s: Setup, how: How) -> Step:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        num_hidden_layers=s.size(6, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2), image_size=s.size(224, 56),
        attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, Dinov2Model(config), {"pixel_values": _images(s, how, 64, 224, 56, how.dtype)})


PROGRAM = _workload(
    "dinov2_bf16",
    "DINOv2 of transformers in bf16 on 64 pictures, attention written out over 257 patches.",
    dinov2,
    How(dtype=BF16),
    unfused_attention=How(dtype=BF16, attention=SDPA),
    unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
    memory_layout=How(dtype=BF16, channels_last=True),
)
