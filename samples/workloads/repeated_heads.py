"""Decoders whose query heads share keys and values, which are written out for each of them before attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Shared:
    """heads of queries, of which `times` share one of keys; `room` words in the cache. way: of the attention."""

    width: int
    heads: int
    times: int
    way: str

    @property
    def head(self) -> int:
        return self.width // self.heads


class SharedHeads(nn.Module):
    """One layer of a decoder in the manner of Llama 3."""

    def __init__(self, of: Shared) -> None:
        super().__init__()
        self.of, kept = of, of.width // of.times
        self.q, self.kv, self.out = nn.Linear(of.width, of.width, bias=False), nn.Linear(of.width, 2 * kept, bias=False), nn.Linear(of.width, of.width, bias=False)
        self.up, self.down = nn.Linear(of.width, 7 * of.width, bias=False), nn.Linear(7 * of.width // 2, of.width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(of.width) for _ in range(2))

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None, mask: Tensor | None) -> Tensor:
        batch, words, _ = x.shape
        y, of = self.norms[0](x), self.of
        q = self.q(y).view(batch, words, of.heads, of.head).transpose(1, 2)
        k, v = self.kv(y).view(batch, words, 2, of.heads // of.times, of.head).permute(2, 0, 3, 1, 4).unbind(0)
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, -words:] = new
            k, v = cache
        seen = attended(q, k, v, mask, of)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, words, of.width))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, of: Shared) -> Tensor:
    """Attention in one call or written out, of keys that are repeated, or not."""
    causal = mask is None and q.shape[2] == k.shape[2]
    if of.way == "shared":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
    if of.way == "folded":
        rows = q.reshape(*k.shape[:2], -1, of.head)
        weights = torch.softmax(rows @ k.transpose(-1, -2) * of.head**-0.5, -1)
        return (weights @ v).view(q.shape)
    k, v = k.repeat_interleave(of.times, 1), v.repeat_interleave(of.times, 1)
    if of.way == "repeated":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return torch.softmax(q @ k.transpose(-1, -2) * of.head**-0.5, -1) @ v


def decoder(s: Setup, way: str, batch: int, room: int, words: int, layers: int = 8, times: int = 4, masked: bool = False, cached: bool = True) -> Step:
    """The last `words` of a cache of `room`, or all of a prompt; with a mask of what is padded."""
    of = Shared(s.size(4096, 32), s.size(32, 4), min(times, s.size(8, 2)), way)
    batch, room, words = (batch, room, words) if not s.tiny else (2, 16, min(words, 16))
    with s.device:
        stack = nn.ModuleList(SharedHeads(of) for _ in range(s.size(layers, 1))).to(BF16).eval()
        sizes = (batch, of.heads // of.times, room, of.head)
        caches = [(torch.randn(sizes, dtype=BF16), torch.randn(sizes, dtype=BF16)) if cached else None for _ in stack]
        x = torch.randn(batch, words, of.width, dtype=BF16)
        mask = (torch.arange(room) >= torch.randint(0, room // 2, (batch, 1)))[:, None, None].expand(-1, -1, words, -1) if masked else None

    @torch.inference_mode()
    def step() -> Tensor:
        y = x
        for layer, cache in zip(stack, caches, strict=True):
            y = layer(y, cache, mask)
        return y

    return step


def _pair(
    name: str, slow: str, fixed: str, what: str, fix: str, *, trap: bool = False, main: bool = False, top: tuple[str, ...] = (), **sizes: int | bool
) -> Workload:
    return Workload(
        name=name, rule="repeated-heads", what=what, fix=fix, trap=trap, main=main, top=top, gpu_bound=True,
        make_slow=partial(decoder, way=slow, **sizes), make_fixed=partial(decoder, way=fixed, **sizes),
    )  # fmt: skip


WORKLOADS = (
    _pair(
        "shared_cache", "repeated", "shared", "Sixteen conversations get a word each, from caches of 4096; keys are repeated for four heads each.",
        "enable_gqa=True", main=True, batch=16, room=4096, words=1,
    ),
    _pair(
        "padded_cache", "repeated", "shared", "Twenty-four conversations get a word each, from padded caches of 1536 and with a mask; keys are repeated for four heads each.",
        "enable_gqa=True", batch=24, room=1536, words=1, masked=True,
    ),
    _pair(
        "drafts_checked", "written", "folded", "Five drafted words of twelve conversations are checked; attention is written out, keys are repeated for eight heads each.",
        "query heads folded into the rows of the products", batch=12, room=2048, words=5, times=8,
        top=("repeated-heads", "unfused-attention"),
    ),
    _pair(
        "long_prompt", "repeated", "shared", "A prompt of 16,384 words is read; keys are repeated for four heads each.",
        "none worth making: products take the time", trap=True, batch=1, room=16_384, words=16_384, layers=4, cached=False,
    ),
)  # fmt: skip
