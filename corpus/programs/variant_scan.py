"""ESM-2 of transformers, all in fp16 with attention written out, four copies of a protein a call; the host hides, reads by place."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, HALF, SDPA, How, _call, _placed, _public


def variant_scan(
    s: Setup, *, batch: int = 4, letters: int = 33, attention: str = "eager", there: bool = False, kept: bool = False, **how: Any
) -> Step:  # fmt: skip
    """ESM-2 in FP16 scores all variants of an enzyme, four hidden places a call: the host hides each, and each place's scores are read."""
    from transformers import EsmConfig, EsmForMaskedLM

    way, places, width, hide = How(**{"dtype": HALF if s.cuda else BF16, **how}), s.size(320, 32), s.size(640, 32), 32
    config = EsmConfig(
        vocab_size=letters, mask_token_id=hide, pad_token_id=1, hidden_size=width, num_hidden_layers=s.size(16, 2), num_attention_heads=s.size(20, 2),
        intermediate_size=4 * width, max_position_embeddings=1026, position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=False,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = EsmForMaskedLM(config)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    wild = torch.cat([torch.tensor([0]), torch.randint(4, 24, (places,)), torch.tensor([2])])
    amino, wild_there = wild.tolist(), wild.to(s.device)
    ids = wild_there.repeat(batch, 1)
    table = torch.zeros(places + 2, 20, device=s.device)
    turn = 0

    @torch.no_grad()
    def step() -> list[list[float]]:
        nonlocal turn
        asked = [1 + (turn * batch + at) % places for at in range(batch)]
        if there:
            hidden = 1 + (turn * batch + torch.arange(batch, device=s.device)) % places
            ids.copy_(wild_there.expand(batch, -1).scatter(1, hidden[:, None], hide))
        else:
            rows = []
            for place in asked:
                row = wild.clone()
                row[place] = hide
                rows.append(row)
            ids.copy_(torch.stack(rows))
        turn += 1
        told = run(input_ids=ids).logits
        scores: list[list[float]] = []
        for at, place in enumerate(asked):
            chances = told[at, place, 4:24].float().log_softmax(-1)
            score = chances - chances[amino[place] - 4]
            if kept:
                table[place].copy_(score)
            else:
                scores.append(score.tolist())
        return table.tolist() if kept and turn % 40 == 0 else scores

    return step


PROGRAM = _public(
    "variant_scan",
    "ESM-2 of transformers, all in fp16 with attention written out, four copies of a protein a call; the host hides, reads by place.",
    variant_scan,
    {},
    {
        "low-arithmetic-intensity": {"batch": 32},
        "unfused-attention": {"attention": SDPA},
        "unfused-elementwise": {"compiled": COMPILED},
        "sync-stall": {"kept": True},
        "memcpy": {"there": True},
        "gemm-alignment": {"letters": 64},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
