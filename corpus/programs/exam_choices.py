"""MPT of transformers with LoRA unmerged, bf16, rates 8 answers of 512 words; attention written out, 50,277 words, 8 reads."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture
from workloads.public import BF16, COMPILED, How, _placed, _precision, _public


class _Adapted(nn.Module):
    """A linear layer with LoRA of rank 16 beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.layer, self.scale = layer, 2.0
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x)) * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        self.layer.weight += self.scale * self.up.weight @ self.down.weight
        return self.layer


def _mpt_attention(
    self: Any, hidden_states: Tensor, position_bias: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **_: Any
) -> tuple[Tensor, None]:
    """MptAttention with its products in one kernel; no row has padding, so that the first one's mask is that of all."""
    batch, length, width = hidden_states.shape
    q, k, v = (x.view(batch, length, self.n_heads, self.head_dim).transpose(1, 2) for x in self.Wqkv(hidden_states).chunk(3, dim=2))
    bias = position_bias[None, :, :, position_bias.size(2) - length :]
    if attention_mask is not None:
        bias = bias.masked_fill(attention_mask[:1], torch.finfo(q.dtype).min)
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), scale=self.softmax_scale)
    return self.out_proj(seen.transpose(1, 2).reshape(batch, length, width)), None


def exam_choices(
    s: Setup, *, merged: bool = False, fused: bool = False, padded: bool = False, graphed: bool = False, at_once: bool = False,
    pinned: bool = False, **how: Any,
) -> Step:  # fmt: skip
    """MPT with LoRA says in BF16 which of a question's eight answers is the likeliest by the words of each; answers are read one by one."""
    from transformers import MptConfig, MptForCausalLM

    way, known, width = How(**{"dtype": BF16, **how}), s.size(50_277, 101), s.size(1024, 32)
    answers, length, last = s.size(8, 3), s.size(512, 16), s.size(64, 4)
    config = MptConfig(
        d_model=width, n_heads=s.size(16, 2), n_layers=s.size(5, 2), max_seq_len=s.size(2048, 32),
        vocab_size=s.size(50_304, 104) if padded else known,
    )  # fmt: skip
    with s.device:
        model: Any = MptForCausalLM(config)
        for block in model.transformer.blocks:
            for part, name in ((block.attn, "Wqkv"), (block.attn, "out_proj"), (block.ffn, "up_proj"), (block.ffn, "down_proj")):
                setattr(part, name, _Adapted(getattr(part, name)))
    model = _placed(s, way, model).eval()
    for block in model.transformer.blocks:
        if fused:
            block.attn.forward = MethodType(_mpt_attention, block.attn)
        if merged:
            for part in (block.attn, block.ffn):
                for name, layer in list(part.named_children()):
                    if isinstance(layer, _Adapted):
                        setattr(part, name, layer.merged())
    future = torch.ones(length, length, dtype=torch.bool, device=s.device).triu(1)[None, None] if graphed else None
    shelf = [torch.randint(3, known, (answers, length)) for _ in range(16)]
    if pinned:
        shelf = [s.pin(ids) for ids in shelf]
    ids, scores = torch.zeros(answers, length, dtype=torch.long, device=s.device), torch.zeros(answers, device=s.device)
    turn = 0

    def rated(ids: Tensor) -> Tensor:
        logits = model(input_ids=ids, attention_mask=future, use_cache=False).logits[:, :-1, :known]
        chances = logits.float().log_softmax(-1)
        chosen = chances.gather(-1, ids[:, 1:, None])[..., 0]
        return chosen[:, -last:].sum(-1)

    rate = s.compile(rated, mode=way.compiled) if way.compiled else rated

    @torch.no_grad()
    def fixed() -> None:
        scores.copy_(rated(ids))

    _precision(way)
    replay = capture(fixed, s) if graphed else None

    @torch.no_grad()
    def step() -> int:
        nonlocal turn
        _precision(way)
        host = shelf[turn % len(shelf)]
        turn += 1
        if replay:
            ids.copy_(host)
            replay()
            found = scores
        else:
            found = rate(host.to(s.device, non_blocking=pinned))
        listed = found.tolist() if at_once else [found[at].item() for at in range(answers)]
        return max(range(answers), key=listed.__getitem__)

    return step


PROGRAM = _public(
    "exam_choices",
    "MPT of transformers with LoRA unmerged, bf16, rates 8 answers of 512 words; attention written out, 50,277 words, 8 reads.",
    exam_choices,
    {},
    {
        "unmerged-adapters": {"merged": True},
        "unfused-attention": {"fused": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "gemm-alignment": {"padded": True},
        "graph-candidate": {"graphed": True},
        "sync-stall": {"at_once": True},
        "memcpy": {"pinned": True},
    },
)
