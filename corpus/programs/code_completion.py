"""unfused-norm"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair
from workloads.public import BF16


class OwnNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.library = library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.scale, self.shift)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.scale * (x - mean) / torch.sqrt(variance + 1e-5) + self.shift


class CodeBlock(nn.Module):
    def __init__(self, width: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = OwnNorm(width, library), OwnNorm(width, library)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


def code_completion(s: Setup, *, library: bool = False, fused: bool = False, loss: str = "own") -> Step:
    width, words, batch, length = s.size(768, 16), s.size(24_576, 50), s.size(12, 2), s.size(768, 8)
    table, blocks = nn.Embedding(words, width), [CodeBlock(width, s.size(12, 2), library) for _ in range(s.size(6, 1))]
    model = nn.Sequential(table, *blocks, OwnNorm(width, library), nn.Linear(width, words)).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if fused else {"foreach": False}))
    ids = torch.randint(words, (batch, length + 1), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        logits, target = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        if loss == "own":
            probabilities = torch.exp(logits.float() - logits.float().max(-1, keepdim=True).values)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
            lost = -torch.log(probabilities.gather(1, target[:, None]) + 1e-9).mean()
        else:
            lost = F.cross_entropy(logits.float(), target)
        lost.backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "code_completion",
    "unfused-norm",
    "A decoder trained in bf16 on 12 x 768 words, layer norm and softmax written out, under AdamW(foreach=False).",
    "F.layer_norm",
    code_completion,
    {"library": True},
    alone={"unfused-norm/loss": {"loss": "library"}, "optimizer-foreach": {"fused": True}},
    gpu_bound=True,
)
