"""wav2vec 2.0 of transformers, FP32, on 5 s of sound."""

from __future__ import annotations

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, How, _workload, inference


def wav2vec(s: Setup, how: How) -> Step:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        num_hidden_layers=s.size(3, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation="sdpa",
    )  # fmt: skip
    return inference(s, how, Wav2Vec2Model(config), (torch.randn(s.size(8, 1), s.size(80000, 4000), device=s.device),))


PROGRAM = _workload(
    "wav2vec_fp32",
    "wav2vec 2.0 of transformers, FP32, on 5 s of sound.",
    wav2vec,
    How(),
    precision=How(autocast=BF16),
    precision__tf32=How(tf32=True),
)
