"""VOLO of timm, bf16 autocast over FP32 weights, on 48 pageable pictures and their mirrors; attention written out, 96 reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step, capture
from workloads.public import BF16, COMPILED, How, _call, _casting, _placed, _precision, _public

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def veneer_species(
    s: Setup, *, fused_attention: bool = False, ahead: bool = False, at_once: bool = False, graphed: bool = False, **how: Any
) -> Step:  # fmt: skip
    """VOLO names the wood of 48 sheets of veneer in BF16 autocast, as they lie and mirrored; the best three of each are listed."""
    from timm.models.volo import VOLO

    way, batch, side, species = How(**{"autocast": BF16, **how}), s.size(48, 2), s.size(224, 64), s.size(460, 11)
    wide = s.size(384, 32)
    with s.device:
        model: Any = VOLO(
            [1, 1, 1, 1] if s.tiny else [2, 2, 4, 1], img_size=side, num_classes=species, stem_hidden_dim=s.size(64, 8),
            embed_dims=[s.size(192, 16), wide, wide, wide], num_heads=[s.size(6, 2), *3 * [s.size(12, 2)]],
        )  # fmt: skip
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused_attention
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    sheets = [torch.randint(256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    loader = Prefetcher([(s.pin(sheet),) for sheet in sheets], s) if ahead else None
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in (MEAN, STD))
    held, chances = torch.zeros_like(sheets[0], device=s.device), torch.zeros(batch, species, device=s.device)
    turn = 0

    def named(sheet: Tensor) -> Tensor:
        x = ((sheet.float() / 255 - mean) / std).to(way.dtype or torch.float32)
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            logits = run(x).float()
            logits = logits + run(x.flip(3)).float()
        return (logits / 2).softmax(-1)

    @torch.no_grad()
    def replayed() -> None:
        chances.copy_(named(held))

    _precision(way)
    replay = capture(replayed, s) if graphed else replayed

    @torch.no_grad()
    def step() -> list[tuple[list[int], list[float]]]:
        nonlocal turn
        _precision(way)
        sheet = loader.next()[0] if loader else sheets[turn % 4].to(s.device)
        turn += 1
        if graphed:
            held.copy_(sheet)
            replay()
            found = chances
        else:
            found = named(sheet)
        if at_once:
            best = found.topk(3)
            rows = torch.cat([best.indices.float(), best.values], 1).tolist()
            return [([int(kind) for kind in row[:3]], row[3:]) for row in rows]
        names = []
        for row in found:
            best = row.topk(3)
            names.append((best.indices.tolist(), best.values.tolist()))
        return names

    return step


PROGRAM = _public(
    "veneer_species",
    "VOLO of timm, bf16 autocast over FP32 weights, on 48 pageable pictures and their mirrors; attention written out, 96 reads.",
    veneer_species,
    {},
    {
        "dtype-casts": {"autocast": None, "dtype": BF16},
        "unfused-attention": {"fused_attention": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "memory-layout": {"channels_last": True},
        "graph-candidate": {"graphed": True},
        "memcpy": {"ahead": True},
        "sync-stall": {"at_once": True},
    },
)
