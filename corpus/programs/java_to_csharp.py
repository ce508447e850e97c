"""PLBart of transformers, training all in bf16 on 16 pairs of 256 words, 50,005 words, smoothed labels written out; two reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, SDPA, How, _optimizer, _placed, _public

PAD, CSHARP = 1, 4


def _rectangle(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def _collated(pairs: list[tuple[list[int], list[int]]], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words of Java, words of C# from the name of the language on, and the words that follow these."""
    java, csharp = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return _rectangle(java, length), _rectangle([[CSHARP, *row[:-1]] for row in csharp], length), _rectangle(csharp, length)


def _smoothed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss with smoothed labels as fairseq writes it, and how many words are right."""
    padding = labels == PAD
    chances = logits.float().log_softmax(-1)
    missed = -chances.gather(-1, labels[..., None])[..., 0].masked_fill(padding, 0.0).sum()
    smooth = -chances.sum(-1).masked_fill(padding, 0.0).sum()
    right = ((logits.argmax(-1) == labels) & ~padding).sum()
    return (0.9 * missed + 0.1 / logits.shape[-1] * smooth) / (~padding).sum(), right


def java_to_csharp(
    s: Setup, *, attention: str = "eager", padded: bool = False, prepared: bool = False, kept: bool = False, losses: bool = False, **how: Any
) -> Step:  # fmt: skip
    """PLBart learns all in BF16 to translate 16 methods of Java into C#; lists of words are padded in each step, loss and hits are read."""
    from transformers import PLBartConfig, PLBartForConditionalGeneration

    way, known, width, heads, layers = How(**{"dtype": BF16, **how}), s.size(50_005, 101), s.size(768, 32), s.size(12, 2), s.size(3, 1)
    batch, length = s.size(16, 2), s.size(256, 16)
    config = PLBartConfig(
        vocab_size=s.size(50_048, 104) if padded else known, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = PLBartForConditionalGeneration(config)
    model = _placed(s, way, model).train()
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.01)
    loss_of = s.compile(_smoothed, dynamic=False) if losses else _smoothed

    def taught(java: Tensor, before: Tensor, csharp: Tensor) -> tuple[Tensor, Tensor]:
        out = model(input_ids=java, attention_mask=(java != PAD).long(), decoder_input_ids=before, use_cache=False)
        return loss_of(out.logits[..., :known], csharp)  # type: ignore[no-any-return]

    teach = s.compile(taught, mode=way.compiled, dynamic=False) if way.compiled else taught
    lengths = torch.randint(length // 2, length + 1, (8, batch, 2)).tolist()
    corpus = [[tuple(torch.randint(5, known, (long,)).tolist() for long in pair) for pair in pairs] for pairs in lengths]
    ready = [_collated(pairs, length) for pairs in corpus] if prepared else []
    turn, shown, hits, sums = 0, 0.0, 0, torch.zeros(2, device=s.device)

    def step() -> tuple[float, int]:
        nonlocal turn, shown, hits
        part = ready[turn % 8] if prepared else _collated(corpus[turn % 8], length)
        turn += 1
        java, before, csharp = (tensor.to(s.device) for tensor in part)
        optimizer.zero_grad()
        loss, right = teach(java, before, csharp)
        loss.backward()
        optimizer.step()
        if not kept:
            shown += loss.item()
            hits += int(right.item())
            return shown, hits
        sums[0] += loss.detach()
        sums[1] += right
        if turn % 50 == 0:
            shown, hits = sums[0].item(), int(sums[1].item())
        return shown, hits

    return step


PROGRAM = _public(
    "java_to_csharp",
    "PLBart of transformers, training all in bf16 on 16 pairs of 256 words, 50,005 words, smoothed labels written out; two reads.",
    java_to_csharp,
    {},
    {
        "gemm-alignment": {"padded": True},
        "unfused-attention": {"attention": SDPA},
        "unfused-elementwise": {"compiled": COMPILED},
        "unfused-elementwise/loss": {"losses": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "host-bound": {"prepared": True},
        "sync-stall": {"kept": True},
    },
)
