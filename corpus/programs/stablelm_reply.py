"""StableLM 2 of transformers, FP32 weights in bf16 autocast, reads 768 words, says 8; a norm for each head."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _casting, _placed, _precision, _public


def _of_all_heads(self: Any, x: Tensor) -> Tensor:
    """All heads' norms in one."""
    weight = torch.stack([norm.weight for norm in self.norms])[:, None]
    return F.layer_norm(x, x.shape[-1:], eps=self.norms[0].eps) * weight.to(x.dtype)


def stablelm(s: Setup, *, batch: int = 1, stream: bool = True, heads: bool = False, **how: Any) -> Step:
    """StableLM 2 reads a question of 768 words and says eight; queries and keys are normed head by head."""
    from transformers import DynamicCache, StableLmConfig, StableLmForCausalLM

    way, words, said = How(**how), s.size(100_352, 101), s.size(8, 3)
    config = StableLmConfig(
        vocab_size=words, hidden_size=s.size(4096, 32), intermediate_size=s.size(11_008, 64), num_hidden_layers=s.size(3, 2),
        num_attention_heads=s.size(32, 4), num_key_value_heads=s.size(8, 2), qk_layernorm=True, use_parallel_residual=True,
        pad_token_id=None, bos_token_id=1, eos_token_id=2, attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = StableLmForCausalLM(config)
    for module in model.modules():
        if heads and type(module).__name__ == "StableLmLayerNormPerHead":
            module.forward = MethodType(_of_all_heads, module)
    model = _placed(s, way, model).eval()
    asked = torch.randint(3, words, (batch, s.size(768, 8)), device=s.device)
    end = -1  # each answer goes on to its last word

    def next_word(ids: Tensor, cache: Any) -> Tensor:
        with _casting(s, way):
            return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        cache, ids, answer = DynamicCache(config=config), asked, []
        for _ in range(said):
            ids = next_word(ids, cache)
            answer.append(ids)
            if stream and all(word[0] == end for word in ids.tolist()):
                break
        return torch.cat(answer, 1).tolist()  # type: ignore[no-any-return]

    return step


PROGRAM = _public(
    "stablelm_reply",
    "StableLM 2 of transformers, FP32 weights in bf16 autocast, reads 768 words, says 8; a norm for each head.",
    stablelm,
    {"autocast": BF16},
    {
        "launch-gap": {"heads": True},
        "dtype-casts": {"autocast": None, "dtype": BF16},
        "sync-stall": {"stream": False},
        "unfused-attention": {"attention": SDPA},
        "low-arithmetic-intensity": {"batch": 8},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
