"""RoFormer of transformers in bf16 autocast makes vectors of 32 passages; attention written out, vectors fetched."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, SDPA, How, _call, _casting, _placed, _precision, _public


def _sdpa_of_roformer(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, sinusoidal_pos: Any = None, *_: Any, **__: Any) -> Any:
    heads = (*hidden_states.shape[:-1], -1, self.attention_head_size)
    q, k, v = (linear(hidden_states).view(heads).transpose(1, 2) for linear in (self.query, self.key, self.value))
    q, k = self.apply_rotary_position_embeddings(sinusoidal_pos, q, k)
    mask = None if attention_mask is None else attention_mask.to(v.dtype)
    context = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
    return context.transpose(1, 2).flatten(2), None


def roformer(s: Setup, *, more: int = 1, **how: Any) -> Step:
    """RoFormer makes the vectors of 32 passages of 256 letters for an index of a search: the mean over the letters that there are."""
    from transformers import RoFormerConfig, RoFormerModel

    way, letters, passages, length = How(**how), s.size(50_000, 101), more * s.size(32, 2), s.size(256, 16)
    config = RoFormerConfig(
        vocab_size=letters, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=s.size(1536, 32),
    )  # fmt: skip
    model = RoFormerModel(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "RoFormerSelfAttention":
            module.forward = MethodType(_sdpa_of_roformer, module)
    model = _placed(s, way, model).eval()  # type: ignore[assignment]
    run = _call(s, way, model)
    ids = torch.randint(letters, (passages, length), device=s.device)
    mask = (torch.arange(length, device=s.device) < torch.randint(length // 2, length, (passages, 1), device=s.device)).long()

    @torch.no_grad()
    def step() -> Any:
        _precision(way)
        with _casting(s, way):
            found = run(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        return F.normalize((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1).cpu().numpy()

    return step


PROGRAM = _public(
    "roformer_index",
    "RoFormer of transformers in bf16 autocast makes vectors of 32 passages; attention written out, vectors fetched.",
    roformer,
    {"autocast": BF16},
    {
        "unfused-attention": {"attention": SDPA},
        "dtype-casts": {"autocast": None, "dtype": BF16},
        "unfused-elementwise": {"compiled": COMPILED},
        "low-arithmetic-intensity": {"more": 8},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
