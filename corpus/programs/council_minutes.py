"""ProphetNet of transformers, training in FP32 on 8 x 320 words out of 30,522; gradients are zeroed, the loss is read."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _call, _casting, _optimizer, _placed, _precision, _public


def _texts(drawn: np.random.Generator, words: int, rows: int, shortest: int, longest: int, first: int = 3) -> tuple[Tensor, Tensor]:
    """Words of texts of different lengths, filled up with zeros at the right, and what is not filling."""
    lengths = drawn.integers(shortest, longest + 1, rows)
    lengths[0] = longest
    mask = np.arange(longest) < lengths[:, None]
    ids = drawn.integers(first, words, (rows, longest)) * mask
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def council_minutes(s: Setup, *, vocabulary: int = 30_522, **how: Any) -> Step:
    """ProphetNet learns to sum up minutes of councils: its decoder says two words ahead, in streams of their own."""
    from transformers import ProphetNetConfig, ProphetNetForConditionalGeneration

    way, words, width, wide, heads = How(**how), s.size(vocabulary, 101), s.size(1024, 32), s.size(4096, 64), s.size(16, 4)
    config = ProphetNetConfig(
        vocab_size=words, hidden_size=width, encoder_ffn_dim=wide, decoder_ffn_dim=wide, num_encoder_layers=s.size(4, 1),
        num_decoder_layers=s.size(3, 1), num_encoder_attention_heads=heads, num_decoder_attention_heads=heads, use_cache=False,
    )  # fmt: skip
    with s.device:
        made: Any = ProphetNetForConditionalGeneration(config)
    model = _placed(s, way, made).train()
    parameters = list(model.parameters())
    run, optimizer = _call(s, way, model), _optimizer(way, parameters)
    drawn, rows = np.random.default_rng(5), s.size(8, 2)
    known = s.size(30_522, 101)
    batches = []
    for _ in range(4):
        ids, mask = _texts(drawn, known, rows, s.size(160, 6), s.size(320, 12))
        said, kept = _texts(drawn, known, rows, s.size(40, 3), s.size(96, 6))
        batches.append((ids, mask, F.pad(said, (1, 0))[:, :-1], said.masked_fill(kept == 0, -100)))
    turn, history = 0, deque[float](maxlen=100)
    total = torch.zeros((), device=s.device)

    def step() -> Any:
        nonlocal turn
        _precision(way)
        ids, mask, before, labels = (part.to(s.device) for part in batches[turn % len(batches)])
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            loss = run(input_ids=ids, attention_mask=mask, decoder_input_ids=before, labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if way.read_loss:
            history.append(loss.item())
            return history
        return total.add_(loss.detach())

    return step


PROGRAM = _public(
    "council_minutes",
    "ProphetNet of transformers, training in FP32 on 8 x 320 words out of 30,522; gradients are zeroed, the loss is read.",
    council_minutes,
    {"zero": True, "read_loss": True},
    {
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "gemm-alignment": {"vocabulary": 30_528},
        "optimizer-foreach": {"optimizer": "fused"},
        "grad-zeroing": {"zero": False},
        "sync-stall": {"read_loss": False},
    },
)
