"""Eight layers of a GPT in training, fp16 autocast, a GradScaler, 10,003 words; attention and RMSNorm written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class RootNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, self.gain.shape, self.gain, 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * self.gain).to(x.dtype)


class Sentence(nn.Module):
    mask: Tensor

    def __init__(self, width: int, heads: int, longest: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.before, self.between = RootNorm(width, library), RootNorm(width, library)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width, bias=False), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(longest, longest, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        y = self.before(x)
        q, k, v = (part(y).view(count, length, self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.matmul(q, k.transpose(-2, -1)) / (width // self.heads) ** 0.5
            scores = scores.masked_fill(self.mask[:length, :length], float("-inf"))
            seen = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Storyteller(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.Sequential(*(Sentence(width, heads, longest, sdpa, library) for _ in range(layers)))
        self.norm, self.head = RootNorm(width, library), nn.Linear(width, words, bias=False)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places.weight[: text.shape[1]]
        return self.head(self.norm(self.layers(x)))


def bedtime_stories(
    s: Setup, *, half: bool = True, sdpa: bool = False, library: bool = False, padded: bool = False, fused: bool = False,
) -> Step:  # fmt: skip
    """All stories lie on the GPU; a tokenizer of 10,000 pieces and three marks of its own."""
    words, width, heads, tokens = s.size(10_003, 43), s.size(768, 16), s.size(12, 2), s.size(4_000_000, 200)
    longest, count = s.size(512, 8), s.size(24, 2)
    size = -(-words // 64) * 64 if padded else words
    with s.device:
        model = Storyteller(size, width, heads, s.size(8, 2), longest, sdpa, library)
        text, mean = torch.randint(words, (tokens,)), torch.zeros(())
        offsets = torch.arange(longest + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=half)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        these = text[torch.randint(tokens - longest - 1, (count, 1), device=s.device) + offsets]
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.float16 if half else BF16):
            logits = model(these[:, :-1])[..., :words]
            loss = F.cross_entropy(logits.flatten(0, 1), these[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        mean.lerp_(loss.detach(), 0.01)
        return mean

    return step


PROGRAM = written(
    "bedtime_stories",
    "Eight layers of a GPT in training, fp16 autocast, a GradScaler, 10,003 words; attention and RMSNorm written out.",
    "bf16 without a scaler; F.scaled_dot_product_attention; F.rms_norm; 10,048 words; AdamW(fused=True)",
    bedtime_stories,
    {
        "amp-scaler-sync": {"half": False},
        "unfused-attention": {"sdpa": True},
        "unfused-norm": {"library": True},
        "gemm-alignment": {"padded": True},
        "optimizer-foreach": {"fused": True},
    },
    gpu_bound=True,
)
