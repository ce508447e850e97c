"""HiFi-GAN of transformers makes 4 waves of 64,000 samples, FP32."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _public, inference


def vocoder(s: Setup, **how: Any) -> Step:
    """HiFi-GAN: each of four enlargements is followed by three stacks of six convolutions."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    model = SpeechT5HifiGan(SpeechT5HifiGanConfig(upsample_initial_channel=s.size(512, 32)))
    return inference(s, How(**how), model, (torch.randn(s.size(4, 1), s.size(250, 4), 80, device=s.device),))


PROGRAM = _public(
    "hifigan_vocoder",
    "HiFi-GAN of transformers makes 4 waves of 64,000 samples, FP32.",
    vocoder,
    {},
    {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": BF16}, "graph-candidate": {"graph": True}},
)
