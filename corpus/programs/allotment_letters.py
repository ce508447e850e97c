"""Persimmon of transformers, training in FP32 on 4 x 512 of 50,003 words, attention and loss written out; AdamW by a loop, reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, SDPA, How, _call, _casting, _optimizer, _placed, _precision, _public


def answer_loss(logits: Tensor, targets: Tensor, weight: Tensor, smoothing: float = 0.1, z_weight: float = 1e-4) -> Tensor:
    """Cross-entropy with label smoothing and the z-loss of PaLM, over the words of answers."""
    top = logits.max(-1, keepdim=True).values.detach()
    log_z = (logits - top).exp().sum(-1).log() + top.squeeze(-1)
    hit = log_z - logits.gather(-1, targets[..., None]).squeeze(-1)
    smooth = log_z - logits.mean(-1)
    each = (1.0 - smoothing) * hit + smoothing * smooth + z_weight * log_z.square()
    return (each * weight).sum() / weight.sum()


def allotment_letters(
    s: Setup, *, attention: str = "eager", rows: int = 50_003, ahead: bool = False, kept: bool = False, fused_loss: bool = False, **how: Any
) -> Step:  # fmt: skip
    """Persimmon learns to answer letters, in FP32: only words of answers count, AdamW goes parameter by parameter, two numbers are read."""
    from transformers import PersimmonConfig, PersimmonForCausalLM

    way = How(**{"optimizer": "loop", **how})
    letters, length, words, width = s.size(4, 2), s.size(512, 16), s.size(50_003, 101), s.size(1024, 32)
    config = PersimmonConfig(
        vocab_size=s.size(rows, 101 if rows == 50_003 else 128), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=s.size(8, 2),
        num_attention_heads=s.size(16, 2), max_position_embeddings=2048, attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    with s.device:
        model: Any = PersimmonForCausalLM(config)
    model = _placed(s, way, model).train()
    run, criterion = _call(s, way, model), s.compile(answer_loss) if fused_loss else answer_loss
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = _optimizer(way, [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95))
    pile = []
    for _ in range(8):
        begin = torch.randint(length // 4, length // 2, (letters, 1))
        pile.append((torch.randint(3, words, (letters, length)), (torch.arange(length) >= begin).float()))
    loader = Prefetcher([tuple(s.pin(part) for part in batch) for batch in pile], s) if ahead else None
    sums, turn, history = torch.zeros(2, device=s.device), 0, []  # type: tuple[Tensor, int, list[list[float]]]

    def step() -> list[float]:
        nonlocal turn
        _precision(way)
        ids, answer = loader.next() if loader else (part.to(s.device) for part in pile[turn % len(pile)])
        turn += 1
        optimizer.zero_grad(set_to_none=True)
        with _casting(s, way):
            logits = run(input_ids=ids).logits
        loss = criterion(logits[:, :-1, :words].float(), ids[:, 1:], answer[:, 1:])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if kept:
            sums.add_(torch.stack([loss.detach(), norm]))
            if turn % 50 == 0:
                history.append((sums / 50).tolist())
                sums.zero_()
        else:
            history.append([loss.item(), norm.item()])
        return history[-1] if history else []

    return step


PROGRAM = _public(
    "allotment_letters",
    "Persimmon of transformers, training in FP32 on 4 x 512 of 50,003 words, attention and loss written out; AdamW by a loop, reads.",
    allotment_letters,
    {},
    {
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "unfused-attention": {"attention": SDPA},
        "unfused-elementwise": {"fused_loss": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "gemm-alignment": {"rows": 50_048},
        "sync-stall": {"kept": True},
        "memcpy": {"ahead": True},
    },
)
