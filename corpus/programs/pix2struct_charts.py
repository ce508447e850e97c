"""Pix2Struct of transformers, training in FP32 on 8 charts that this process cuts up; the loss is read."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step
from workloads.public import BF16, How, _forever, _public, training


def _patches(pictures: Tensor, size: int, most: int) -> Tensor:
    """Pix2Struct's own way: as many whole patches as may be, each after its row and its column."""
    high, wide = pictures.shape[-2:]
    scale = math.sqrt(most * (size / high) * (size / wide))
    rows, columns = int(scale * high / size), int(scale * wide / size)
    small = F.interpolate(pictures.float(), (rows * size, columns * size), mode="bilinear", antialias=True, align_corners=False)
    small = (small - small.mean((1, 2, 3), keepdim=True)) / small.std((1, 2, 3), keepdim=True).clamp(min=1 / math.sqrt(small[0].numel()))
    cut = F.unfold(small, size, stride=size).transpose(1, 2)
    at = torch.arange(rows * columns, device=pictures.device)
    places = torch.stack([at // columns + 1, at % columns + 1], -1).float().expand(len(pictures), -1, -1)
    return F.pad(torch.cat([places, cut], -1), (0, 0, 0, most - rows * columns))


class Charts(Dataset[tuple[Tensor, Tensor]]):
    """Charts with what their tables say; they are cut into patches as they are read, or left as they are."""

    def __init__(self, count: int, high: int, wide: int, most: int, length: int, words: int, cut: bool) -> None:
        self.charts = torch.randint(256, (16, 3, high, wide), dtype=torch.uint8)
        self.tables = torch.randint(3, words, (64, length))
        self.count, self.most, self.cut = count, most, cut

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        chart = self.charts[at % len(self.charts)]
        return _patches(chart[None], 16, self.most)[0] if self.cut else chart, self.tables[at % len(self.tables)]


def pix2struct(s: Setup, *, workers: bool = False, there: bool = False, **how: Any) -> Step:
    """Pix2Struct learns to write a chart's table down: eight charts of 1024 x 1280 as 1024 patches of 16, and 64 pieces of words."""
    from transformers import Pix2StructConfig, Pix2StructForConditionalGeneration

    way, words, most, dim, inner = How(**how), s.size(50_244, 101), s.size(1024, 12), s.size(768, 32), s.size(2048, 64)
    layers, heads = s.size(6, 1), s.size(12, 2)
    config = Pix2StructConfig(
        vision_config={
            "hidden_size": dim, "patch_embed_hidden_size": 768, "d_ff": inner, "d_kv": dim // heads, "num_hidden_layers": layers,
            "num_attention_heads": heads, "seq_len": s.size(4096, 64),
        },
        text_config={
            "vocab_size": words, "hidden_size": dim, "d_kv": dim // heads, "d_ff": inner, "num_layers": layers, "num_heads": heads,
            "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "use_cache": False,
        },
    )  # fmt: skip
    config.decoder_start_token_id, config.pad_token_id = 0, 0
    options, batches = _forever(s, workers and s.cuda)
    data = Charts(s.size(1 << 14, 64), s.size(1024, 96), s.size(1280, 128), most, s.size(64, 6), words, not there)
    stream = batches(DataLoader(data, s.size(8, 2), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        charts, tables = (part.to(s.device, non_blocking=workers) for part in next(stream))
        patches = _patches(charts, 16, most) if there else charts
        return model(flattened_patches=patches, attention_mask=(patches.sum(-1) != 0).float(), labels=tables).loss  # type: ignore[no-any-return]

    return training(s, way, Pix2StructForConditionalGeneration(config), loss)


PROGRAM = _public(
    "pix2struct_charts",
    "Pix2Struct of transformers, training in FP32 on 8 charts that this process cuts up; the loss is read.",
    pix2struct,
    {"read_loss": True},
    {"data-loading": {"workers": True}, "host-bound": {"there": True}, "sync-stall": {"read_loss": False}, "precision": {"autocast": BF16}},
)
