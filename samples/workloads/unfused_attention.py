"""Attention that is written out, in training and by einsum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As BERT has it: scaled scores, an additive padding mask, dropout on the weights."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    weights = F.dropout(torch.softmax(scores + mask, dim=-1), p=0.1)
    return torch.matmul(weights, v)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(q, k, v, mask).transpose(1, 2).reshape(batch, length, dim))


def _encoder(s: Setup, attend: Attend) -> Step:
    dim, batch, length = s.size(1024, 32), s.size(16, 2), s.size(1024, 8)
    layers = nn.ModuleList(SelfAttention(dim, s.size(16, 2), attend) for _ in range(s.size(4, 1)))
    layers.to(s.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4, fused=True)
    x = torch.randn(batch, length, dim, device=s.device, dtype=torch.bfloat16)
    lengths = torch.linspace(length // 2, length, batch, device=s.device)
    padding = torch.arange(length, device=s.device)[None, :] >= lengths[:, None]
    mask = torch.zeros(padding.shape, device=s.device, dtype=torch.bfloat16).masked_fill(padding, -10000.0)[:, None, None, :]

    def step() -> None:
        optimizer.zero_grad()
        y = x
        for layer in layers:
            y = layer(y, mask)
        F.mse_loss(y, x).backward()
        optimizer.step()

    return step


def encoder_slow(s: Setup) -> Step:
    return _encoder(s, _written_out)


def encoder_fixed(s: Setup) -> Step:
    return _encoder(s, _fused)


def _tokens(s: Setup) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of an image decoder and keys and values of a text, [batch, length, heads, head]."""
    heads, head = s.size(12, 2), s.size(64, 8)
    shapes = ((s.size(8, 1), n, heads, head) for n in (s.size(4096, 8), s.size(1024, 4), s.size(1024, 4)))
    q, k, v = (torch.randn(shape, device=s.device, dtype=torch.float16) for shape in shapes)
    return q, k, v


def cross_slow(s: Setup) -> Step:
    q, k, v = _tokens(s)

    @torch.inference_mode()
    def step() -> Tensor:
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)

    return step


def cross_fixed(s: Setup) -> Step:
    q, k, v = (x.transpose(1, 2) for x in _tokens(s))

    @torch.inference_mode()
    def step() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    return step


WORKLOADS = (
    Workload(
        name="encoder_dropout_training", rule="unfused-attention", main=True, make_slow=encoder_slow, make_fixed=encoder_fixed,
        what="bf16 training of encoder layers with BERT's attention: padding mask added to the scores, dropout on the weights.",
        fix="F.scaled_dot_product_attention with attn_mask and dropout_p",
        top=("unfused-attention", "unfused-elementwise"), gpu_bound=True,
    ),
    Workload(
        name="cross_attention_einsum", rule="unfused-attention", make_slow=cross_slow, make_fixed=cross_fixed,
        what="Cross-attention of 4096 image tokens to 1024 text tokens by einsum, fp16, no mask.",
        fix="F.scaled_dot_product_attention",
        gpu_bound=True,
    ),
)  # fmt: skip
