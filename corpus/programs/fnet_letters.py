"""FNet of transformers, training in FP32 on 32 x 512 pieces of words that Fourier transforms mix."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _public, training


def fnet(s: Setup, **how: Any) -> Step:
    """FNet learns to fill up 32 texts of 512 pieces of words, which a Fourier transform mixes instead of attention."""
    from transformers import FNetConfig, FNetForMaskedLM

    words = s.size(32_000, 101)
    config = FNetConfig(vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(8, 1), intermediate_size=s.size(3072, 64))
    ids = torch.randint(4, words, (s.size(32, 2), s.size(512, 16)), device=s.device)
    return training(s, How(**how), FNetForMaskedLM(config), lambda model: model(input_ids=ids, labels=ids).loss)


PROGRAM = _public(
    "fnet_letters",
    "FNet of transformers, training in FP32 on 32 x 512 pieces of words that Fourier transforms mix.",
    fnet,
    {},
    {"precision": {"tf32": True}, "unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}},
)
