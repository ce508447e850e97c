"""unfused-elementwise"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def own_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class RankLayer(nn.Module):
    def __init__(self, dim: int, heads: int, gelu: Callable[[Tensor], Tensor], fused: bool) -> None:
        super().__init__()
        self.heads, self.gelu, self.fused = heads, gelu, fused
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, dim = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(b, n, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]), -1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(b, n, dim))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


def query_ranker(s: Setup, *, gelu: str = "own", fused: bool = False, graphed: bool = False) -> Step:
    dim, pairs, words = s.size(1536, 16), s.size(256, 2), s.size(64, 4)
    spelling = {"own": own_gelu, "library": partial(F.gelu, approximate="tanh"), "compiled": s.compile(own_gelu) if gelu == "compiled" else own_gelu}
    layers = nn.Sequential(*(RankLayer(dim, s.size(24, 2), spelling[gelu], fused) for _ in range(s.size(4, 1))))
    model = nn.Sequential(layers, nn.Linear(dim, 1)).to(s.device, BF16).eval()
    texts = torch.randn(pairs, words, dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(texts)[:, 0]

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "query_ranker",
    "unfused-elementwise",
    "bf16 inference on 256 texts of 64 words; GELU's tanh form and attention are written out.",
    "F.gelu(approximate='tanh')",
    query_ranker,
    {"gelu": "library"},
    alone={"unfused-elementwise/compiled": {"gelu": "compiled"}, "unfused-attention": {"fused": True}, "graph-candidate": {"graphed": True}},
    gpu_bound=True,
)
