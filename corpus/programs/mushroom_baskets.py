"""Twins-SVT of timm, training in fp16 autocast with a scaler on 96 mixed pageable photos, attention written out; a read."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, HALF, How, _call, _casting, _optimizer, _placed, _precision, _public, _timm

COLOURS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _preparing(s: Setup) -> Callable[[Tensor], Tensor]:
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in COLOURS)
    return lambda pictures: (pictures.float() / 255 - mean) / std


def _windows_at_once(self: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
    """LocallyGroupedAttn of timm with its products in one kernel, all windows as one batch."""
    (batch, many, width), (high, wide), side = x.shape, size, self.ws
    x = F.pad(x.view(batch, high, wide, width), (0, 0, 0, -wide % side, 0, -high % side))
    rows, columns = x.shape[1] // side, x.shape[2] // side
    x = x.view(batch, rows, side, columns, side, width).transpose(2, 3)
    q, k, v = self.qkv(x).reshape(-1, side * side, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, rows, columns, side, side, width).transpose(2, 3)
    x = x.reshape(batch, rows * side, columns * side, width)[:, :high, :wide].reshape(batch, many, width)
    return self.proj(x)  # type: ignore[no-any-return]


def mushroom_baskets(
    s: Setup, *, fused: bool = False, ahead: bool = False, kept: bool = False, kinds: int = 1307, **how: Any
) -> Step:  # fmt: skip
    """Twins-SVT learns 1307 mushrooms from 96 mixed photos in FP16 autocast with a scaler and clipped gradients; the loss is read."""
    way = How(**{"autocast": HALF if s.cuda else BF16, "scaler": True, **how})
    batch, side, known = s.size(96, 4), s.size(224, 64), s.size(1307, 11)
    shape: dict[str, Any] = {"depths": [1, 1, 1, 1], "embed_dims": [16, 16, 32, 32], "num_heads": [1, 1, 2, 2]} if s.tiny else {"depths": [2, 2, 6, 2]}
    model: Any = _timm("twins_svt_small", num_classes=s.size(kinds, 16), img_size=side, drop_path_rate=0.1, **shape)
    for module in model.modules():
        kind = type(module).__name__
        if kind == "LocallyGroupedAttn" and fused:
            module.forward = MethodType(_windows_at_once, module)
        if kind in ("LocallyGroupedAttn", "GlobalSubSampleAttn"):
            module.fused_attn = fused
    model = _placed(s, way, model).train()
    run, optimizer = _call(s, way, model), _optimizer(way, model.parameters(), weight_decay=0.05)
    scaler = torch.amp.GradScaler(s.device.type, enabled=way.scaler and s.cuda)
    baskets = [(torch.randint(256, (batch, 3, side, side), dtype=torch.uint8), torch.randint(known, (batch,))) for _ in range(4)]
    loader = Prefetcher([(s.pin(photos), s.pin(names)) for photos, names in baskets], s) if ahead else None
    prepared, chance = _preparing(s), np.random.default_rng(0)
    turn, shown = 0, 0.0

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        photos, names = loader.next() if loader else (part.to(s.device) for part in baskets[turn % 4])
        share = float(chance.beta(0.8, 0.8))
        x = prepared(photos)
        x = share * x + (1 - share) * x.flip(0)
        optimizer.zero_grad()
        with _casting(s, way):
            told = run(x)
            loss = share * F.cross_entropy(told, names) + (1 - share) * F.cross_entropy(told, names.flip(0))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        if not kept or turn % 50 == 0:
            shown = loss.item()
        turn += 1
        return shown

    return step


PROGRAM = _public(
    "mushroom_baskets",
    "Twins-SVT of timm, training in fp16 autocast with a scaler on 96 mixed pageable photos, attention written out; a read.",
    mushroom_baskets,
    {},
    {
        "amp-scaler-sync": {"optimizer": "fused"},
        "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False},
        "unfused-attention": {"fused": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "memcpy": {"ahead": True},
        "sync-stall": {"kept": True},
        "gemm-alignment": {"kinds": 1344},
    },
)
