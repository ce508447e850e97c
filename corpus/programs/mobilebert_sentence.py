"""MobileBERT of transformers on one sentence in bf16 autocast."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, GRAPHS, SDPA, How, _public, inference


def mobile_bert(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Thin layers of many parts, a quarter of those of the public model, on one sentence."""
    from transformers import MobileBertConfig, MobileBertModel

    config = MobileBertConfig(num_hidden_layers=s.size(6, 1), attn_implementation=attention)
    ids = torch.randint(30_522, (1, s.size(128, 8)), device=s.device)
    return inference(s, How(**how), MobileBertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


PROGRAM = _public(
    "mobilebert_sentence",
    "MobileBERT of transformers on one sentence in bf16 autocast.",
    mobile_bert,
    {"autocast": BF16},
    {"launch-gap": {"compiled": GRAPHS}, "dtype-casts": {"autocast": None, "dtype": BF16}, "unfused-attention": {"attention": SDPA}},
)
