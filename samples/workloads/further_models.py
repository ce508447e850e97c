"""Public models that were predicted before any of their fixes was timed; each fix alone, and some are known to gain nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .base import Setup, Step
from .public_models import (
    BF16,
    COMPILED,
    GRAPHS,
    How,
    _graph,
    _images,
    _timm,
    _tokens,
    _vision,
    _workload,
    classifier_inference,
    classifier_training,
    inference,
    training,
)


def clip(s: Setup, how: How) -> Step:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        num_hidden_layers=s.size(8, 1), hidden_size=s.size(768, 32), intermediate_size=s.size(3072, 64), num_attention_heads=s.size(12, 2),
        image_size=s.size(224, 64), patch_size=16, attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, CLIPVisionModel(config), {"pixel_values": _images(s, how, 64, dtype=how.dtype)})


def segformer(s: Setup, how: How) -> Step:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return inference(s, how, SegformerForSemanticSegmentation(SegformerConfig()), {"pixel_values": _images(s, how, 8, 512)})


def roberta(s: Setup, how: How) -> Step:
    from transformers import RobertaConfig, RobertaForMaskedLM

    words = s.size(50265, 101)
    config = RobertaConfig(
        vocab_size=words, num_hidden_layers=s.size(4, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation=how.attention,
    )  # fmt: skip
    ids = _tokens(s, 16, 256, words)
    return training(s, how, RobertaForMaskedLM(config), lambda model: model(input_ids=ids, labels=ids).loss)


def gin(s: Setup, how: How) -> Step:
    from torch_geometric.nn.models import GIN

    x, edge, labels = _graph(s, 3000, 12000, 64)
    return training(s, how, GIN(x.shape[1], s.size(64, 16), 5, 7), lambda model: F.cross_entropy(model(x, edge), labels), torch.optim.Adam)


def _infer(batch: int, name: str, timm: bool = False) -> Any:
    return partial(classifier_inference, lambda _: (_timm if timm else _vision)(name), batch, 224, 64)


HALF, SDPA = torch.float16, "sdpa"
MIXER = partial(classifier_training, lambda _: _timm("mixer_s16_224"), 64, 224, 224)

WORKLOADS = (
    _workload(
        "vgg_fp32", "VGG-16 of torchvision, FP32 inference.", _infer(32, "vgg16"), How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), memory_layout=How(channels_last=True),
        unfused_elementwise=How(compiled=COMPILED),
    ),
    _workload(
        "poolformer_bf16", "PoolFormer-S12 of timm, bf16: group norms, which take NCHW alone.", _infer(64, "poolformer_s12", True), How(dtype=BF16),
        unfused_elementwise=How(dtype=BF16, compiled=COMPILED), memory_layout=How(dtype=BF16, channels_last=True),
    ),
    _workload(
        "regnet_single", "RegNetX-400MF of torchvision on one image: launches are the bound.", _infer(1, "regnet_x_400mf"), How(),
        launch_gap=How(compiled=GRAPHS), graph_candidate=How(graph=True), precision=How(autocast=BF16), memory_layout=How(channels_last=True),
    ),
    _workload(
        "clip_fp16", "CLIP's picture encoder in fp16, 64 pictures, attention written out over 197 patches.", clip, How(dtype=HALF),
        unfused_attention=How(dtype=HALF, attention=SDPA), unfused_elementwise=How(dtype=HALF, compiled=COMPILED),
    ),
    _workload(
        "segformer_fp32", "SegFormer of transformers, inference in FP32 on 8 pictures of 512.", segformer, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
    ),
    _workload(
        "mixer_fp32", "MLP-Mixer-S of timm, training in FP32.", MIXER, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
        optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "roberta_fp32", "RoBERTa's masked language model, training, FP32 products, 50265 words.", roberta, How(attention=SDPA),
        precision=How(attention=SDPA, autocast=BF16), precision__tf32=How(attention=SDPA, tf32=True),
        unfused_elementwise=How(attention=SDPA, compiled=COMPILED), optimizer_foreach=How(attention=SDPA, optimizer="fused"),
    ),
    _workload(
        "gin_small", "GIN of torch_geometric on a graph of 3,000 nodes: launches are the bound.", gin, How(),
        optimizer_foreach=How(optimizer="fused"), precision=How(autocast=BF16), launch_gap=How(optimizer="fused", compiled=COMPILED),
    ),
)  # fmt: skip
