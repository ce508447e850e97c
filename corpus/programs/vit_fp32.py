"""ViT base of transformers, FP32, 64 images, attention written out."""

from __future__ import annotations

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _images, _workload, inference


def vit_hf(s: Setup, how: How) -> Step:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=s.size(6, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), image_size=s.size(224, 64), attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, ViTModel(config), {"pixel_values": _images(s, how, 64)})


PROGRAM = _workload(
    "vit_fp32",
    "ViT base of transformers, FP32, 64 images, attention written out.",
    vit_hf,
    How(),
    precision=How(autocast=BF16),
    precision__tf32=How(tf32=True),
    unfused_attention=How(attention="sdpa"),
    unfused_elementwise=How(compiled=COMPILED),
)
