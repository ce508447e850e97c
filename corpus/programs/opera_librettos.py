"""A Llama of six layers in training on 8 x 512 tokens, bf16 autocast: attention, RMSNorm, loss and clipping written out."""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class RMSNorm(nn.Module):
    def __init__(self, dim: int, op: bool, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.op, self.eps = nn.Parameter(torch.ones(dim)), op, eps

    def forward(self, x: Tensor) -> Tensor:
        if self.op:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.float()[..., ::2], x.float()[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.each, self.sdpa = heads, dim // heads, sdpa
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, self.each)) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)
        v = v.transpose(1, 2)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(self.each) + mask
            y = F.softmax(scores.float(), dim=-1).type_as(q) @ v
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, sdpa: bool, op: bool) -> None:
        super().__init__()
        self.attention, self.attention_norm, self.ffn_norm = Attention(dim, heads, sdpa), RMSNorm(dim, op), RMSNorm(dim, op)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(self, vocab: int, dim: int, layers: int, heads: int, hidden: int, context: int, sdpa: bool, op: bool, loss_op: bool) -> None:
        super().__init__()
        self.loss_op = loss_op
        self.embed, self.norm, self.head = nn.Embedding(vocab, dim), RMSNorm(dim, op), nn.Linear(dim, vocab, bias=False)
        self.layers = nn.ModuleList(Block(dim, heads, hidden, sdpa, op) for _ in range(layers))
        rate = 10000.0 ** (-torch.arange(0, dim // heads, 2).float() / (dim // heads))
        turn = torch.outer(torch.arange(context).float(), rate)[:, None]
        self.register_buffer("cos", turn.cos(), persistent=False)
        self.register_buffer("sin", turn.sin(), persistent=False)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)
        self.apply(self.init)
        self.head.weight = self.embed.weight

    @staticmethod
    def init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        logits = self.head(self.norm(x)).float().flatten(0, 1)
        targets = targets.flatten()
        if self.loss_op:
            return F.cross_entropy(logits, targets, ignore_index=-1)
        valid = targets != -1
        logits = logits - logits.max(-1, keepdim=True).values
        log_probs = logits - logits.exp().sum(-1, keepdim=True).log()
        nll = -log_probs.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        return (nll * valid).sum() / valid.sum()


def learning_rate(turn: int, peak: float = 6e-4, low: float = 6e-5, warmup: int = 200, end: int = 5000) -> float:
    if turn < warmup:
        return peak * (turn + 1) / (warmup + 1)
    return low + 0.5 * (1.0 + math.cos(math.pi * min(1.0, (turn - warmup) / (end - warmup)))) * (peak - low)


def opera_librettos(
    s: Setup,
    *,
    sdpa: bool = False,
    op: bool = False,
    loss_op: bool = False,
    padded: bool = False,
    compiled: bool = False,
    at_once: bool = False,
    fused: bool = False,
    read: bool = True,
) -> Step:
    """Training of a Llama of six layers on 8 x 512 tokens, bf16 autocast: attention, norms, loss and clipping by hand, with two reads."""
    rows, context, vocab, eos = s.size(8, 2), s.size(512, 16), s.size(32003, 67), 2
    dim, layers, heads, hidden = s.size(768, 32), s.size(6, 2), s.size(12, 2), s.size(2048, 48)
    rng = np.random.default_rng(411)
    text = (rng.zipf(1.2, s.size(1_000_000, 2000)) % vocab).astype(np.uint16)
    text[rng.integers(0, len(text), len(text) // 200)] = eos
    with s.device:
        model = Llama(-(-vocab // 64) * 64 if padded else vocab, dim, layers, heads, hidden, context, sdpa, op, loss_op)
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **({"fused": True} if fused else {}))
    turn, history, limit = counter(), [], 1.0

    def get_batch() -> tuple[Tensor, Tensor]:
        at = rng.integers(0, len(text) - context - 1, rows)
        x = torch.stack([torch.from_numpy(text[i : i + context].astype(np.int64)) for i in at])
        y = torch.stack([torch.from_numpy(text[i + 1 : i + 1 + context].astype(np.int64)) for i in at])
        y[x == eos] = -1
        return x.to(s.device), y.to(s.device)

    def clip() -> Tensor:
        if at_once:
            return torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in parameters))
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        for p in parameters:
            p.grad.mul_(scale)
        return norm

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        now = next(turn)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(now)
        x, y = get_batch()
        with torch.autocast(s.device.type, BF16):
            loss = network(x, y)
        loss.backward()
        norm = clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if read:
            history.append((now, loss.item(), norm.item()))
            del history[:-100]
        else:
            noted.add_(torch.stack([loss.detach(), norm]))
        return loss.detach()

    return step


PROGRAM = written(
    "opera_librettos",
    "A Llama of six layers in training on 8 x 512 tokens, bf16 autocast: attention, RMSNorm, loss and clipping written out.",
    "scaled_dot_product_attention; F.rms_norm; vocabulary of 32003 padded to 32064; torch.compile of the model and its loss; "
    "F.cross_entropy; fused AdamW; clip_grad_norm_ over all tensors; no reads",
    opera_librettos,
    {
        "unfused-attention": {"sdpa": True},
        "unfused-norm": {"op": True},
        "gemm-alignment": {"padded": True},
        "unfused-elementwise": {"compiled": True},
        "unfused-elementwise/loss": {"loss_op": True},
        "optimizer-foreach": {"fused": True},
        "optimizer-foreach/clip": {"at_once": True},
        "sync-stall": {"read": False},
    },
)
