"""Decoders that were adapted with LoRA and are served with the adapters beside their layers, or merged into them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload

BF16 = torch.bfloat16


class Adapted(nn.Module):
    """A linear layer and what was learnt beside it, in the manner of peft; the adapter may keep more precision than its layer."""

    def __init__(self, inner: int, out: int, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = nn.Linear(inner, out, bias=False, dtype=BF16)
        self.down, self.up = nn.Linear(inner, rank, bias=False, dtype=dtype), nn.Linear(rank, out, bias=False, dtype=dtype)
        self.dropout, self.scale = nn.Dropout(0.05), 2.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        return (y + self.up(self.down(self.dropout(x.to(self.down.weight.dtype)))) * self.scale).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        self.base.weight += (self.up.weight.float() @ self.down.weight.float() * self.scale).to(BF16)
        return self.base


class AdaptedLayer(nn.Module):
    """One layer of a decoder in the manner of Llama; every linear layer of it is adapted, or the queries' alone."""

    def __init__(self, width: int, heads: int, rank: int, every: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, inner = heads, 7 * width // 2
        sizes = {"q": (width, width), "k": (width, width), "v": (width, width), "out": (width, width)}
        sizes |= {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}
        self.of = nn.ModuleDict(
            {
                name: Adapted(*size, rank, dtype) if every or name == "q" else nn.Linear(*size, bias=False, dtype=BF16)
                for name, size in sizes.items()
            }
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width, dtype=BF16) for _ in range(2))

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, words, width = x.shape
        y = self.norms[0](x)
        q, k, v = (self.of[name](y).view(batch, words, self.heads, -1).transpose(1, 2) for name in ("q", "k", "v"))
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, -words:] = new
            k, v = cache
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.of["out"](seen.transpose(1, 2).reshape(batch, words, width))
        y = self.norms[1](x)
        return x + self.of["down"](F.silu(self.of["gate"](y)) * self.of["up"](y))

    def merge(self) -> None:
        for name, layer in self.of.items():
            if isinstance(layer, Adapted):
                self.of[name] = layer.merged()


def decoder(
    s: Setup, merged: bool, batch: int, words: int, layers: int, *, rank: int = 16, every: bool = True, room: int = 0,
    dtype: torch.dtype = BF16,
) -> Step:  # fmt: skip
    """A prompt of `words`, or, with a cache of `room`, the last of them."""
    width, heads, batch, words, room = (4096, 32, batch, words, room) if not s.tiny else (64, 4, 2, min(words, 8), min(room, 16))
    with s.device:
        stack = nn.ModuleList(AdaptedLayer(width, heads, s.size(rank, 4), every, dtype) for _ in range(s.size(layers, 1))).eval()
        sizes = (batch, heads, room, width // heads)
        caches = [(torch.randn(sizes, dtype=BF16), torch.randn(sizes, dtype=BF16)) if room else None for _ in stack]
        x = torch.randn(batch, words, width, dtype=BF16)
    if merged:
        for layer in stack:
            layer.merge()

    @torch.inference_mode()
    def step() -> Tensor:
        y = x
        for layer, cache in zip(stack, caches, strict=True):
            y = layer(y, cache)
        return y

    return step


def _pair(
    name: str, what: str, fix: str = "merge_and_unload()", *, trap: bool = False, main: bool = False, top: tuple[str, ...] = (), **sizes: Any
) -> Workload:
    slow, fixed = (partial(decoder, merged=merged, **sizes) for merged in (False, True))
    # Where launches come first, the merged layers still wait for theirs.
    return Workload(
        name=name, rule="unmerged-adapters", what=what, fix=fix, trap=trap, main=main, top=top, gpu_bound=not top, fixed_quiet=not top,
        make_slow=slow, make_fixed=fixed,
    )  # fmt: skip


WORKLOADS = (
    _pair(
        "adapted_prompts", "Four prompts of 2048 words are read by a decoder whose linear layers have LoRA of rank 16 beside them, bf16.",
        main=True, batch=4, words=2048, layers=8,
    ),
    _pair(
        "adapters_in_fp32", "The same for a prompt of 4096 words, with adapters of rank 64 that stayed in FP32, as peft keeps them.",
        batch=1, words=4096, layers=8, rank=64, dtype=torch.float32,
    ),
    _pair(
        "adapted_words", "Eight conversations get a word each from caches of 1024; the host issues what the adapters ask for.",
        top=("launch-gap",), batch=8, words=1, layers=8, room=1024,
    ),
    _pair(
        "adapted_queries", "Four prompts of 2048 words; only the queries' layers are adapted.", "none worth making: the other layers take the time",
        trap=True, batch=4, words=2048, layers=8, rank=8, every=False,
    ),
)  # fmt: skip
