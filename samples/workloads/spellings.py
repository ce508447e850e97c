"""Each pattern in ten spellings, each beside a product before and after it, as layers have them.

A spelling is a function from the layer's activations to what the next product reads. The fix is the op that says the same,
or the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Make, Setup, Step, Workload

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LAYERS = 2
DROPOUT = 0.1

Spelling = Callable[..., Tensor]


# Attention: q, k, v [batch, heads, length, head], and a mask that is added, True where a key may be seen.


@dataclass(frozen=True)
class Heads:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor
    seen: Tensor

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)


def att_matmul(h: Heads) -> Tensor:
    return ((h.q @ h.k.transpose(-2, -1)) / math.sqrt(h.q.shape[-1])).softmax(-1) @ h.v


def att_bmm_dropout(h: Heads) -> Tensor:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (h.q, h.k, h.v))
    weights = F.dropout(torch.softmax(torch.bmm(q * h.scale, k.transpose(1, 2)), dim=-1), DROPOUT)
    return torch.bmm(weights, v).view_as(h.q)


def att_einsum(h: Heads) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (h.q, h.k, h.v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * h.scale
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).transpose(1, 2)


def att_baddbmm(h: Heads) -> Tensor:
    """As Megatron has it: scaled by baddbmm, filled mask, softmax, dropout."""
    batch, heads, length, head = h.q.shape
    q, k, v = (x.reshape(batch * heads, length, head) for x in (h.q, h.k, h.v))
    empty = torch.empty(batch * heads, length, length, device=q.device, dtype=q.dtype)
    scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0.0, alpha=h.scale).view(batch, heads, length, length)
    weights = F.dropout(scores.masked_fill(~h.seen, -10000.0).softmax(-1), DROPOUT)
    return torch.bmm(weights.view(batch * heads, length, length), v).view_as(h.q)


def att_filled_fp32(h: Heads) -> Tensor:
    scores = (h.q @ h.k.transpose(-2, -1) * h.scale).masked_fill(~h.seen, float("-inf"))
    return F.softmax(scores, dim=-1, dtype=FP32).to(h.q.dtype) @ h.v


def att_where(h: Heads) -> Tensor:
    """As GPT-2 had it."""
    scores = torch.matmul(h.q, h.k.transpose(-1, -2)) / torch.full([], h.q.shape[-1] ** 0.5, dtype=h.q.dtype, device=h.q.device)
    scores = torch.where(h.seen, scores, torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device))
    return torch.matmul(F.dropout(F.softmax(scores, dim=-1).type(h.v.dtype), DROPOUT), h.v)


def att_llama(h: Heads) -> Tensor:
    """As transformers has it, with keys and values repeated for groups of heads."""
    groups = h.k.shape[1] // 4 or 1
    k, v = (x[:, ::groups][:, :, None].expand(-1, -1, groups, -1, -1).reshape(x.shape) for x in (h.k, h.v))
    scores = torch.matmul(h.q, k.transpose(2, 3)) * h.scale + h.mask
    weights = F.softmax(scores, dim=-1, dtype=FP32).to(h.q.dtype)
    return torch.matmul(F.dropout(weights, p=DROPOUT), v).transpose(1, 2).contiguous().transpose(1, 2)


def att_timm(h: Heads) -> Tensor:
    weights = ((h.q * h.scale) @ h.k.transpose(-2, -1)).softmax(dim=-1)
    return F.dropout(weights, DROPOUT) @ h.v


def att_t5(h: Heads) -> Tensor:
    scores = torch.matmul(h.q, h.k.transpose(3, 2)) + h.mask
    return torch.matmul(F.dropout(F.softmax(scores.float(), dim=-1).type_as(scores), DROPOUT), h.v)


def att_by_hand(h: Heads) -> Tensor:
    """Scores in FP32, the softmax written out."""
    scores = (h.q @ h.k.transpose(-2, -1)).float() * h.scale + h.mask
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(h.v.dtype) @ h.v


def fused_attention(h: Heads, dropout: float = 0.0, mask: bool = False, scale: float | None = None) -> Tensor:
    return F.scaled_dot_product_attention(h.q, h.k, h.v, attn_mask=h.mask if mask else None, dropout_p=dropout, scale=scale)


class AttentionLayer(nn.Module):
    def __init__(self, dim: int, heads: int, attend: Spelling) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor, seen: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(Heads(q, k, v, mask, seen)).transpose(1, 2).reshape(batch, length, dim))


def _attention(s: Setup, attend: Spelling, dtype: torch.dtype, training: bool, batch: int = 4, length: int = 1024) -> Step:
    dim, heads, batch, length = s.size(1024, 32), s.size(16, 8), s.size(batch, 2), s.size(length, 8)
    layers = nn.ModuleList(AttentionLayer(dim, heads, attend) for _ in range(LAYERS)).to(s.device, dtype)
    x = torch.randn(batch, length, dim, device=s.device, dtype=dtype)
    seen = torch.ones(length, length, dtype=torch.bool, device=s.device).tril()
    mask = torch.zeros(length, length, device=s.device, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    return _stacked(layers, x, (mask, seen), training)


def _stacked(layers: nn.ModuleList, x: Tensor, more: tuple[Any, ...], training: bool) -> Step:
    def forward() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        y = x
        for layer in layers:
            y = layer(y, *more)
        return y

    @torch.no_grad()
    def infer() -> Tensor:
        return forward()

    def train() -> None:
        for parameter in layers.parameters():
            parameter.grad = None
        forward().mean().backward()

    return train if training else infer


# What stands between two products and keeps the shape: norms, activations, rotations, dropout, layouts.


def rms_llama(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide = x.to(FP32)
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rms_t5(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x * torch.rsqrt(x.to(FP32).pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (x.to(w.dtype) if w.dtype in (BF16, FP16) else x)


def rms_by_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-6) * w


def rms_gemma(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)
    return (wide * (1.0 + w.float())).type_as(x)


def rms_root(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w * x / torch.sqrt(torch.mean(torch.square(x), dim=-1, keepdim=True) + 1e-6)


def ln_annotated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + b


def ln_bert(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As TensorFlow's had it."""
    u = x.mean(-1, keepdim=True)
    s = (x - u).pow(2).mean(-1, keepdim=True)
    return w * ((x - u) / torch.sqrt(s + 1e-12)) + b


def ln_var(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide = x.float()
    wide = (wide - wide.mean(-1, keepdim=True)) * (wide.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    return wide.to(x.dtype) * w + b


def ln_var_mean(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return torch.addcmul(b, (x - mean) * torch.rsqrt(var + 1e-5), w)


def ln_moments(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
    return (x - mean) / (square - mean**2 + 1e-5).sqrt() * w + b


def rms_op(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


def ln_op(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def gelu_new(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_erf(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_quick(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def gelu_fast(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_fp32(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    wide = x.float()
    return (0.5 * wide * (1 + torch.erf(wide * 0.7071067811865476))).to(x.dtype)


def gelu_megatron(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x + b
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def geglu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate = x * w
    return (0.5 * gate * (1.0 + torch.erf(gate / 1.4142135623730951))) * x + b


def swish_gate(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.sigmoid(x) * (x + b) * w


def mish_by_hand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x * torch.tanh(torch.log(1 + torch.exp(x))) + b


def relu_squared(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.pow(torch.clamp(x + b, min=0), 2) * w


def _tables(x: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, head]."""
    inverse = 1.0 / 10000 ** (torch.arange(0, head, 2, device=x.device).float() / head)
    angle = torch.outer(torch.arange(x.shape[1], device=x.device).float(), inverse)
    return torch.cat((angle, angle), -1).cos().to(x.dtype), torch.cat((angle, angle), -1).sin().to(x.dtype)


def _rotated(rotate: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """[batch, length, dim] by heads of 64 (8 where tiny)."""
    head = 64 if x.shape[-1] % 64 == 0 else 8
    cos, sin = _tables(x, head)
    return rotate(x.view(*x.shape[:2], -1, head), cos[None, :, None], sin[None, :, None]).reshape(x.shape)


def _half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rope_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + _half(x) * sin


def rope_fp32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    return (wide * cos.float() + _half(wide) * sin.float()).to(x.dtype)


def rope_sliced(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., n:], x[..., :n]), dim=-1) * sin


def rope_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + rotated * sin


def rope_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = x.shape[-1] // 2
    turn = torch.complex(cos[..., :n].float(), sin[..., :n].float())
    return torch.view_as_real(torch.view_as_complex(x.float().reshape(*x.shape[:-1], n, 2)) * turn).flatten(-2).type_as(x)


def rope_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    c, s = cos[..., : first.shape[-1]], sin[..., : first.shape[-1]]
    return torch.cat((first * c - second * s, second * c + first * s), -1)


def rope_partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = x.shape[-1] // 2
    turned, kept = x[..., :n], x[..., n:]
    return torch.cat((turned * cos[..., :n] + _half(turned) * sin[..., :n], kept), -1)


def rope_paired(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    n = x.shape[-1] // 2
    c, s = cos[..., :n].float(), sin[..., :n].float()
    turned = (pairs[..., 0] * c - pairs[..., 1] * s, pairs[..., 1] * c + pairs[..., 0] * s)
    return torch.stack(turned, -1).flatten(3).type_as(x)


def rope_heads_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y, c, s = x.transpose(1, 2), cos.transpose(1, 2), sin.transpose(1, 2)
    return (y * c + _half(y) * s).transpose(1, 2)


def rope_roll(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    n = x.shape[-1] // 2
    sign = torch.ones(x.shape[-1], device=x.device, dtype=x.dtype)
    sign[:n] = -1
    return x * cos + torch.roll(x, n, -1) * sign * sin


def drop_add(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.dropout(x, DROPOUT) + x


def drop_bias_add(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As Megatron has it."""
    return x + F.dropout(x + b, p=DROPOUT, training=True)


def drop_bernoulli(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x + x * torch.empty_like(x).bernoulli_(1 - DROPOUT) / (1 - DROPOUT)


def drop_rand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x + torch.where(torch.rand_like(x) > DROPOUT, x, torch.zeros_like(x)) * (1 / (1 - DROPOUT))


def drop_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x + F.dropout(x, DROPOUT), x.shape[-1:], w, b)


def drop_path(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """As timm has it."""
    keep = x.new_empty((x.shape[0], 1, 1)).bernoulli_(1 - DROPOUT).div_(1 - DROPOUT)
    return x + (x * w) * keep


def drop_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x + F.dropout(F.gelu(x) * w, DROPOUT)


def drop_twice(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.dropout(x + F.dropout(x, DROPOUT), DROPOUT) * w


def drop_scale(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Layer scale, dropout, residual."""
    return x.addcmul(F.dropout(x, DROPOUT), w)


def drop_filled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gone = torch.rand(x.shape, device=x.device) < DROPOUT
    return x + x.masked_fill(gone, 0.0) / (1 - DROPOUT)


def trip_rows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x.transpose(1, 2).contiguous() * 2.0
    return y.transpose(1, 2).contiguous()


def trip_heads(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x.view(*x.shape[:2], 8, -1).transpose(1, 2).contiguous()
    return torch.relu(y).transpose(1, 2).contiguous().view(x.shape)


def trip_image(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Channels first and last again around a scale of the channels."""
    y = x.permute(0, 2, 1).contiguous() * w[:, None]
    return y.permute(0, 2, 1).contiguous()


def trip_clone(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = x.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    return F.gelu(y).transpose(0, 1).clone(memory_format=torch.contiguous_format)


def trip_movedim(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.movedim(x, 1, 0).contiguous() + b
    return torch.movedim(y, 0, 1).contiguous()


def trip_matrix(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.tanh(x.flatten(0, 1).t().contiguous())
    return y.t().contiguous().view(x.shape)


def trip_windows(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Windows of 8 rows, and back, with pointwise work on each."""
    batch, length, dim = x.shape
    y = x.view(batch, length // 8, 8, dim).permute(2, 0, 1, 3).contiguous() * w
    return y.permute(1, 2, 0, 3).contiguous().view(x.shape)


def trip_shuffle(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Channels dealt into groups and back."""
    y = x.view(*x.shape[:2], 4, -1).transpose(2, 3).reshape(x.shape)
    y = F.silu(y)
    return y.view(*x.shape[:2], -1, 4).transpose(2, 3).reshape(x.shape)


def trip_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Sequence first, for a norm that does not ask."""
    y = F.layer_norm(x.transpose(0, 1).contiguous(), x.shape[-1:], w, b)
    return y.transpose(0, 1).contiguous()


def trip_plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2).contiguous()


STRAIGHT: dict[str, Spelling] = {
    "trip_rows": lambda x, w, b: x * 2.0,
    "trip_heads": lambda x, w, b: torch.relu(x),
    "trip_image": lambda x, w, b: x * w,
    "trip_clone": lambda x, w, b: F.gelu(x),
    "trip_movedim": lambda x, w, b: x + b,
    "trip_matrix": lambda x, w, b: torch.tanh(x),
    "trip_windows": lambda x, w, b: x * w,
    "trip_shuffle": lambda x, w, b: F.silu(x),
    "trip_norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    "trip_plain": lambda x, w, b: x,
}


class Between(nn.Module):
    """A product, a spelling, a product."""

    def __init__(self, dim: int, inner: int, spelling: Spelling) -> None:
        super().__init__()
        self.up, self.down, self.spelling = nn.Linear(dim, inner), nn.Linear(inner, dim), spelling
        self.w, self.b = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.zeros(inner))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.spelling(self.up(x), self.w, self.b))


def _between(s: Setup, spelling: Spelling, dtype: torch.dtype, training: bool, compiled: bool = False) -> Step:
    dim, inner = s.size(512, 32), s.size(2048, 64)
    chosen = s.compile(lambda x, w, b: spelling(x, w, b)) if compiled else spelling
    layers = nn.ModuleList(Between(dim, inner, chosen) for _ in range(LAYERS)).to(s.device, dtype)
    x = torch.randn(s.size(16, 2), s.size(1024, 8), dim, device=s.device, dtype=dtype)
    return _stacked(layers, x, (), training)


# Losses: logits [rows, classes] and labels.


def ce_log_softmax(x: Tensor, y: Tensor) -> Tensor:
    return -torch.log(torch.softmax(x, -1)).gather(-1, y[:, None]).mean()


def ce_one_hot(x: Tensor, y: Tensor) -> Tensor:
    return -(F.one_hot(y, x.shape[-1]) * F.log_softmax(x, -1)).sum(-1).mean()


def ce_one_hot_log(x: Tensor, y: Tensor) -> Tensor:
    return -(F.one_hot(y, x.shape[-1]).to(x.dtype) * torch.log(F.softmax(x, -1) + 1e-8)).sum(-1).mean()


def ce_logsumexp(x: Tensor, y: Tensor) -> Tensor:
    return (torch.logsumexp(x, -1) - x.gather(-1, y[:, None]).squeeze(-1)).mean()


def ce_by_hand(x: Tensor, y: Tensor) -> Tensor:
    x = x - x.amax(-1, keepdim=True)
    return -(x - torch.log(torch.exp(x).sum(-1, keepdim=True))).gather(-1, y[:, None]).mean()


def ce_nll(x: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(torch.log(torch.softmax(x.float(), -1)), y)


def ce_smoothed(x: Tensor, y: Tensor) -> Tensor:
    """As timm has it."""
    log_p = F.log_softmax(x, dim=-1)
    nll, smooth = -log_p.gather(dim=-1, index=y.unsqueeze(1)).squeeze(1), -log_p.mean(dim=-1)
    return (0.9 * nll + 0.1 * smooth).mean()


def ce_range(x: Tensor, y: Tensor) -> Tensor:
    p = torch.exp(x.float()) / torch.exp(x.float()).sum(-1, keepdim=True)
    return -torch.log(p[torch.arange(len(y), device=y.device), y]).mean()


def ce_focal(x: Tensor, y: Tensor) -> Tensor:
    log_p = F.log_softmax(x.float(), -1).gather(-1, y[:, None])
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def ce_distilled(x: Tensor, y: Tensor) -> Tensor:
    soft = F.softmax(x.detach().flip(0) / 2.0, -1)
    return -(soft * F.log_softmax(x / 2.0, -1)).sum(-1).mean()


def ce_op(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y)


def _loss(s: Setup, spelling: Spelling, dtype: torch.dtype, compiled: bool = False) -> Step:
    dim, classes = s.size(1024, 32), s.size(16384, 64)
    head = nn.Linear(dim, classes, bias=False).to(s.device, dtype)
    x = torch.randn(s.size(8192, 16), dim, device=s.device, dtype=dtype)
    labels = torch.randint(classes, (len(x),), device=s.device)
    loss = s.compile(lambda x, y: spelling(x, y)) if compiled else spelling

    def step() -> None:
        head.weight.grad = None
        loss(head(x), labels).backward()

    return step


# Optimizers over the parameters of a narrow, deep network.

Update = Callable[[list[Tensor], list[Tensor], list[Tensor]], None]


def opt_sgd(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx in zip(p, g, strict=True):
        x.sub_(1e-3 * dx)


def opt_data(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx in zip(p, g, strict=True):
        x.data = x.data - 1e-3 * dx.data


def opt_momentum(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx, v in zip(p, g, m, strict=True):
        v.mul_(0.9).add_(dx)
        x.add_(v, alpha=-1e-3)


def opt_nesterov(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx, v in zip(p, g, m, strict=True):
        dx = dx.add(x, alpha=1e-4)
        v.mul_(0.9).add_(dx)
        x.add_(dx.add(v, alpha=0.9), alpha=-1e-3)


def opt_adam(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx, v in zip(p, g, m, strict=True):
        v.mul_(0.999).addcmul_(dx, dx, value=0.001)
        x.addcdiv_(dx, v.sqrt().add_(1e-8), value=-1e-3)


def opt_lion(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx, v in zip(p, g, m, strict=True):
        x.add_((v * 0.9 + dx * 0.1).sign_(), alpha=-1e-4)
        v.mul_(0.99).add_(dx, alpha=0.01)


def opt_rmsprop(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for x, dx, v in zip(p, g, m, strict=True):
        v.copy_(0.99 * v + 0.01 * dx**2)
        x.copy_(x - 1e-3 * dx / (torch.sqrt(v) + 1e-8))


def opt_ema(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    """Weights averaged over time."""
    for x, v in zip(p, m, strict=True):
        v.copy_(v * 0.999 + (1 - 0.999) * x)


def each_foreach(name: str, p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    if name in ("opt_sgd", "opt_data"):
        torch._foreach_add_(p, g, alpha=-1e-3)
    elif name == "opt_nesterov":
        g = list(torch._foreach_add(g, p, alpha=1e-4))
        torch._foreach_mul_(m, 0.9)
        torch._foreach_add_(m, g)
        torch._foreach_add_(g, m, alpha=0.9)
        torch._foreach_add_(p, g, alpha=-1e-3)
    elif name == "opt_momentum":
        torch._foreach_mul_(m, 0.9)
        torch._foreach_add_(m, g)
        torch._foreach_add_(p, m, alpha=-1e-3)
    elif name in ("opt_adam", "opt_rmsprop"):
        torch._foreach_mul_(m, 0.999)
        torch._foreach_addcmul_(m, g, g, value=0.001)
        roots = torch._foreach_sqrt(m)
        torch._foreach_add_(roots, 1e-8)
        torch._foreach_addcdiv_(p, g, roots, value=-1e-3)
    elif name == "opt_lion":
        signs = torch._foreach_mul(m, 0.9)
        torch._foreach_add_(signs, g, alpha=0.1)
        torch._foreach_sign_(signs)
        torch._foreach_add_(p, signs, alpha=-1e-4)
        torch._foreach_mul_(m, 0.99)
        torch._foreach_add_(m, g, alpha=0.01)
    else:
        torch._foreach_lerp_(m, p, 0.001)


class _Own(torch.optim.Optimizer):
    def __init__(self, parameters: list[Tensor], update: Update) -> None:
        super().__init__(parameters, {})
        self.update = update

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        chosen = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        state = [self.state[p].setdefault("m", torch.zeros_like(p)) for p in chosen]
        self.update(chosen, [p.grad for p in chosen], state)


def _optimizing(s: Setup, make: Callable[[list[Tensor]], Any]) -> Step:
    dim = s.size(256, 16)
    layers: list[nn.Module] = []
    for _ in range(s.size(16, 3)):
        layers += [nn.Linear(dim, dim), nn.ReLU()]
    model = nn.Sequential(*layers).to(s.device)
    optimizer = make(list(model.parameters()))
    x = torch.randn(s.size(512, 4), dim, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _spelling(pattern: str, rule: str, name: str, what: str, slow: Make, fixed: Make, fix: str) -> Workload:
    return Workload(
        name=name, rule=rule, folder=f"spellings/{pattern}", what=what, fix=fix, make_slow=slow, make_fixed=fixed, slow_only=True,
    )  # fmt: skip


_ATTENTION: tuple[tuple[Spelling, torch.dtype, bool, dict[str, Any]], ...] = (
    (att_matmul, FP16, False, {}),
    (att_bmm_dropout, BF16, True, {"dropout": DROPOUT}),
    (att_einsum, FP16, True, {}),
    (att_baddbmm, BF16, False, {"dropout": DROPOUT, "mask": True}),
    (att_filled_fp32, BF16, True, {"mask": True}),
    (att_where, BF16, True, {"dropout": DROPOUT, "mask": True}),
    (att_llama, BF16, True, {"dropout": DROPOUT, "mask": True}),
    (att_timm, FP32, True, {"dropout": DROPOUT}),
    (att_t5, BF16, False, {"dropout": DROPOUT, "mask": True, "scale": 1.0}),
    (att_by_hand, BF16, True, {"mask": True}),
)
_NORMS = (rms_llama, rms_t5, rms_by_norm, rms_gemma, rms_root, ln_annotated, ln_bert, ln_var, ln_var_mean, ln_moments)
_GELUS = (gelu_new, gelu_erf, gelu_quick, gelu_fast, gelu_fp32, gelu_megatron, geglu, swish_gate, mish_by_hand, relu_squared)
_ROPES = (
    rope_half, rope_fp32, rope_sliced, rope_interleaved, rope_complex, rope_halves, rope_partial, rope_paired, rope_heads_first, rope_roll,
)  # fmt: skip
_DROPS = (
    drop_add, drop_bias_add, drop_bernoulli, drop_rand, drop_norm, drop_path, drop_gelu, drop_twice, drop_scale, drop_filled,
)  # fmt: skip
_TRIPS = (
    trip_rows, trip_heads, trip_image, trip_clone, trip_movedim, trip_matrix, trip_windows, trip_shuffle, trip_norm, trip_plain,
)  # fmt: skip
_LOSSES = (
    ce_log_softmax, ce_one_hot, ce_one_hot_log, ce_logsumexp, ce_by_hand, ce_nll, ce_smoothed, ce_range, ce_focal, ce_distilled,
)  # fmt: skip
_OWN = (opt_sgd, opt_data, opt_momentum, opt_nesterov, opt_adam, opt_lion, opt_rmsprop, opt_ema)


def _named(function: Spelling) -> str:
    return function.__name__


def _words(function: Spelling) -> str:
    return f"{_named(function).split('_', 1)[-1].replace('_', ' ')}, between two products."


WORKLOADS = (
    *(
        _spelling(
            "attention", "unfused-attention", _named(f), _words(f), partial(_attention, attend=f, dtype=dtype, training=training),
            partial(_attention, attend=partial(fused_attention, **options), dtype=dtype, training=training), "scaled_dot_product_attention",
        )
        for f, dtype, training, options in _ATTENTION
    ),
    *(
        _spelling(
            "norm", "unfused-norm", _named(f), _words(f), partial(_between, spelling=f, dtype=BF16, training=n % 2 == 0),
            partial(_between, spelling=rms_op if _named(f).startswith("rms") else ln_op, dtype=BF16, training=n % 2 == 0),
            "F.rms_norm or F.layer_norm",
        )
        for n, f in enumerate(_NORMS)
    ),
    *(
        _spelling(
            "gelu", "unfused-elementwise", _named(f), _words(f), partial(_between, spelling=f, dtype=BF16, training=n % 2 == 1),
            partial(_between, spelling=f, dtype=BF16, training=n % 2 == 1, compiled=True), "torch.compile",
        )
        for n, f in enumerate(_GELUS)
    ),
    *(
        _spelling(
            "rotary", "unfused-elementwise", _named(f), _words(f),
            partial(_between, spelling=partial(_rotated, f), dtype=BF16, training=n % 2 == 0),
            partial(_between, spelling=partial(_rotated, f), dtype=BF16, training=n % 2 == 0, compiled=True), "torch.compile",
        )
        for n, f in enumerate(_ROPES)
    ),
    *(
        _spelling(
            "dropout-residual", "unfused-elementwise", _named(f), _words(f), partial(_between, spelling=f, dtype=BF16, training=True),
            partial(_between, spelling=f, dtype=BF16, training=True, compiled=True), "torch.compile",
        )
        for f in _DROPS
    ),
    *(
        _spelling(
            "round-trip", "memory-layout", _named(f), _words(f), partial(_between, spelling=f, dtype=BF16, training=n % 2 == 1),
            partial(_between, spelling=STRAIGHT[_named(f)], dtype=BF16, training=n % 2 == 1), "the same without the copies",
        )
        for n, f in enumerate(_TRIPS)
    ),
    *(
        _spelling(
            "cross-entropy", "unfused-norm", _named(f), _words(f), partial(_loss, spelling=f, dtype=BF16),
            partial(_loss, spelling=ce_op, dtype=BF16) if f not in (ce_smoothed, ce_focal, ce_distilled)
            else partial(_loss, spelling=f, dtype=BF16, compiled=True), "F.cross_entropy, or torch.compile",
        )
        for f in _LOSSES
    ),
    *(
        _spelling(
            "optimizer", "optimizer-foreach", _named(f), f"{_named(f)[4:]} over 32 parameters in a loop.",
            partial(_optimizing, make=partial(_Own, update=f)), partial(_optimizing, make=partial(_Own, update=partial(each_foreach, _named(f)))),
            "torch._foreach_*",
        )
        for f in _OWN
    ),
    *(
        _spelling(
            "optimizer", "optimizer-foreach", f"opt_torch_{kind.__name__.lower()}", f"{kind.__name__} with foreach=False.",
            partial(_optimizing, make=partial(kind, lr=1e-3, foreach=False)), partial(_optimizing, make=partial(kind, lr=1e-3, fused=True)),
            "fused=True",
        )
        for kind in (torch.optim.AdamW, torch.optim.SGD)
    ),
)  # fmt: skip
