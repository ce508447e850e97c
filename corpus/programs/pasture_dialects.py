"""UMT5 small of transformers, fine-tuned in FP32 on 32 pairs, 250112 words, attention and norms written out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, How, _casting, _optimizer, _precision, _public

IGNORED = -100
READ_EVERY = 50


def _rms(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def dialects(
    s: Setup, *, autocast: torch.dtype | None = None, tf32: bool = False, compiled: bool = False, fused_norms: bool = False,
    optimizer: str | None = None, quiet: bool = False, pinned: bool = False,
) -> Step:  # fmt: skip
    """UMT5 small learns to render letters in mountain dialects: 32 pairs of 256 and 64 pieces in FP32, the loss logged in each step."""
    from transformers import UMT5Config, UMT5ForConditionalGeneration

    words = s.size(250112, 101)
    config = UMT5Config(
        vocab_size=words, d_model=s.size(512, 32), d_kv=s.size(64, 16), d_ff=s.size(1024, 64), num_layers=s.size(8, 1),
        num_heads=s.size(6, 2), decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model = UMT5ForConditionalGeneration(config).to(s.device).train()
    if fused_norms:
        for module in model.modules():
            if type(module).__name__ == "UMT5LayerNorm":
                module.forward = _rms.__get__(module)
    run = s.compile(model) if compiled else model
    how = How(autocast=autocast, tf32=tf32, optimizer=optimizer)
    adam = _optimizer(how, model.parameters())

    batch, length, target = s.size(32, 2), s.size(256, 16), s.size(64, 8)
    batches: list[tuple[Tensor, ...]] = []
    for _ in range(8):
        ids, labels = torch.randint(2, words, (batch, length)), torch.randint(2, words, (batch, target))
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))).long()
        ends = torch.randint(target // 2, target + 1, (batch, 1))
        batches.append((ids * mask, mask, labels.masked_fill(torch.arange(target) >= ends, IGNORED)))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in host) for host in batches], s) if pinned else None
    turn, log = 0, [0.0, 0.0]

    def step() -> float:
        nonlocal turn
        _precision(how)
        ids, mask, labels = loader.next() if loader else tuple(tensor.to(s.device) for tensor in batches[turn % len(batches)])
        turn += 1
        adam.zero_grad()
        with _casting(s, how):
            loss = run(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        adam.step()
        if not quiet or turn % READ_EVERY == 0:
            log[0] = 0.9 * log[0] + 0.1 * loss.item()
            log[1] += (labels != IGNORED).sum().item()
        return log[0]

    return step


PROGRAM = _public(
    "pasture_dialects",
    "UMT5 small of transformers, fine-tuned in FP32 on 32 pairs, 250112 words, attention and norms written out.",
    dialects,
    {},
    {
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "unfused-norm": {"fused_norms": True},
        "unfused-elementwise": {"compiled": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "sync-stall": {"quiet": True},
        "memcpy": {"pinned": True},
    },
)
