"""RoBERTa of transformers in FP32 tags 16 labels of up to 96 words; label by label, each span's score is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, capture
from workloads.public import BF16, GRAPHS, How, _call, _casting, _placed, _precision, _public

FIELDS = ("taxon", "collector", "number", "date", "locality", "habitat", "elevation", "determiner", "herbarium")
Found = list[dict[str, Any]]


def merged(labels: list[int]) -> list[tuple[int, int, int]]:
    """Spans of a field, from labels that are O (0), B (odd) and I (even)."""
    spans, first, kind = [], 0, -1
    for at, label in enumerate([*labels, 0]):
        field = (label - 1) // 2
        if kind >= 0 and (label % 2 == 1 or field != kind):
            spans.append((kind, first, at))
            kind = -1
        if field >= 0 and kind < 0:
            first, kind = at, field
    return spans


def herbarium_labels(s: Setup, *, once: bool = False, segments: bool = False, graphed: bool = False, **how: Any) -> Step:
    """A service that tags the fields of 16 labels of specimens with RoBERTa, and answers each with its spans and their scores."""
    from transformers import RobertaConfig, RobertaForTokenClassification

    way = How(**{"attention": "sdpa", **how})
    batch, length, known = s.size(16, 3), s.size(96, 12), s.size(50265, 101)
    config = RobertaConfig(
        vocab_size=known, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=s.size(514, 20), num_labels=1 + 2 * len(FIELDS), type_vocab_size=1,
        attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = RobertaForTokenClassification(config)
    with torch.no_grad():
        model.classifier.bias[0] = 0.0 if s.tiny else 0.6  # many words are of no field
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    rng = np.random.default_rng(0)
    queue: list[list[tuple[list[int], list[str]]]] = []
    for _ in range(4):
        group = []
        for long in rng.integers(length // 6, length + 1, batch):
            ids = rng.integers(4, known, long).tolist()
            group.append((ids, [f"w{number}" for number in ids]))
        queue.append(group)
    buffers = [s.pin(torch.zeros(batch, length, dtype=torch.long)) for _ in range(2)] if way.pinned else None
    turn = 0
    held, kept = torch.ones(batch, length, dtype=torch.long, device=s.device), []
    hidden = torch.zeros(batch, 1, length, length, device=s.device)

    def padded(group: list[tuple[list[int], list[str]]]) -> tuple[Tensor, Tensor]:
        if buffers:
            ids, there = buffers[0].fill_(1), buffers[1].zero_()
        else:
            ids, there = torch.full((batch, length), 1), torch.zeros(batch, length, dtype=torch.long)
        for at, (tokens, _words) in enumerate(group):
            ids[at, : len(tokens)] = torch.tensor(tokens)
            there[at, : len(tokens)] = 1
        return ids.to(s.device, non_blocking=way.pinned), there.to(s.device, non_blocking=way.pinned)

    def answer(kind: int, words: list[str], score: float) -> dict[str, Any]:
        return {"field": FIELDS[kind], "text": " ".join(words), "score": round(score, 4)}

    def extracted(logits: Tensor, words: list[str]) -> Found:
        score, label = torch.softmax(logits[: len(words)].float(), -1).max(-1)
        return [answer(kind, words[first:last], score[first:last].mean().item()) for kind, first, last in merged(label.tolist())]

    def extracted_on_host(logits: Tensor, group: list[tuple[list[int], list[str]]]) -> list[Found]:
        score, label = torch.softmax(logits.float(), -1).max(-1)
        scores, labels = score.cpu().numpy(), label.tolist()
        return [
            [answer(kind, words[first:last], float(scores[at, first:last].mean())) for kind, first, last in merged(labels[at][: len(words)])]
            for at, (_tokens, words) in enumerate(group)
        ]

    def extracted_at_once(logits: Tensor, there: Tensor, group: list[tuple[list[int], list[str]]]) -> list[Found]:
        score, label = torch.softmax(logits.float(), -1).max(-1)
        field = torch.where(there > 0, (label - 1).div(2, rounding_mode="floor"), -1)
        inside = field >= 0
        first = inside & ((label % 2 == 1) | (field != F.pad(field[:, :-1], (1, 0), value=-1)))
        place = torch.where(inside.flatten(), first.flatten().cumsum(0) - 1, batch * length)
        sums, counts = torch.zeros(2, batch * length + 1, device=s.device)
        sums.index_add_(0, place, score.flatten())
        counts.index_add_(0, place, torch.ones_like(score).flatten())
        table = torch.stack([first.flatten().float(), field.flatten().float(), counts[place], sums[place] / counts[place]]).cpu().numpy()
        found: list[Found] = [[] for _ in group]
        starts = np.flatnonzero(table[0])
        for where, kind, count, mean in zip(starts.tolist(), *table[1:, starts].tolist(), strict=True):
            row, begin = divmod(where, length)
            found[row].append(answer(int(kind), group[row][1][begin : begin + int(count)], mean))
        return found

    @torch.no_grad()
    def forward() -> None:
        kept[:] = [model(input_ids=held, attention_mask=hidden).logits]

    _precision(way)
    replay = capture(forward, s) if graphed else None

    @torch.no_grad()
    def step() -> list[Found]:
        nonlocal turn
        _precision(way)
        group = queue[turn % len(queue)]
        turn += 1
        ids, there = padded(group)
        if replay:
            held.copy_(ids)
            hidden.copy_(((1.0 - there.float()) * torch.finfo(torch.float32).min)[:, None, None].expand_as(hidden))
            replay()
            logits = kept[0]
        else:
            with _casting(s, way):
                logits = run(input_ids=ids, attention_mask=there).logits
        if segments:
            return extracted_at_once(logits, there, group)
        if once:
            return extracted_on_host(logits, group)
        return [extracted(logits[at], words) for at, (_tokens, words) in enumerate(group)]

    return step


PROGRAM = _public(
    "herbarium_labels",
    "RoBERTa of transformers in FP32 tags 16 labels of up to 96 words; label by label, each span's score is read.",
    herbarium_labels,
    {},
    {
        "sync-stall": {"once": True},
        "host-bound": {"segments": True},
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "launch-gap": {"compiled": GRAPHS},
        "graph-candidate": {"graphed": True},
        "memcpy": {"pinned": True},
    },
)
