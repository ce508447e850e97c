"""Training that computes its activations again in the backward pass, where memory is free."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .base import Setup, Step, Workload


class LowRank(nn.Module):
    """A frozen linear layer and a trained product of two thin ones."""

    def __init__(self, width: int, out: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, out, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = LowRank(width, 3 * width, rank), LowRank(width, width, rank)
        self.gate, self.wide, self.narrow = (LowRank(a, b, rank) for a, b in ((width, 3 * width), (width, 3 * width), (3 * width, width)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.between(x)
        return x + self.narrow(F.silu(self.gate(h)) * self.wide(h))


def keep_products(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    kept = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_cudnn_attention.default}
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


def adapters(s: Setup, again: str = "all") -> Step:
    """again: which layers' activations are computed again: all, half, none, or all but their products."""
    width, words, batch, length, depth = s.size(2048, 32), s.size(16384, 64), s.size(4, 2), s.size(1024, 8), s.size(8, 2)
    with s.device:
        layers = nn.ModuleList(Layer(width, s.size(16, 2), s.size(16, 2)) for _ in range(depth)).to(torch.bfloat16)
        embedding, head = nn.Embedding(words, width, dtype=torch.bfloat16).requires_grad_(False), nn.Linear(width, words, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        tokens = torch.randint(words, (batch, length + 1))
    optimizer = torch.optim.AdamW([p for p in layers.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        x = embedding(tokens[:, :-1])
        for at, layer in enumerate(layers):
            if again == "products kept":
                x = checkpoint(layer, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(keep_products))
            elif again == "all" or (again == "half" and at % 2):
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        F.cross_entropy(head(x).flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def _made(make, again):
    return lambda s: make(s, again)


WORKLOADS = (
    Workload("adapters", "recomputation", "LoRA training of eight layers, each under activation checkpointing, in 4 GB of 80", "keep the activations", _made(adapters, "none"), _made(adapters, "all"), main=True, in_columns=True, gpu_bound=True, fixed_quiet=False),
)
