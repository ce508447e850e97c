"""Nystromformer of transformers in FP32 reads 8 contracts of 4096 words; the vectors are read in each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _placed, _precision, _public


def nystromformer(s: Setup, *, late: bool = False, pinned: bool = False, fused: bool = False, **how: Any) -> Step:
    """Nystromformer reads eight contracts of 4096 words by 64 landmarks; the vectors of all go to an index on the host."""
    from transformers import NystromformerConfig, NystromformerModel

    way, contracts, length, words, width = How(**how), s.size(8, 2), s.size(4096, 32), s.size(30_000, 101), s.size(768, 32)
    landmarks = s.size(64, 4)
    config = NystromformerConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(5, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=length, segment_means_seq_len=length, num_landmarks=landmarks,
        conv_kernel_size=s.size(65, 5),
    )  # fmt: skip
    model: Any = _placed(s, way, NystromformerModel(config)).eval()
    if fused:
        model.encoder.forward = s.compile(model.encoder.forward)
    pages = [torch.randint(3, words, (contracts, length)) for _ in range(4)]
    pages = [s.pin(ids) for ids in pages] if pinned else pages
    stays = [s.pin(torch.zeros(contracts, width)) for _ in range(2)]
    ready = [torch.cuda.Event() for _ in stays] if s.cuda else []
    index, turn = np.zeros((len(pages) * contracts, width), dtype=np.float32), 0

    def put(at: int, vectors: Tensor) -> None:
        at %= len(pages)
        index[at * contracts : (at + 1) * contracts] = vectors.numpy()

    @torch.no_grad()
    def step() -> None:
        nonlocal turn
        _precision(way)
        ids = pages[turn % len(pages)].to(s.device, non_blocking=pinned)
        with _casting(s, way):
            hidden = model(input_ids=ids).last_hidden_state
        vectors = F.normalize(hidden.float().mean(1), dim=-1)
        if late:
            now, before = turn % 2, (turn + 1) % 2
            stays[now].copy_(vectors, non_blocking=True)
            if ready:
                ready[now].record()
                ready[before].synchronize()
            if turn:
                put(turn - 1, stays[before])
        else:
            put(turn, vectors.cpu())
        turn += 1

    return step


PROGRAM = _public(
    "contract_vectors",
    "Nystromformer of transformers in FP32 reads 8 contracts of 4096 words; the vectors are read in each step.",
    nystromformer,
    {},
    {
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "unfused-elementwise": {"fused": True},
        "sync-stall": {"late": True},
        "memcpy": {"pinned": True},
    },
)
