"""GroupViT of transformers, training in FP32 on 64 pageable pictures; noise is checked on the host; AdamW(foreach=False), a read."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _public


def _whole_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, encoder_hidden_states: Tensor | None = None, **_: Any) -> Any:
    """GroupViTAttention with its products in one kernel."""
    source = hidden_states if encoder_hidden_states is None else encoder_hidden_states

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    q, k, v = heads(self.q_proj(hidden_states)), heads(self.k_proj(source)), heads(self.v_proj(source))
    joined = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, dropout_p=self.dropout if self.training else 0.0)
    return self.out_proj(joined.transpose(1, 2).reshape(hidden_states.shape)), None


def _assigned(self: Any, attn: Tensor, gumbel: bool = True, hard: bool = True) -> Tensor:
    """GroupViTAssignAttention.get_attn with noise that nobody checks on the host."""
    if gumbel and self.training:
        return F.gumbel_softmax(attn, hard=hard, dim=-2)
    soft = attn.softmax(-2)
    return torch.zeros_like(soft).scatter_(-2, soft.argmax(-2, keepdim=True), 1.0) - soft.detach() + soft if hard else soft


def market_stalls(s: Setup, *, fused: bool = False, unasked: bool = False, ahead: bool = False, **how: Any) -> Step:
    """GroupViT learns to group what lies on market stalls from 64 captions, FP32; pictures come as floats, and the loss is shown each time."""
    from transformers import GroupViTConfig, GroupViTModel

    way = How(**{"optimizer": "loop", **how})
    batch, side, words, length = s.size(64, 4), s.size(224, 64), s.size(49_408, 101), s.size(77, 10)
    vision = {
        "hidden_size": s.size(384, 32), "intermediate_size": s.size(1536, 64), "num_hidden_layers": 4, "depths": [2, 1, 1], "image_size": side,
        "num_group_tokens": [s.size(64, 8), s.size(8, 4), 0], "num_output_groups": [s.size(64, 8), s.size(8, 4), s.size(8, 4)],
        "num_attention_heads": s.size(6, 2),
    }  # fmt: skip
    text = {
        "vocab_size": words, "hidden_size": s.size(256, 32), "intermediate_size": s.size(1024, 64), "num_hidden_layers": s.size(2, 1),
        "num_attention_heads": s.size(4, 2), "max_position_embeddings": length, "bos_token_id": words - 2, "eos_token_id": words - 1,
    }  # fmt: skip
    config = GroupViTConfig(
        vision_config=vision, text_config=text, projection_dim=s.size(256, 32), projection_intermediate_dim=s.size(4096, 64), attn_implementation="eager"
    )
    with s.device:
        model: Any = GroupViTModel(config)
    for module in model.modules():
        if fused and type(module).__name__ == "GroupViTAttention":
            module.forward = MethodType(_whole_attention, module)
        if unasked and type(module).__name__ == "GroupViTAssignAttention":
            module.get_attn = MethodType(_assigned, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.05)
    stalls = []
    for _ in range(4):
        captions = torch.randint(3, words - 2, (batch, length))
        ends = torch.randint(length // 2, length, (batch, 1))
        captions = torch.where(torch.arange(length) < ends, captions, words - 1)
        stalls.append((torch.randn(batch, 3, side, side), captions))
    loader = Prefetcher([(s.pin(pictures), s.pin(captions)) for pictures, captions in stalls], s) if ahead else None
    turn, shown = 0, 0.0
    total = torch.zeros((), device=s.device)

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        pictures, captions = loader.next() if loader else (part.to(s.device) for part in stalls[turn % 4])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            loss = run(input_ids=captions, pixel_values=pictures, return_loss=True).loss
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=4.6052)
        if unasked:
            total.lerp_(loss.detach().float(), 0.05)
        else:
            shown += 0.05 * (loss.item() - shown)
        return shown

    return step


PROGRAM = _public(
    "market_stalls",
    "GroupViT of transformers, training in FP32 on 64 pageable pictures; noise is checked on the host; AdamW(foreach=False), a read.",
    market_stalls,
    {},
    {
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "unfused-attention": {"fused": True},
        "sync-stall": {"unasked": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "memcpy": {"ahead": True},
        "unfused-elementwise": {"compiled": COMPILED},
    },
)
