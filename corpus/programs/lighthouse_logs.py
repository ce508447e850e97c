"""RetNet in training on eight pieces of 1024 words, bf16 autocast: 30,011 words, norms written out, gradients zeroed, two reads."""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class Rms(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight


def turned(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    odd = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cosine + odd * sine


class Retention(nn.Module):
    """Each head forgets at its own pace; within a chunk all at once, from chunk to chunk by a state."""

    def __init__(self, width: int, heads: int, chunk: int, library: bool) -> None:
        super().__init__()
        self.heads, self.chunk, self.library = heads, chunk, library
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(2 * width, width, bias=False)
        pace, place = torch.log(1 - 2.0 ** (-5 - torch.arange(heads).float()))[:, None], torch.arange(chunk).float()
        apart = place[:, None] - place[None]
        self.register_buffer("mask", torch.where(apart >= 0, torch.exp(apart.clamp(min=0) * pace[..., None]), 0.0))
        self.register_buffer("since", torch.exp((place + 1) * pace)[..., None])
        self.register_buffer("until", torch.exp((chunk - 1 - place) * pace)[..., None])
        self.register_buffer("whole", torch.exp(chunk * pace)[..., None])

    def forward(self, x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (part(x).view(b, n, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = turned(q, sine, cosine), turned(k * (width // self.heads) ** -0.5, sine, cosine)
        state = torch.zeros(b, self.heads, k.shape[-1], v.shape[-1], device=x.device)
        said = []
        for qc, kc, vc in zip(*(part.split(self.chunk, dim=2) for part in (q, k, v)), strict=True):
            near = torch.matmul(torch.einsum("bhnd,bhmd->bhnm", qc, kc) * self.mask, vc)
            far = torch.matmul(qc, state) * self.since
            said.append(near + far)
            state = state * self.whole + torch.matmul((kc * self.until).transpose(2, 3), vc)
        y = torch.cat(said, dim=2)
        if self.library:
            y = F.rms_norm(y, (y.shape[-1],), None, 1e-6)
        else:
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.out(F.silu(self.gate(x)) * y.transpose(1, 2).reshape(b, n, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, chunk: int, library: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = Rms(width, library), Rms(width, library)
        self.retention = Retention(width, heads, chunk, library)
        self.w1, self.w2, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False), nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
        x = x + self.retention(self.norm1(x), sine, cosine)
        y = self.norm2(x)
        return x + self.w2(F.gelu(self.w1(y)) * self.w3(y))


class RetNet(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, inner: int, chunk: int, library: bool) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), Rms(width, library)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads, inner, chunk, library) for _ in range(layers))
        self.register_buffer("angle", (10_000.0 ** -torch.linspace(0, 1, width // heads // 2)).repeat_interleave(2))

    def forward(self, ids: Tensor) -> Tensor:
        turns = torch.arange(ids.shape[1], device=ids.device)[:, None] * self.angle
        sine, cosine = turns.sin(), turns.cos()
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, sine, cosine)
        return F.linear(self.norm(x), self.words.weight)


def lighthouse_logs(
    s: Setup,
    *,
    compiled: bool = False,
    library: bool = False,
    padded: bool = False,
    fused: bool = False,
    dropped: bool = False,
    read: bool = True,
    pinned: bool = False,
) -> Step:
    """RetNet in training on eight pieces of 1024 words out of 30,011, bf16 autocast: norms written out, gradients zeroed, loss and norm read."""
    batch, length, words = s.size(8, 2), s.size(1024, 16), s.size(30_011, 61)
    rng = np.random.default_rng(353)
    book = rng.integers(0, words, s.size(2_000_000, 500)).astype(np.uint16)
    rows = math.ceil(words / 64) * 64 if padded else words
    with s.device:
        model = RetNet(rows, s.size(768, 32), s.size(6, 2), s.size(4, 2), s.size(2048, 48), s.size(256, 8), library).train()
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.98), weight_decay=0.05, fused=fused or None)
    staged = s.pin(torch.zeros(batch, length + 1, dtype=torch.long)) if pinned else None
    log, turn = [0.0, 0.0], counter(1)

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high")
        starts = rng.integers(0, len(book) - length - 1, batch)
        pieces = torch.stack([torch.from_numpy(book[start : start + length + 1].astype(np.int64)) for start in starts])
        if staged is not None:
            staged.copy_(pieces)
            pieces = staged
        ids = pieces.to(s.device, non_blocking=pinned)
        with torch.autocast(s.device.type, BF16):
            logits = network(ids[:, :-1])
            loss = F.cross_entropy(logits.view(-1, rows), ids[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=dropped)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if read:
            log[:] = [loss.item(), norm.item()]
        else:
            noted.copy_(torch.stack([loss.detach(), norm]))
            if next(turn) % 50 == 0:
                log[:] = noted.tolist()
        return log

    return step


PROGRAM = written(
    "lighthouse_logs",
    "RetNet in training on eight pieces of 1024 words, bf16 autocast: 30,011 words, norms written out, gradients zeroed, two reads.",
    "torch.compile of the network; F.rms_norm; 30,016 rows; fused AdamW; gradients dropped; loss and norm read every 50 steps; pinned pieces",
    lighthouse_logs,
    {
        "unfused-elementwise": {"compiled": True},
        "unfused-norm": {"library": True},
        "gemm-alignment": {"padded": True},
        "optimizer-foreach": {"fused": True},
        "grad-zeroing": {"dropped": True},
        "sync-stall": {"read": False},
        "memcpy": {"pinned": True},
    },
)
