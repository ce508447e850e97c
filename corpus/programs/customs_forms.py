"""BROS of transformers, training in FP32 on 8 forms of 384 words, their boxes in the scores; AdamW by a loop, masks, two reads."""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _public


def _fused_boxes(self: Any, hidden_states: Tensor, bbox_pos_emb: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
    """BrosSelfAttention with its products in one kernel; what the boxes add to the scores goes in as the mask."""
    b, n, _width = hidden_states.shape
    q, k, v = (part(hidden_states).view(b, n, self.num_attention_heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
    boxes = bbox_pos_emb.view(n, n, b, -1).permute(2, 0, 1, 3)
    bias = torch.einsum("bnid,bijd->bnij", q, boxes) / math.sqrt(self.attention_head_size)
    if attention_mask is not None:
        bias = bias + attention_mask
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=self.dropout.p if self.training else 0.0)
    return out.transpose(1, 2).reshape(b, n, -1), None


def customs_forms(s: Setup, *, fused: bool = False, ahead: bool = False, masked: bool = False, **how: Any) -> Step:
    """BROS learns what each word of eight customs forms is from words and boxes, FP32; only words that begin a box count, two numbers are read."""
    from transformers import BrosConfig, BrosForTokenClassification

    way = How(**{"optimizer": "loop", **how})
    forms, length, words, fields, width = s.size(8, 2), s.size(384, 12), s.size(30_522, 101), s.size(27, 5), s.size(768, 128)
    config = BrosConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(6, 2), num_attention_heads=s.size(12, 2), intermediate_size=4 * width,
        num_labels=fields,
    )  # fmt: skip
    with s.device:
        model: Any = BrosForTokenClassification(config)
    for module in model.modules():
        if fused and type(module).__name__ == "BrosSelfAttention":
            module.forward = MethodType(_fused_boxes, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.01)
    pile = []
    for _ in range(6):
        corner = torch.rand(forms, length, 2) * 0.9
        boxes = torch.cat([corner, corner + 0.1 * torch.rand(forms, length, 2)], -1)
        there = (torch.arange(length) < torch.randint(length // 2, length + 1, (forms, 1))).long()
        first = (torch.rand(forms, length) < 0.6) & (there > 0)
        pile.append((torch.randint(3, words, (forms, length)), boxes, there, first, torch.randint(fields, (forms, length))))
    loader = Prefetcher([tuple(s.pin(part) for part in batch) for batch in pile], s) if ahead else None
    turn, shown, sums = 0, [0.0, 0.0], torch.zeros(2, device=s.device)

    def step() -> list[float]:
        nonlocal turn
        _precision(way)
        ids, boxes, there, first, labels = loader.next() if loader else (part.to(s.device) for part in pile[turn % len(pile)])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            logits = run(input_ids=ids, bbox=boxes, attention_mask=there).logits
        logits = logits.float()
        if masked:
            loss = F.cross_entropy(logits.flatten(0, 1), torch.where(first, labels, -100).flatten())
            right = ((logits.detach().argmax(-1) == labels) & first).sum() / first.sum()
        else:
            loss = F.cross_entropy(logits[first], labels[first])
            right = (logits.detach()[first].argmax(-1) == labels[first]).float().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if masked:
            sums.add_(torch.stack([loss.detach(), right]))
            if turn % 50 == 0:
                shown[:] = (sums / turn).tolist()
        else:
            shown[0] += 0.05 * (loss.item() - shown[0])
            shown[1] += 0.05 * (right.item() - shown[1])
        return shown

    return step


PROGRAM = _public(
    "customs_forms",
    "BROS of transformers, training in FP32 on 8 forms of 384 words, their boxes in the scores; AdamW by a loop, masks, two reads.",
    customs_forms,
    {},
    {
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "unfused-attention": {"fused": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "optimizer-foreach": {"optimizer": "fused"},
        "sync-stall": {"masked": True},
        "memcpy": {"ahead": True},
    },
)
