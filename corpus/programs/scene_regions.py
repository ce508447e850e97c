"""LXMERT of transformers, training in FP32 on 64 questions on 36 regions that the trainer loads; answers are read."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _optimizer, _placed, _precision, _public


class _Regions(torch.utils.data.Dataset[tuple[Any, ...]]):
    """Questions about photos, each with what a detector found there, as in LXMERT's VQATorchDataset."""

    def __init__(self, s: Setup, words: int, answers: int) -> None:
        drawn = np.random.default_rng(0)
        self.count, self.length, self.answers = s.size(1 << 14, 64), s.size(20, 6), answers
        corners = np.sort(drawn.random((s.size(256, 8), s.size(36, 4), 2, 2)), 2).reshape(s.size(256, 8), -1, 4)
        self.boxes = (corners * np.array([640, 480, 640, 480])).astype(np.float32)
        self.features = drawn.standard_normal((*self.boxes.shape[:2], s.size(2048, 16)), dtype=np.float32)
        self.questions = drawn.integers(1, words, (1024, self.length))
        self.lengths = drawn.integers(self.length // 2, self.length + 1, 1024)
        self.labels = [{int(at): 0.3 * (1 + n) for n, at in enumerate(drawn.integers(0, answers, 3))} for _ in range(1024)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Any, ...]:
        photo, question = at % len(self.boxes), at % 1024
        boxes, features = self.boxes[photo].copy(), self.features[photo].copy()
        boxes[:, (0, 2)] /= 640
        boxes[:, (1, 3)] /= 480
        np.testing.assert_array_less(boxes, 1 + 1e-5)
        np.testing.assert_array_less(-boxes, 1e-5)
        mask = (np.arange(self.length) < self.lengths[question]).astype(np.int64)
        target = torch.zeros(self.answers)
        for answer, score in self.labels[question].items():
            target[answer] = score
        return at, features, boxes, self.questions[question] * mask, mask, target


def _lxmert_attention(self: Any, hidden_states: Tensor, context: Tensor, attention_mask: Any = None, **_: Any) -> tuple[Tensor]:
    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.attention_head_size).transpose(1, 2)

    q, k, v = heads(self.query(hidden_states)), heads(self.key(context)), heads(self.value(context))
    mask = attention_mask if attention_mask is None else attention_mask.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout.p if self.training else 0.0)
    return (out.transpose(1, 2).flatten(2),)


def scene_regions(s: Setup, *, workers: int = 0, later: bool = False, sent: bool = False, fused: bool = False, **how: Any) -> Step:
    """LXMERT learns to answer questions about 36 regions of a photo, by its authors' loop: answers are noted in each step."""
    from transformers import LxmertConfig, LxmertForQuestionAnswering

    way, words, answers, drop = How(**how), s.size(30522, 101), s.size(3129, 11), 0.1 * s.size(1, 0)
    config = LxmertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        l_layers=s.size(9, 2), x_layers=s.size(5, 1), r_layers=s.size(5, 1), visual_feat_dim=s.size(2048, 16), num_qa_labels=answers,
        hidden_dropout_prob=drop, attention_probs_dropout_prob=drop,
    )  # fmt: skip
    model: Any = LxmertForQuestionAnswering(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "LxmertAttention":
                module.forward = MethodType(_lxmert_attention, module)
    model = _placed(s, way, model).train()
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters)
    count = workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        _Regions(s, words, answers), s.size(64, 4), num_workers=count, pin_memory=s.cuda, drop_last=True, persistent_workers=count > 0
    )  # fmt: skip
    names = [f"answer {at}" for at in range(answers)]
    said: dict[int, str] = {}
    waiting: list[tuple[Any, Tensor, Any]] = []

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def note(questions: Any, labels: Any) -> None:
        for question, label in zip(questions.tolist(), labels.numpy(), strict=True):
            said[question] = names[label]

    def step() -> dict[int, str]:
        _precision(way)
        questions, *host = next(batches)
        features, boxes, ids, mask, target = (part.to(s.device, non_blocking=sent) for part in host)
        optimizer.zero_grad()
        with _casting(s, way):
            logits = model(input_ids=ids, visual_feats=features, visual_pos=boxes, attention_mask=mask).question_answering_score
            loss = F.binary_cross_entropy_with_logits(logits.float(), target) * answers
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        labels = logits.detach().max(1)[1]
        if not later:
            note(questions, labels.cpu())
            return said
        there = s.pin(torch.empty(labels.shape, dtype=labels.dtype))
        there.copy_(labels, non_blocking=True)
        ready = torch.cuda.Event() if s.cuda else None
        if ready:
            ready.record()
        waiting.append((questions, there, ready))
        if len(waiting) > 1:
            before, known, done = waiting.pop(0)
            if done:
                done.synchronize()
            note(before, known)
        return said

    return step


PROGRAM = _public(
    "scene_regions",
    "LXMERT of transformers, training in FP32 on 64 questions on 36 regions that the trainer loads; answers are read.",
    scene_regions,
    {},
    {
        "data-loading": {"workers": 6},
        "sync-stall": {"later": True},
        "precision": {"autocast": BF16},
        "unfused-attention": {"fused": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "memcpy": {"sent": True},
    },
)
