"""A small VisualBERT, training on 8 questions in FP32: launches are the bound."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _public

READ_EVERY = 50
Batch = tuple[Tensor, ...]


def _feed(s: Setup, batches: list[Batch], pinned: bool) -> Callable[[], Batch]:
    """What gives batch after batch on the device."""
    if pinned:
        return Prefetcher([tuple(s.pin(tensor) for tensor in host) for host in batches], s).next
    turns = cycle(batches)
    return lambda: tuple(tensor.to(s.device) for tensor in next(turns))


def _fused_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor]:
    """VisualBERT's own attention, with its dropout and mask, in one call."""
    heads = (*hidden_states.shape[:-1], self.num_attention_heads, self.attention_head_size)
    query, key, value = (part(hidden_states).view(heads).transpose(1, 2) for part in (self.query, self.key, self.value))
    dropped = self.dropout.p if self.training else 0.0
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropped)
    return (found.transpose(1, 2).flatten(2),)


def comic_questions(
    s: Setup, *, autocast: torch.dtype | None = None, compiled: str | None = None,
    optimizer: str | None = None, attention: str = "eager", pinned: bool = False, quiet: bool = False,
) -> Step:  # fmt: skip
    """A small VisualBERT learns to answer questions on comic strips: 8 questions of 20 pieces, 36 regions of each strip, FP32.

    The features of the regions were extracted before; gradients are clipped; loss, score and norm are logged in each step."""
    from transformers import VisualBertConfig, VisualBertForQuestionAnswering

    words, answers, features = s.size(30522, 101), s.size(3129, 7), s.size(2048, 24)
    config = VisualBertConfig(
        vocab_size=words, hidden_size=s.size(384, 32), visual_embedding_dim=features, num_hidden_layers=s.size(12, 2),
        num_attention_heads=s.size(6, 2), intermediate_size=s.size(1536, 64), max_position_embeddings=s.size(512, 64),
        num_labels=answers,
    )  # fmt: skip
    how = How(autocast=autocast, compiled=compiled, optimizer=optimizer)
    with s.device:
        model = VisualBertForQuestionAnswering(config)
    model = _placed(s, how, model).train()
    if attention == "sdpa":
        for module in model.modules():
            if type(module).__name__ == "VisualBertSelfAttention":
                module.forward = _fused_attention.__get__(module)
    run = _call(s, how, model)
    adam = _optimizer(how, model.parameters(), weight_decay=0.01)

    batch, length, regions = s.size(8, 2), s.size(20, 6), s.size(36, 4)
    batches: list[Batch] = []
    for _ in range(8):
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))).long()
        ids = torch.randint(1, words, (batch, length)) * mask
        target = torch.zeros(batch, answers)
        target.scatter_(1, torch.randint(answers, (batch, 3)), torch.tensor([1.0, 0.6, 0.3]).expand(batch, 3))
        batches.append((ids, mask, torch.randn(batch, regions, features), target))
    feed = _feed(s, batches, pinned)
    seen = torch.ones(batch, regions, device=s.device)
    types = torch.ones(batch, regions, dtype=torch.long, device=s.device)
    last: dict[str, Tensor] = {}

    def learn(ids: Tensor, mask: Tensor, strips: Tensor, target: Tensor) -> None:
        adam.zero_grad()
        with _casting(s, how):
            found = run(
                input_ids=ids, attention_mask=mask, visual_embeds=strips, visual_attention_mask=seen,
                visual_token_type_ids=types, labels=target,
            )  # fmt: skip
        found.loss.backward()
        last["norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).detach()
        adam.step()
        last["loss"] = found.loss.detach()
        last["score"] = target.gather(1, found.logits.detach().argmax(1, keepdim=True)).mean()

    turn, log = 0, {"loss": 0.0, "score": 0.0, "norm": 0.0}

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(how)
        turn += 1
        learn(*feed())
        if not quiet or turn % READ_EVERY == 0:
            for name, value in last.items():
                log[name] = 0.9 * log[name] + 0.1 * value.item()
        return log

    return step


PROGRAM = _public(
    "comic_questions",
    "A small VisualBERT, training on 8 questions in FP32: launches are the bound.",
    comic_questions,
    {},
    {
        "launch-gap": {"compiled": COMPILED},
        "precision": {"autocast": BF16},
        "optimizer-foreach": {"optimizer": "fused"},
        "unfused-attention": {"attention": "sdpa"},
        "memcpy": {"pinned": True},
        "sync-stall": {"quiet": True},
    },
)
