"""SQUIM of torchaudio, FP32, rates five seconds of one call; its three scores are read one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step, capture
from workloads.public import BF16, How, _casting, _placed, _precision, _public


def squim(s: Setup, *, calls: int = 1, together: bool = False, **how: Any) -> Step:
    """SQUIM says how well five seconds of a call are understood: STOI, PESQ and SI-SDR, each of which is read for the operator's screen."""
    from torchaudio.models import squim_objective_base, squim_objective_model

    way = How(**how)
    small = {"feat_dim": 16, "win_len": 16, "d_model": 16, "nhead": 2, "hidden_dim": 16, "num_blocks": 1, "rnn_type": "LSTM", "chunk_size": 11}
    model = _placed(s, way, squim_objective_model(**small) if s.tiny else squim_objective_base()).eval()
    heard = torch.randn(calls, s.size(80_000, 1600)) / 10
    sound = heard.to(s.device)
    scores: list[Tensor] = []

    def rate() -> None:
        _precision(way)
        with _casting(s, way):
            scores[:] = model(sound.to(way.dtype) if way.dtype else sound)

    with torch.no_grad():
        rating = capture(rate, s) if way.graph else rate

    @torch.no_grad()
    def step() -> list[list[float]]:
        sound.copy_(heard)
        rating()
        if together:
            return torch.stack(scores).tolist()  # type: ignore[no-any-return]
        return [score.tolist() for score in scores]

    return step


PROGRAM = _public(
    "squim_calls",
    "SQUIM of torchaudio, FP32, rates five seconds of one call; its three scores are read one by one.",
    squim,
    {},
    {"low-arithmetic-intensity": {"calls": 8}, "graph-candidate": {"graph": True}, "sync-stall": {"together": True}, "precision": {"dtype": BF16}},
    shared={"low-arithmetic-intensity": 8.0},
)
