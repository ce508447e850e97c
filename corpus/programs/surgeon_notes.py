"""Wav2Vec2-Conformer of transformers, FP32, on 8 x 10 s of pageable sound, attention written out; letters picked row by row."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _placed, _precision, _public


def _dictation_attention(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, relative_position_embeddings: Any = None, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """Wav2Vec2ConformerSelfAttention with its products in one kernel; what depends on distances is its mask."""
    batch, frames, width = hidden_states.shape

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_size).transpose(1, 2)

    q, k, v = heads(self.linear_q(hidden_states)), heads(self.linear_k(hidden_states)), heads(self.linear_v(hidden_states))
    distances = heads(self.linear_pos(relative_position_embeddings))
    far = F.pad((q + self.pos_bias_v[:, None]) @ distances.transpose(-1, -2), (1, 0))
    far = far.view(batch, self.num_heads, 2 * frames, frames)[:, :, 1:].view(batch, self.num_heads, frames, 2 * frames - 1)[..., :frames]
    seen = F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, attn_mask=far * self.head_size**-0.5)
    return self.linear_out(seen.transpose(1, 2).reshape(batch, frames, width)), None


def _letters(ids: Tensor) -> list[list[int]]:
    """What is said in each recording: repeated letters once, and no blanks."""
    rows = []
    for row in ids:
        row = torch.unique_consecutive(row)
        rows.append(row[row != 0].tolist())
    return rows


def _letters_at_once(ids: Tensor) -> list[list[int]]:
    """Likewise, with blanks in place of what is left out, and one read."""
    repeated = F.pad(ids[:, 1:] == ids[:, :-1], (1, 0))
    return [[letter for letter in row if letter] for row in ids.masked_fill(repeated, 0).tolist()]


def surgeon_notes(s: Setup, *, fused: bool = False, at_once: bool = False, ahead: bool = False, **how: Any) -> Step:
    """Wav2Vec2-Conformer writes eight dictations of ten seconds down by CTC, in FP32; letters are collapsed recording by recording."""
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerForCTC

    way, batch, samples, width = How(**how), s.size(8, 2), s.size(160_000, 4000), s.size(1024, 32)
    config = Wav2Vec2ConformerConfig(
        vocab_size=32, hidden_size=width, num_hidden_layers=s.size(5, 1), num_attention_heads=s.size(16, 2), intermediate_size=4 * width,
        conv_dim=[s.size(512, 16)] * 7, feat_extract_norm="layer", conv_bias=True, position_embeddings_type="relative",
        max_source_positions=s.size(2000, 32), num_conv_pos_embeddings=s.size(128, 4), num_conv_pos_embedding_groups=s.size(16, 2),
        hidden_act="swish", attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model: Any = Wav2Vec2ConformerForCTC(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "Wav2Vec2ConformerSelfAttention":
                module.forward = MethodType(_dictation_attention, module)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    shelf = [0.1 * torch.randn(batch, samples) for _ in range(4)]
    loader = Prefetcher([(s.pin(sound),) for sound in shelf], s) if ahead else None
    sound = torch.zeros(batch, samples, device=s.device)
    turn = 0

    @torch.no_grad()
    def heard() -> Tensor:
        loud = (sound - sound.mean(-1, keepdim=True)) / torch.sqrt(sound.var(-1, keepdim=True) + 1e-7)
        with _casting(s, way):
            return run(loud).logits.argmax(-1)  # type: ignore[no-any-return]

    def step() -> list[list[int]]:
        nonlocal turn
        _precision(way)
        sound.copy_(loader.next()[0] if loader else shelf[turn % 4])
        turn += 1
        return _letters_at_once(heard()) if at_once else _letters(heard())

    return step


PROGRAM = _public(
    "surgeon_notes",
    "Wav2Vec2-Conformer of transformers, FP32, on 8 x 10 s of pageable sound, attention written out; letters picked row by row.",
    surgeon_notes,
    {},
    {
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "unfused-attention": {"fused": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "sync-stall": {"at_once": True},
        "memcpy": {"ahead": True},
    },
)
