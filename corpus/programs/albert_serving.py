"""ALBERT base of transformers in fp16 on two short sentences, attention written out."""

from __future__ import annotations

from workloads.base import Setup, Step
from workloads.public import COMPILED, GRAPHS, HALF, SDPA, How, _tokens, _workload, inference


def albert(s: Setup, how: How) -> Step:
    from transformers import AlbertConfig, AlbertModel

    words = s.size(30000, 101)
    config = AlbertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, AlbertModel(config), {"input_ids": _tokens(s, 2, 48, words)})


PROGRAM = _workload(
    "albert_serving",
    "ALBERT base of transformers in fp16 on two short sentences, attention written out.",
    albert,
    How(dtype=HALF),
    launch_gap=How(dtype=HALF, compiled=GRAPHS),
    unfused_attention=How(dtype=HALF, attention=SDPA),
    unfused_elementwise=How(dtype=HALF, compiled=COMPILED),
)
