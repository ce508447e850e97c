"""One word of one player's talk a step in bf16, by a decoder whose FP32 weights are cast in each product; attention to 1500 words written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16
Weights = dict[str, Tensor]


def _told(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def _heard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.float().softmax(-1).to(v.dtype) @ v


def _layer(x: Tensor, w: Weights, kept: Tensor, at: int, heads: int, heard: Callable[..., Tensor]) -> Tensor:
    """`kept` holds keys and values (2, players, heads, length, size) of the talk so far."""
    width = x.shape[-1]
    q, k, v = _told(F.rms_norm(x, (width,)), w["all"]).view(len(x), 3, heads, 1, -1).unbind(1)
    kept[0, :, :, at : at + 1], kept[1, :, :, at : at + 1] = k, v
    x = x + _told(heard(q, kept[0, :, :, : at + 1], kept[1, :, :, : at + 1]).reshape(len(x), width), w["out"])
    gate, up = _told(F.rms_norm(x, (width,)), w["open"]).chunk(2, -1)
    return x + _told(F.silu(gate) * up, w["close"])


def tavern_talk(s: Setup, *, narrow: bool = False, players: int = 1, sdpa: bool = False, vocabulary: int = 32_003) -> Step:
    width, heads, layers, length, before = s.size(4096, 16), s.size(32, 2), s.size(6, 2), s.size(2048, 24), s.size(1500, 8)
    words, hidden = s.size(vocabulary, 30 + vocabulary % 16), s.size(11_008, 24)
    kind = BF16 if narrow else torch.float32

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=s.device).mul_(0.02).to(kind)

    stack = [
        {"all": drawn(3 * width, width), "out": drawn(width, width), "open": drawn(2 * hidden, width), "close": drawn(width, hidden)} for _ in range(layers)
    ]
    table, head = drawn(words, width), drawn(words, width)
    kept = torch.randn(layers, 2, players, heads, length, width // heads, device=s.device, dtype=BF16)
    word, turn = torch.randint(30, (players,), device=s.device), [0]
    heard = F.scaled_dot_product_attention if sdpa else _heard

    @torch.inference_mode()
    def step() -> Tensor:
        at = before + turn[0] % (length - before)
        turn[0] += 1
        x = table[word].to(BF16)
        for w, each in zip(stack, kept, strict=True):
            x = _layer(x, w, each, at, heads, heard)
        word.copy_(_told(F.rms_norm(x, (width,)), head).argmax(-1))
        return word

    return step


PROGRAM = written(
    "tavern_talk",
    "One word of one player's talk a step in bf16, by a decoder whose FP32 weights are cast in each product; attention to 1500 words written out.",
    "weights kept in bf16; eight players a step; F.scaled_dot_product_attention; a vocabulary of 32,008 instead of 32,003",
    tavern_talk,
    {
        "dtype-casts": {"narrow": True},
        "low-arithmetic-intensity": {"players": 8},
        "unfused-attention": {"sdpa": True},
        "gemm-alignment": {"vocabulary": 32_008},
    },
    shared={"low-arithmetic-intensity": 8.0},
    gpu_bound=True,
)
