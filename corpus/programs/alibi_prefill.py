"""unfused-attention"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


class AlibiAttention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.fused = heads, kv_heads, fused
        self.q, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim // heads * kv_heads, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        b, n, dim = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = (part.view(b, n, self.kv_heads, -1).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
        k = k.repeat_interleave(self.heads // self.kv_heads, 1)
        v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
            y = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, dim))


def alibi_prefill(s: Setup, *, fused: bool = False) -> Step:
    dim, heads, length = s.size(2048, 32), s.size(32, 4), s.size(2048, 8)
    layers = nn.ModuleList(AlibiAttention(dim, heads, heads // 4, fused) for _ in range(2)).to(s.device, BF16)
    feeds = nn.ModuleList(nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(2)).to(s.device, BF16)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=s.device) / heads)
    distance = torch.arange(length, device=s.device)[None, :] - torch.arange(length, device=s.device)[:, None]
    bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, float("-inf"))[None].to(BF16)
    x = torch.randn(s.size(4, 1), length, dim, device=s.device, dtype=BF16)

    @torch.inference_mode()
    def step() -> Tensor:
        h = x
        for attention, feed in zip(layers, feeds, strict=True):
            h = h + attention(F.layer_norm(h, h.shape[-1:]), bias)
            h = h + feed(F.layer_norm(h, h.shape[-1:]))
        return h

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "alibi_prefill",
    "unfused-attention",
    "Prefill of two layers in bf16: grouped queries, ALiBi bias, softmax in FP32.",
    "F.scaled_dot_product_attention with the bias as its mask",
    alibi_prefill,
    partial(alibi_prefill, fused=True),
    gpu_bound=True,
)
