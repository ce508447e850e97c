"""RT-DETR of transformers on one picture of 640 in bf16 autocast."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, How, _images, _public, inference


def rt_detr(s: Setup, **how: Any) -> Step:
    """RT-DETR with ResNet-18 on one picture of 640, without its losses."""
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        layer_type="basic", depths=[s.size(2, 1)] * 4, hidden_sizes=[64, 128, 256, 512], embedding_size=64,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone, backbone=None, use_pretrained_backbone=False, use_timm_backbone=False, encoder_in_channels=[128, 256, 512],
        d_model=s.size(256, 32), encoder_hidden_dim=s.size(256, 32), decoder_in_channels=[s.size(256, 32)] * 3, encoder_ffn_dim=s.size(1024, 32),
        decoder_ffn_dim=s.size(1024, 32), decoder_layers=s.size(3, 1), num_queries=s.size(300, 10), encoder_attention_heads=s.size(8, 2),
        decoder_attention_heads=s.size(8, 2), hidden_expansion=0.5,
    )  # fmt: skip
    way = How(**how)
    return inference(s, way, RTDetrForObjectDetection(config), {"pixel_values": _images(s, way, 1, 640, 64, way.dtype)[:1]})


PROGRAM = _public(
    "rtdetr_single",
    "RT-DETR of transformers on one picture of 640 in bf16 autocast.",
    rt_detr,
    {"autocast": BF16},
    {"dtype-casts": {"autocast": None, "dtype": BF16}, "graph-candidate": {"graph": True}, "memory-layout": {"channels_last": True}},
)
