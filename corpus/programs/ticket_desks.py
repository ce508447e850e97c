"""RemBERT of transformers, training in fp16 autocast with a scaler on 16 x 256 pageable words, attention written out; two reads."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, HALF, How, _call, _casting, _optimizer, _placed, _public


def _ticket_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """RemBertSelfAttention with its products in one kernel."""
    batch, length, _width = hidden_states.shape
    q, k, v = (
        layer(hidden_states).view(batch, length, self.num_attention_heads, self.attention_head_size).transpose(1, 2)
        for layer in (self.query, self.key, self.value)
    )
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, dropout_p=self.dropout.p if self.training else 0.0)
    return seen.transpose(1, 2).reshape(batch, length, self.all_head_size), None


def ticket_desks(s: Setup, *, fused: bool = False, kept: bool = False, ahead: bool = False, **how: Any) -> Step:
    """RemBERT learns in FP16 autocast with a scaler which of 24 desks a ticket belongs to; gradients are clipped, loss and hits are read."""
    from transformers import RemBertConfig, RemBertForSequenceClassification

    way = How(**{"autocast": HALF, "scaler": True, "zero": True, **how})
    words, desks, batch, length = s.size(250_300, 101), 24, s.size(16, 2), s.size(256, 16)
    config = RemBertConfig(
        vocab_size=words, hidden_size=s.size(1152, 32), num_hidden_layers=s.size(5, 1), num_attention_heads=s.size(18, 2),
        input_embedding_size=s.size(256, 16), intermediate_size=s.size(4608, 64), num_labels=desks, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model: Any = RemBertForSequenceClassification(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "RemBertSelfAttention":
                module.forward = MethodType(_ticket_attention, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    scaler = torch.amp.GradScaler(s.device.type) if way.scaler and s.cuda else None
    shelf = []
    for _ in range(8):
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))).long()
        shelf.append((torch.randint(3, words, (batch, length)) * mask, mask, torch.randint(desks, (batch,))))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in part) for part in shelf], s) if ahead else None
    turn, losses, hits, sums = 0, 0.0, 0, torch.zeros(2, device=s.device)

    def step() -> object:
        nonlocal turn, losses, hits
        ids, mask, labels = loader.next() if loader else (tensor.to(s.device) for tensor in shelf[turn % 8])
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            logits = run(input_ids=ids, attention_mask=mask).logits
            loss = F.cross_entropy(logits, labels)
        if scaler:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
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
    "ticket_desks",
    "RemBERT of transformers, training in fp16 autocast with a scaler on 16 x 256 pageable words, attention written out; two reads.",
    ticket_desks,
    {},
    {
        "amp-scaler-sync": {"optimizer": "fused"},
        "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False},
        "unfused-attention": {"fused": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "grad-zeroing": {"zero": False},
        "sync-stall": {"kept": True},
        "memcpy": {"ahead": True},
    },
)
