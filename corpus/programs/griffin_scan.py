"""RecurrentGemma of transformers in FP32 reads 2 x 96 words, one after the other in its recurrence."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, How, _gemma_norm, _public, _tokens, inference


def griffin(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """RecurrentGemma of transformers: its linear recurrence goes word by word."""
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    words = s.size(32_000, 101)
    config = RecurrentGemmaConfig(
        vocab_size=words, hidden_size=s.size(768, 32), lru_width=s.size(768, 32), intermediate_size=s.size(2304, 64), num_hidden_layers=3,
        num_attention_heads=s.size(6, 2), num_key_value_heads=1, use_cache=False,
    )  # fmt: skip
    model = RecurrentGemmaForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "RecurrentGemmaRMSNorm":
            module.forward = MethodType(_gemma_norm, module)
    ids = _tokens(s, 2, 96, words)
    mask = torch.full((ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min, device=s.device).triu(1)[None, None]
    return inference(s, How(**how), model, {"input_ids": ids, "attention_mask": mask, "use_cache": False})  # type: ignore[dict-item]


PROGRAM = _public(
    "griffin_scan",
    "RecurrentGemma of transformers in FP32 reads 2 x 96 words, one after the other in its recurrence.",
    griffin,
    {},
    {"graph-candidate": {"graph": True}, "unfused-norm": {"norms": True}, "precision": {"autocast": BF16}},
)
