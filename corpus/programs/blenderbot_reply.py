"""Blenderbot of transformers, FP32, answers by twelve words with ten beams, whose words Python reads; attention written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import HALF, SDPA, How, _placed, _precision, _public


def _unsaid(ids: Tensor, scores: Tensor) -> Tensor:
    """No three words twice, beam by beam, as libraries of generation have long had it."""
    banned = []
    for beam in ids:
        said = beam.tolist()
        following: dict[tuple[int, ...], list[int]] = {}
        for one, other, third in zip(said, said[1:], said[2:], strict=False):
            following.setdefault((one, other), []).append(third)
        banned.append(following.get(tuple(said[-2:]), []))
    for row, words in enumerate(banned):
        scores[row, words] = -float("inf")
    return scores


def _unsaid_on_gpu(ids: Tensor, scores: Tensor) -> Tensor:
    """The same without a look at the words: a scattered mask."""
    if ids.shape[1] < 3:
        return scores
    windows = ids.unfold(1, 3, 1)
    again = (windows[..., :2] == ids[:, None, -2:]).all(-1)
    mask = torch.zeros_like(scores).scatter_add_(1, windows[..., 2], again.to(scores.dtype))
    return torch.where(mask > 0, -float("inf"), scores)


class Unsaid:
    """What generate() calls before it chooses among the words."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return _unsaid_on_gpu(input_ids, scores) if self.on_gpu else _unsaid(input_ids, scores)


def blenderbot(s: Setup, *, batch: int = 1, on_gpu: bool = False, **how: Any) -> Step:
    """Blenderbot answers by twelve words, found by ten beams of the library's own generate(), no three words twice."""
    from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration, LogitsProcessorList

    way, words, said = How(**how), s.size(8008, 101), s.size(12, 5)
    config = BlenderbotConfig(
        vocab_size=words, d_model=s.size(1280, 32), encoder_layers=s.size(2, 1), decoder_layers=s.size(12, 1), encoder_ffn_dim=s.size(5120, 64),
        decoder_ffn_dim=s.size(5120, 64), encoder_attention_heads=s.size(32, 2), decoder_attention_heads=s.size(32, 2),
        attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = BlenderbotForConditionalGeneration(config)
    model = _placed(s, way, model).eval()
    asked = torch.randint(3, words, (batch, s.size(40, 6)), device=s.device)
    mask, rules = torch.ones_like(asked), LogitsProcessorList([Unsaid(on_gpu)])

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        answer = model.generate(
            asked, attention_mask=mask, num_beams=s.size(10, 3), max_new_tokens=said, min_new_tokens=said, length_penalty=0.65, do_sample=False,
            logits_processor=rules, encoder_no_repeat_ngram_size=0,
        )  # fmt: skip
        return answer.tolist()

    return step


PROGRAM = _public(
    "blenderbot_reply",
    "Blenderbot of transformers, FP32, answers by twelve words with ten beams, whose words Python reads; attention written out.",
    blenderbot,
    {},
    {"low-arithmetic-intensity": {"batch": 8}, "sync-stall": {"on_gpu": True}, "unfused-attention": {"attention": SDPA}, "precision": {"dtype": HALF}},
    shared={"low-arithmetic-intensity": 8.0},
)
