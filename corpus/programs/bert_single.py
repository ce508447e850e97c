"""BERT base of transformers, FP32, one sentence of 64 words: launches are the bound."""

from __future__ import annotations

from typing import Any

from workloads.base import Setup, Step
from workloads.public import BF16, GRAPHS, How, _tokens, _workload, inference


def _bert_config(s: Setup, how: How, layers: int = 6) -> Any:
    from transformers import BertConfig

    return BertConfig(
        num_hidden_layers=s.size(layers, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), vocab_size=s.size(30522, 101), attn_implementation=how.attention,
    )  # fmt: skip


def bert_single(s: Setup, how: How) -> Step:
    from transformers import BertModel

    return inference(s, how, BertModel(_bert_config(s, how, 12)), {"input_ids": _tokens(s, 1, 64, s.size(30522, 101))})


PROGRAM = _workload(
    "bert_single",
    "BERT base of transformers, FP32, one sentence of 64 words: launches are the bound.",
    bert_single,
    How(attention="sdpa"),
    launch_gap=How(attention="sdpa", compiled=GRAPHS),
    graph_candidate=How(attention="sdpa", graph=True),
    precision=How(attention="sdpa", autocast=BF16),
)
