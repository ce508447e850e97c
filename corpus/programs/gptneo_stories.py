"""GPT-Neo of transformers, tuned in fp16 with a GradScaler on 8 x 1024 of 50257 pieces of words; attention written out, loss read."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, HALF, SDPA, How, _public, _tokens, training


def _sdpa_of_gpt_neo(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Scores are not scaled; every other layer sees 256 words."""
    parts = [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)]
    q, k, v = (self._split_heads(part, self.num_heads, self.head_dim) for part in parts)
    length, local = q.shape[2], self.attention_type == "local"
    mask, dropped = self.bias[:, :, :length, :length] if local else None, self.attn_dropout.p if self.training else 0.0
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not local, dropout_p=dropped, scale=1.0)
    return self.resid_dropout(self.out_proj(self._merge_heads(seen, self.num_heads, self.head_dim))), None


def gpt_neo(s: Setup, *, words: int = 50_257, **how: Any) -> Step:
    """GPT-Neo is tuned on eight stories of 1024 pieces of words."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    way, length = How(**how), s.size(1024, 16)
    config = GPTNeoConfig(
        vocab_size=s.size(words, 101), hidden_size=s.size(768, 32), num_layers=s.size(6, 2), num_heads=s.size(12, 2), window_size=s.size(256, 4),
        attention_types=[[["global", "local"], s.size(3, 1)]], max_position_embeddings=s.size(2048, 32), bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPTNeoForCausalLM(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "GPTNeoSelfAttention":
            module.forward = MethodType(_sdpa_of_gpt_neo, module)
    ids = _tokens(s, 8, length, s.size(50_257, 101))
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


PROGRAM = _public(
    "gptneo_stories",
    "GPT-Neo of transformers, tuned in fp16 with a GradScaler on 8 x 1024 of 50257 pieces of words; attention written out, loss read.",
    gpt_neo,
    {"autocast": HALF, "scaler": True, "read_loss": True},
    {
        "unfused-attention": {"attention": SDPA},
        "amp-scaler-sync": {"autocast": BF16, "scaler": False},
        "gemm-alignment": {"words": 50_304},
        "sync-stall": {"read_loss": False},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
