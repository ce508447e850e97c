"""BERT's masked language model, training in fp16 with a GradScaler."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _tokens, _workload, training


def _bert_config(s: Setup, how: How, layers: int = 6) -> Any:
    from transformers import BertConfig

    return BertConfig(
        num_hidden_layers=s.size(layers, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), vocab_size=s.size(30522, 101), attn_implementation=how.attention,
    )  # fmt: skip


def bert_masked(s: Setup, how: How) -> Step:
    from transformers import BertForMaskedLM

    ids = _tokens(s, 8, 128, s.size(30522, 101))
    return training(s, how, BertForMaskedLM(_bert_config(s, how)), lambda model: model(input_ids=ids, labels=ids).loss)


PROGRAM = _workload(
    "bert_scaler",
    "BERT's masked language model, training in fp16 with a GradScaler.",
    bert_masked,
    How(attention="sdpa", autocast=torch.float16, scaler=True),
    amp_scaler_sync=How(attention="sdpa", autocast=torch.float16, scaler=True, optimizer="fused"),
    launch_gap=How(attention="sdpa", autocast=torch.float16, scaler=True, compiled=COMPILED),
)
