"""A small RoBERTa of transformers in bf16 autocast on 32 passages of 384; Python loops find answers in NumPy's logits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, SDPA, How, _casting, _placed, _precision, _public

Answers = dict[str, list[dict[str, Any]]]


def _best_answers(starts: Any, ends: Any, offsets: list[list[Any]], contexts: list[str], most: int, longest: int) -> Answers:
    """postprocess_qa_predictions of transformers' utils_qa.py: all pairs of the likeliest beginnings and ends, the best with their odds."""
    said = {}
    for number, (start_logits, end_logits, offset, context) in enumerate(zip(starts, ends, offsets, contexts, strict=True)):
        prelim = []
        start_indexes = np.argsort(start_logits)[-1 : -most - 1 : -1].tolist()
        end_indexes = np.argsort(end_logits)[-1 : -most - 1 : -1].tolist()
        for start_index in start_indexes:
            for end_index in end_indexes:
                if offset[start_index] is None or offset[end_index] is None:
                    continue
                if end_index < start_index or end_index - start_index + 1 > longest:
                    continue
                prelim.append(
                    {
                        "offsets": (offset[start_index][0], offset[end_index][1]),
                        "score": start_logits[start_index] + end_logits[end_index],
                        "start_logit": start_logits[start_index],
                        "end_logit": end_logits[end_index],
                    }
                )
        predictions = sorted(prelim, key=lambda one: one["score"], reverse=True)[:most]
        for one in predictions:
            begin, end = one.pop("offsets")
            one["text"] = context[begin:end]
        if not predictions:
            predictions = [{"text": "", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0}]
        scores = np.array([one["score"] for one in predictions])
        odds = np.exp(scores - np.max(scores))
        for probability, one in zip(odds / odds.sum(), predictions, strict=True):
            one["probability"] = probability
        said[f"question {number}"] = [
            {key: float(value) if isinstance(value, (np.float16, np.float32, np.float64)) else value for key, value in one.items()} for one in predictions
        ]
    return said


def _best_there(starts: Tensor, ends: Tensor, known: Tensor, most: int, longest: int) -> Tensor:
    """The same on the GPU: begin, end, both logits, score and odds of each passage's best pairs."""
    (first, begin), (last, end) = starts.topk(most), ends.topk(most)
    fits = (end[:, None] >= begin[:, :, None]) & (end[:, None] - begin[:, :, None] < longest)
    fits &= known.gather(1, begin)[:, :, None] & known.gather(1, end)[:, None]
    scores, at = torch.where(fits, first[:, :, None] + last[:, None], -torch.inf).flatten(1).topk(most)
    one, other = at // most, at % most
    parts = [begin.gather(1, one), end.gather(1, other), first.gather(1, one), last.gather(1, other), scores, scores.softmax(1)]
    return torch.stack([part.float() for part in parts], -1)


def _told(found: list[list[list[float]]], offsets: list[list[Any]], contexts: list[str]) -> Answers:
    said = {}
    for number, (pairs, offset, context) in enumerate(zip(found, offsets, contexts, strict=True)):
        said[f"question {number}"] = [
            {
                "score": score, "start_logit": first, "end_logit": last,
                "text": context[offset[int(begin)][0] : offset[int(end)][1]], "probability": odds,
            }
            for begin, end, first, last, score, odds in pairs if score > -float("inf")
        ] or [{"text": "", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0, "probability": 1.0}]  # fmt: skip
    return said


def squad_answers(s: Setup, *, there: bool = False, pinned: bool = False, together: bool = False, **how: Any) -> Step:
    """A small RoBERTa finds answers in 32 passages of 384 words, which utils_qa.py takes from the logits by loops."""
    from transformers import RobertaConfig, RobertaForQuestionAnswering

    way, passages, length, words = How(**how), s.size(32, 2), s.size(384, 24), s.size(50_265, 101)
    most, longest = s.size(20, 5), 30
    config = RobertaConfig(
        vocab_size=words, hidden_size=s.size(384, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(1536, 64), max_position_embeddings=514, type_vocab_size=1, attn_implementation=way.attention,
    )  # fmt: skip
    model: Any = RobertaForQuestionAnswering(config)
    nn.init.normal_(model.qa_outputs.weight)
    model = _placed(s, way, model).eval()
    ids, mask = torch.randint(3, words, (passages, length)), torch.ones(passages, length, dtype=torch.long)
    offsets: list[list[Any]] = []
    for row, long in enumerate(torch.linspace(length // 2, length, passages).long().tolist()):
        ids[row, long:], mask[row, long:] = 1, 0
        asked = length // 24
        offsets.append([(6 * at, 6 * at + 5) if asked <= at < long - 1 else None for at in range(length)])
    drawn = random.Random(0)
    contexts = [" ".join("".join(drawn.choices("etaoinshrdlu", k=5)) for _ in range(length)) for _ in range(passages)]
    known = torch.tensor([[place is not None for place in offset] for offset in offsets], device=s.device)
    loader = Prefetcher([(s.pin(ids), s.pin(mask))], s) if pinned else None

    @torch.no_grad()
    def step() -> Answers:
        _precision(way)
        batch = loader.next() if loader else (ids.to(s.device), mask.to(s.device))
        with _casting(s, way):
            out = model(input_ids=batch[0], attention_mask=batch[1])
        starts, ends = out.start_logits.float(), out.end_logits.float()
        if there:
            return _told(_best_there(starts, ends, known, most, longest).cpu().tolist(), offsets, contexts)
        if together:
            both = torch.stack([starts, ends]).cpu().numpy()
            return _best_answers(both[0], both[1], offsets, contexts, most, longest)
        return _best_answers(starts.cpu().numpy(), ends.cpu().numpy(), offsets, contexts, most, longest)

    return step


PROGRAM = _public(
    "squad_answers",
    "A small RoBERTa of transformers in bf16 autocast on 32 passages of 384; Python loops find answers in NumPy's logits.",
    squad_answers,
    {"autocast": BF16},
    {
        "host-bound": {"there": True},
        "unfused-attention": {"attention": SDPA},
        "dtype-casts": {"autocast": None, "dtype": BF16},
        "memcpy": {"pinned": True},
        "sync-stall": {"together": True},
    },
)
