"""T5Gemma of transformers, bf16 autocast: 2 micro-batches of 16 x 512 words, a vocabulary of 32,003; losses are read."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _public


def _gemma_norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, (1.0 + self.weight).type_as(x), self.eps)


def t5gemma(s: Setup, *, once: bool = False, kept: bool = False, **how: Any) -> Step:
    """T5Gemma learns to write minutes: two micro-batches of sixteen talks a step, scores capped by tanh, each loss and the norm are read."""
    from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

    way, talks, long, short, micro = How(**how), s.size(16, 2), s.size(512, 12), s.size(64, 6), 2
    words = s.size(32_003, 101)
    side: dict[str, Any] = {
        "vocab_size": s.size(way.vocabulary, 128) if way.vocabulary else words, "hidden_size": s.size(768, 32),
        "intermediate_size": s.size(2048, 64), "num_hidden_layers": s.size(4, 1), "num_attention_heads": s.size(12, 2),
        "num_key_value_heads": s.size(12, 2), "head_dim": s.size(64, 16), "query_pre_attn_scalar": s.size(64, 16),
    }  # fmt: skip
    config = T5GemmaConfig(encoder=dict(side), decoder=dict(side), vocab_size=side["vocab_size"], attn_implementation="eager")
    with s.device:
        model: Any = T5GemmaForConditionalGeneration(config)
    model = _placed(s, way, model).train()
    for module in model.modules():
        if way.fused_norms and type(module).__name__ == "T5GemmaRMSNorm":
            module.forward = MethodType(_gemma_norm, module)
    run, parameters = _call(s, way, model), list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    batches: list[dict[str, Any]] = []
    for _ in range(micro):
        lengths = torch.randint(long // 2, long + 1, (talks, 1), device=s.device)
        said = torch.arange(long, device=s.device) < lengths
        ids = torch.where(said, torch.randint(3, words, (talks, long), device=s.device), 0)
        ends = torch.randint(short // 2, short + 1, (talks, 1), device=s.device)
        minutes = torch.randint(3, words, (talks, short), device=s.device)
        minutes = minutes.masked_fill(torch.arange(short, device=s.device) >= ends, -100)
        mask: Any = said.long()
        if kept:  # as the model makes it, which looks for padding on the host first
            hidden = torch.zeros(talks, 1, 1, long, device=s.device).masked_fill(~said[:, None, None], torch.finfo(torch.float32).min)
            mask = {"full_attention": hidden, "sliding_attention": hidden}
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": minutes})
    noted, log = torch.zeros(2, device=s.device), {"loss": 0.0, "norm": 0.0}

    def learn(batch: dict[str, Any]) -> Tensor:
        return run(**batch, use_cache=False).loss / micro  # type: ignore[no-any-return]

    def note(loss: Tensor) -> None:
        if kept:
            noted[0] += loss.detach()
        else:
            log["loss"] += loss.item()

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        if once:
            with _casting(s, way):
                for batch in batches:
                    loss = learn(batch)
                    loss.backward()
                    note(loss)
        else:
            for batch in batches:
                with _casting(s, way):
                    loss = learn(batch)
                loss.backward()
                note(loss)
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if kept:
            noted[1] = norm
        else:
            log["norm"] = norm.item()

    return step


PROGRAM = _public(
    "meeting_minutes",
    "T5Gemma of transformers, bf16 autocast: 2 micro-batches of 16 x 512 words, a vocabulary of 32,003; losses are read.",
    t5gemma,
    {"autocast": BF16},
    {
        "unfused-elementwise": {"compiled": COMPILED},
        "unfused-norm": {"fused_norms": True},
        "dtype-casts": {"once": True},
        "sync-stall": {"kept": True},
        "gemm-alignment": {"vocabulary": 32_064},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
