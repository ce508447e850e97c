"""DistilBERT of transformers, a classifier trained in bf16 autocast on 32 x 128 words."""

from __future__ import annotations

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, SDPA, How, _tokens, _workload, training


def distilbert(s: Setup, how: How) -> Step:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    words = s.size(30522, 101)
    config = DistilBertConfig(
        vocab_size=words, n_layers=s.size(6, 1), dim=s.size(768, 32), n_heads=s.size(12, 2), hidden_dim=s.size(3072, 64),
        attn_implementation=how.attention,
    )  # fmt: skip
    ids, labels = _tokens(s, 32, 128, words), torch.randint(2, (s.size(32, 2),), device=s.device)
    return training(s, how, DistilBertForSequenceClassification(config), lambda model: model(input_ids=ids, labels=labels).loss)


PROGRAM = _workload(
    "distilbert_amp",
    "DistilBERT of transformers, a classifier trained in bf16 autocast on 32 x 128 words.",
    distilbert,
    How(attention=SDPA, autocast=BF16),
    dtype_casts=How(attention=SDPA, dtype=BF16),
    unfused_elementwise=How(attention=SDPA, autocast=BF16, compiled=COMPILED),
    optimizer_foreach=How(attention=SDPA, autocast=BF16, optimizer="fused"),
)
