"""SepFormer in training on eight mixtures of two seconds, fp16 autocast, GradScaler; attention and norms written out."""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class Attend(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.one(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) * (width // self.heads) ** -0.5
            y = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.relu(self.up(self.two(x))))


class WholeNorm(nn.Module):
    """Norm over all that belongs to a clip: (clips, width, chunks, chunk)."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.bias, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.group_norm(x, 1, self.gain, self.bias, 1e-6)
        x = x.float()
        mean = x.mean((1, 2, 3), keepdim=True)
        var = ((x - mean) ** 2).mean((1, 2, 3), keepdim=True)
        return self.gain[:, None, None] * (x - mean) / torch.sqrt(var + 1e-6) + self.bias[:, None, None]


class TwoPaths(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, longest: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.within, self.among = Attend(width, heads, inner, sdpa), Attend(width, heads, inner, sdpa)
        self.one, self.two = WholeNorm(width, library), WholeNorm(width, library)
        angle = torch.arange(longest)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
        self.register_buffer("place", torch.cat([angle.sin(), angle.cos()], 1))

    def forward(self, x: Tensor) -> Tensor:
        clips, width, chunks, chunk = x.shape
        y = x.permute(0, 2, 3, 1).reshape(clips * chunks, chunk, width)
        y = self.within(y + self.place[:chunk]).view(clips, chunks, chunk, width)
        x = x + self.one(y.permute(0, 3, 1, 2))
        y = x.permute(0, 3, 2, 1).reshape(clips * chunk, chunks, width)
        y = self.among(y + self.place[:chunks]).view(clips, chunk, chunks, width)
        return x + self.two(y.permute(0, 3, 2, 1))


class Separator(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, blocks: int, chunk: int, people: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.chunk, self.people = chunk, people
        self.encoder, self.decoder = nn.Conv1d(1, width, 16, 8, bias=False), nn.ConvTranspose1d(width, 1, 16, 8, bias=False)
        self.norm, self.enter = nn.GroupNorm(1, width), nn.Conv1d(width, width, 1)
        self.blocks = nn.Sequential(*(TwoPaths(width, heads, inner, 512, sdpa, library) for _ in range(blocks)))
        self.spread, self.prelu = nn.Conv2d(width, people * width, 1), nn.PReLU()
        self.tanh, self.gate, self.leave = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1, bias=False)

    def forward(self, sound: Tensor) -> Tensor:
        coded = F.relu(self.encoder(sound[:, None]))
        clips, width, frames = coded.shape
        hop = self.chunk // 2
        x = self.enter(self.norm(coded))
        more = -(frames - self.chunk) % hop
        x = F.pad(x, (hop, more + hop)).unfold(2, self.chunk, hop)
        x = self.spread(self.prelu(self.blocks(x)))
        chunks = x.shape[2]
        x = x.reshape(clips * self.people, width, chunks, self.chunk)
        left, right = x[..., :hop], x[..., hop:]
        whole = F.pad(left, (0, 0, 0, 1)) + F.pad(right, (0, 0, 1, 0))
        x = whole.flatten(2)[..., hop : hop + frames]
        mask = F.relu(self.leave(torch.tanh(self.tanh(x)) * torch.sigmoid(self.gate(x))))
        heard = mask.view(clips, self.people, width, frames) * coded[:, None]
        return self.decoder(heard.flatten(0, 1)).view(clips, self.people, -1).float()


def ratio(guess: Tensor, truth: Tensor) -> Tensor:
    """SI-SNR in decibels over the last dimension."""
    guess, truth = guess - guess.mean(-1, keepdim=True), truth - truth.mean(-1, keepdim=True)
    along = (guess * truth).sum(-1, keepdim=True) * truth / ((truth**2).sum(-1, keepdim=True) + 1e-8)
    noise = guess - along
    return 10.0 * torch.log10((along**2).sum(-1) / ((noise**2).sum(-1) + 1e-8) + 1e-8)


def courtroom_voices(
    s: Setup,
    *,
    fused: bool = False,
    sdpa: bool = False,
    compiled: bool = False,
    library: bool = False,
    pinned: bool = False,
) -> Step:
    """SepFormer in training on eight mixtures of two seconds, fp16 autocast with a GradScaler, clipped gradients, attention written out."""
    clips, length, chunk = s.size(8, 2), s.size(16_000, 400), s.size(100, 10)
    half = torch.float16 if s.cuda else BF16
    rng = np.random.default_rng(312)
    time = np.arange(length, dtype=np.float32) / 8000.0
    batches = []
    for _ in range(2):
        pitch = rng.uniform(90.0, 280.0, (clips, 2, 1)).astype(np.float32)
        voice = sum(np.sin(2.0 * np.pi * n * pitch * time) / n for n in range(1, 6)) * (np.sin(7.0 * pitch * time / 50.0) > -0.3)
        voice = voice + 0.01 * rng.standard_normal(voice.shape)
        batches.append(torch.from_numpy(voice.astype(np.float32)))
    if pinned:
        batches = [s.pin(batch) for batch in batches]
    with s.device:
        model = Separator(s.size(256, 16), s.size(8, 2), s.size(1024, 32), s.size(4, 1), chunk, 2, sdpa, library)
        noted = torch.zeros(())
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-4, fused=fused or None)
    scaler, turn = torch.amp.GradScaler(s.device.type, init_scale=1024.0, enabled=s.cuda), counter()

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        voices = batches[next(turn) % len(batches)].to(s.device, non_blocking=pinned)
        with torch.autocast(s.device.type, half):
            guess = network(voices.sum(1))
        truth = voices[..., : guess.shape[-1]]
        straight, crossed = ratio(guess, truth).mean(1), ratio(guess, truth.flip(1)).mean(1)
        loss = -torch.maximum(straight, crossed).clamp(max=30.0).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        noted.add_(loss.detach())
        return loss.detach()

    return step


PROGRAM = written(
    "courtroom_voices",
    "SepFormer in training on eight mixtures of two seconds, fp16 autocast, GradScaler; attention and norms written out.",
    "fused Adam; scaled_dot_product_attention; torch.compile of the network; F.group_norm; pinned voices",
    courtroom_voices,
    {
        "amp-scaler-sync": {"fused": True},
        "unfused-attention": {"sdpa": True},
        "unfused-elementwise": {"compiled": True},
        "unfused-norm": {"library": True},
        "memcpy": {"pinned": True},
    },
)
