"""M2M100 of transformers, FP32, 12 words for 4 lines: Python bars words row by row, the end is asked for after each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import HALF, SDPA, How, _precision, _public


def _texts(drawn: np.random.Generator, words: int, rows: int, shortest: int, longest: int, first: int = 3) -> tuple[Tensor, Tensor]:
    """Words of texts of different lengths, filled up with zeros at the right, and what is not filling."""
    lengths = drawn.integers(shortest, longest + 1, rows)
    lengths[0] = longest
    mask = np.arange(longest) < lengths[:, None]
    ids = drawn.integers(first, words, (rows, longest)) * mask
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def _banned_by_row(scores: Tensor, said: Tensor) -> Tensor:
    """No three words are said twice, row by row, as processors of generate() have done for long."""
    for at, row in enumerate(said.tolist()):
        after: dict[tuple[int, int], list[int]] = {}
        for first, second, third in zip(row, row[1:], row[2:], strict=False):
            after.setdefault((first, second), []).append(third)
        banned = after.get((row[-2], row[-1]))
        if banned:
            scores[at, banned] = float("-inf")
    return scores


def _banned(scores: Tensor, said: Tensor) -> Tensor:
    if said.shape[1] < 3:
        return scores
    triples = said.unfold(1, 3, 1)
    same = (triples[..., :2] == said[:, None, -2:]).all(-1)
    limits = torch.zeros_like(same, dtype=scores.dtype).masked_fill(~same, float("inf")).masked_fill(same, float("-inf"))
    return scores.scatter_reduce(1, triples[..., 2], limits, "amin")


def film_subtitles(
    s: Setup, *, batch: int = 4, at_once: bool = False, checked: int = 1, attention: str = "eager", dtype: torch.dtype | None = None,
    **how: Any,
) -> Step:  # fmt: skip
    """M2M100 translates four lines of a film greedily: no three words come twice, and it stops when all lines have ended."""
    from transformers import DynamicCache, EncoderDecoderCache, M2M100Config, M2M100ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    way, words, many, end, language = How(**how), s.size(128_112, 101), s.size(batch, max(2, batch // 8)), 2, s.size(128_022, 99)
    config = M2M100Config(
        vocab_size=words, d_model=s.size(1024, 32), encoder_layers=s.size(6, 2), decoder_layers=s.size(6, 2),
        encoder_ffn_dim=s.size(4096, 64), decoder_ffn_dim=s.size(4096, 64), encoder_attention_heads=s.size(16, 4),
        decoder_attention_heads=s.size(16, 4), attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = M2M100ForConditionalGeneration(config)
    model = (model.to(dtype) if dtype else model).eval()
    ids, mask = _texts(np.random.default_rng(4), s.size(128_000, 90), many, s.size(12, 4), s.size(40, 8))
    ids, mask = ids.masked_fill(mask == 0, 1).to(s.device), mask.to(s.device)
    start = torch.tensor([[end, language]], device=s.device).repeat(many, 1)
    banned = _banned if at_once else _banned_by_row

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        memory = BaseModelOutput(last_hidden_state=model.model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        said, read = start, start
        ended = torch.zeros(many, dtype=torch.bool, device=s.device)
        for turn in range(1, s.size(12, 5) + 1):
            out = model(encoder_outputs=memory, attention_mask=mask, decoder_input_ids=read, past_key_values=cache, use_cache=True)
            scores = banned(out.logits[:, -1].float(), said)
            read = scores.argmax(-1, keepdim=True).masked_fill(ended[:, None], 1)
            said, ended = torch.cat([said, read], 1), ended | (read[:, 0] == end)
            if turn % checked == 0 and bool(ended.all()):
                break
        rows = said[:, 2:].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]

    return step


PROGRAM = _public(
    "film_subtitles",
    "M2M100 of transformers, FP32, 12 words for 4 lines: Python bars words row by row, the end is asked for after each.",
    film_subtitles,
    {},
    {
        "host-bound": {"at_once": True},
        "sync-stall": {"at_once": True, "checked": 12},
        "low-arithmetic-intensity": {"batch": 32},
        "unfused-attention": {"attention": SDPA},
        "precision": {"dtype": HALF},
        "precision/tf32": {"tf32": True},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
