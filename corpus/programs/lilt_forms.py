"""LiLT of transformers, training in bf16 autocast on 8 forms that Python lays out; attention written out, the loss is read."""

from __future__ import annotations

from itertools import cycle
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _public, training


def _sdpa_of_lilt(self: Any, hidden_states: Tensor, layout_inputs: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
    """Words' and places' scores are added, so that they are one product of the two side by side."""
    less = self.channel_shrink_ratio
    q, k, v = (self.transpose_for_scores(linear(hidden_states)) for linear in (self.query, self.key, self.value))
    places = (self.layout_query, self.layout_key, self.layout_value)
    place_q, place_k, place_v = (self.transpose_for_scores(linear(layout_inputs), r=less) for linear in places)
    both_q = torch.cat((q * q.shape[-1] ** -0.5, place_q * place_q.shape[-1] ** -0.5), -1)
    both_k, dropped = torch.cat((k, place_k), -1), self.dropout.p if self.training else 0.0
    mask = None if attention_mask is None else attention_mask.to(both_q.dtype)
    seen = [F.scaled_dot_product_attention(both_q, both_k, of, attn_mask=mask, dropout_p=dropped, scale=1.0) for of in (v, place_v)]
    return tuple(part.transpose(1, 2).flatten(2) for part in seen)


Form = list[tuple[list[int], tuple[float, float, float, float], int]]


def _laid_out(form: Form, length: int) -> tuple[list[int], list[list[int]], list[int], list[int]]:
    """Pieces of words with the box of their word in thousandths of the page; only a word's first piece has a label."""
    ids, boxes, labels = [0], [[0] * 4], [-100]
    for pieces, box, label in form:
        for at, piece in enumerate(pieces):
            ids.append(piece)
            boxes.append([min(1000, max(0, int(1000 * edge))) for edge in box])
            labels.append(-100 if at else label)
    ids, boxes, labels = [*ids[: length - 1], 2], [*boxes[: length - 1], [1000] * 4], [*labels[: length - 1], -100]
    more = length - len(ids)
    return ids + [1] * more, boxes + [[0] * 4] * more, labels + [-100] * more, [1] * len(ids) + [0] * more


def _form(words: int) -> Form:
    form: Form = []
    for left, top in torch.rand(words, 2).tolist():
        pieces = torch.randint(3, 100, (int(torch.randint(1, 4, ())),)).tolist()
        form.append((pieces, (left, top, left + 0.05, top + 0.01), int(torch.randint(7, ()))))
    return form


def lilt(s: Setup, *, prepared: bool = False, **how: Any) -> Step:
    """LiLT learns what the words of eight forms are: one stream of words and one of places; forms are laid out in this process."""
    from transformers import LiltConfig, LiltForTokenClassification

    way, count, length = How(**how), s.size(8, 2), s.size(512, 24)
    config = LiltConfig(
        vocab_size=s.size(50_265, 101), hidden_size=s.size(768, 48), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=length + 2, pad_token_id=1, num_labels=7,
    )  # fmt: skip
    model = LiltForTokenClassification(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "LiltSelfAttention":
            module.forward = MethodType(_sdpa_of_lilt, module)
    forms = [[_form(s.size(240, 9)) for _ in range(count)] for _ in range(8)]

    def batch(some: list[Form]) -> list[Tensor]:
        return [torch.tensor(part) for part in zip(*(_laid_out(form, length) for form in some), strict=True)]

    turns, ready = cycle(forms), cycle([batch(some) for some in forms] if prepared else [])

    def loss(model: Any) -> Tensor:
        ids, boxes, labels, mask = (part.to(s.device) for part in (next(ready) if prepared else batch(next(turns))))
        return model(input_ids=ids, bbox=boxes, labels=labels, attention_mask=mask).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


PROGRAM = _public(
    "lilt_forms",
    "LiLT of transformers, training in bf16 autocast on 8 forms that Python lays out; attention written out, the loss is read.",
    lilt,
    {"autocast": BF16, "read_loss": True},
    {
        "host-bound": {"prepared": True},
        "unfused-attention": {"attention": SDPA},
        "sync-stall": {"read_loss": False},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
