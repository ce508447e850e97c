"""Funnel Transformer of transformers, training in FP32 on 16 x 512 pageable words, attention written out; two reads."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _public


def _funnel_attention(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_inputs: Any, output_attentions: bool = False) -> tuple[Tensor]:
    """FunnelRelMultiheadAttention with its products in one kernel; what depends on places and on kinds of words is its mask."""
    positions, kinds, padding, cls_mask = attention_inputs
    batch, asked, _ = query.shape
    known, heads, size = key.shape[1], self.config.n_head, self.config.d_head
    q = self.q_head(query).view(batch, asked, heads, size) * self.scale
    k = self.k_head(key).view(batch, known, heads, size)
    v = self.v_head(value).view(batch, known, heads, size)
    bias = self.relative_positional_attention(positions, q, known, cls_mask) + self.relative_token_type_attention(kinds, q, cls_mask)
    if padding is not None:
        bias = bias - 1e6 * (1 - padding[:, None, None].to(bias.dtype))
    q = q + self.r_w_bias * self.scale
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    dropped = self.attention_dropout.p if self.training else 0.0
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=dropped, scale=1.0)
    out = self.hidden_dropout(self.post_proj(seen.transpose(1, 2).reshape(batch, asked, heads * size)))
    return (self.layer_norm(query + out),)


def bank_complaints(s: Setup, *, fused: bool = False, kept: bool = False, ahead: bool = False, **how: Any) -> Step:
    """A Funnel Transformer learns to which of twelve desks a complaint belongs, in FP32; loss and hits are read in each step."""
    from transformers import FunnelConfig, FunnelForSequenceClassification

    way, words, width, desks = How(**how), s.size(30_522, 101), s.size(768, 32), 12
    batch, length, heads = s.size(16, 2), s.size(512, 16), s.size(12, 2)
    config = FunnelConfig(
        vocab_size=words, block_sizes=[s.size(2, 1), s.size(2, 1), 1], d_model=width, n_head=heads, d_head=width // heads,
        d_inner=4 * width, num_labels=desks,
    )  # fmt: skip
    with s.device:
        model: Any = FunnelForSequenceClassification(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "FunnelRelMultiheadAttention":
                module.forward = MethodType(_funnel_attention, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    shelf = []
    for _ in range(8):
        ids = torch.randint(3, words, (batch, length))
        long = torch.randint(length // 2, length + 1, (batch, 1))
        mask = (torch.arange(length) < long).long()
        kinds = (torch.arange(length) >= long // 2).long()
        kinds[:, 0] = 2
        shelf.append((ids * mask, mask, kinds, torch.randint(desks, (batch,))))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in part) for part in shelf], s) if ahead else None
    turn, losses, hits, sums = 0, 0.0, 0, torch.zeros(2, device=s.device)

    def step() -> object:
        nonlocal turn, losses, hits
        _precision(way)
        ids, mask, kinds, labels = loader.next() if loader else (tensor.to(s.device) for tensor in shelf[turn % len(shelf)])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            logits = run(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        right = (logits.detach().argmax(-1) == labels).sum()
        if kept:
            sums[0] += loss.detach()
            sums[1] += right
            return sums
        losses += loss.item()
        hits += int(right.item())
        return losses, hits

    return step


PROGRAM = _public(
    "bank_complaints",
    "Funnel Transformer of transformers, training in FP32 on 16 x 512 pageable words, attention written out; two reads.",
    bank_complaints,
    {},
    {
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "unfused-attention": {"fused": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "optimizer-foreach": {"optimizer": "fused"},
        "sync-stall": {"kept": True},
        "memcpy": {"ahead": True},
    },
)
