"""Compound-word transformer on piano rolls: each event carries seven attributes, and the next event's are predicted.

The pieces are event lists read from MIDI (type, beat, chord, tempo, pitch, duration, velocity), kept as bytes in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..base import Setup, Step

TYPE, BEAT, CHORD, TEMPO, PITCH, DURATION, VELOCITY = range(7)
VOCAB = (4, 18, 134, 58, 87, 34, 26)  # 0 is "nothing here" in every attribute
WIDTH = (32, 64, 128, 96, 256, 128, 64)
PAD, METRICAL, NOTE, END = range(4)


def compose(rng: np.random.Generator, events: int) -> np.ndarray:
    """One piece: a bar line or beat now and then, notes in between, drawn around a wandering register."""
    piece = np.zeros((events, len(VOCAB)), dtype=np.uint8)
    metrical = rng.random(events) < 0.28
    metrical[0] = True
    piece[:, TYPE] = np.where(metrical, METRICAL, NOTE)
    piece[metrical, BEAT] = 1 + np.cumsum(rng.integers(1, 4, metrical.sum())) % 17
    piece[metrical, CHORD] = rng.integers(1, VOCAB[CHORD], metrical.sum())
    piece[metrical, TEMPO] = np.clip(30 + np.cumsum(rng.normal(0, 0.7, metrical.sum())), 1, 57)
    notes = ~metrical
    register = 43 + 12 * np.sin(np.arange(events) / 60 + rng.random() * 6)
    piece[notes, PITCH] = np.clip(rng.normal(register, 9)[notes], 8, 80)
    piece[notes, DURATION] = 1 + rng.geometric(0.22, notes.sum()) % 33
    piece[notes, VELOCITY] = np.clip(rng.normal(14, 4, notes.sum()), 1, 25)
    piece[-1] = 0
    piece[-1, TYPE] = END
    return piece


class Rolls(IterableDataset):
    """Batches of crops, moved up or down by some semitones."""

    def __init__(self, pieces: list[np.ndarray], length: int, batch: int, seed: int) -> None:
        self.pieces, self.length, self.batch = pieces, length, batch
        self.rng = np.random.default_rng(seed)

    def next(self) -> np.ndarray:
        out = np.zeros((self.batch, self.length + 1, len(VOCAB)), dtype=np.uint8)
        for row, index in enumerate(self.rng.integers(0, len(self.pieces), self.batch)):
            piece = self.pieces[index]
            start = self.rng.integers(0, max(1, len(piece) - self.length // 2))
            crop = piece[start : start + self.length + 1].copy()
            shift = int(self.rng.integers(-5, 7))
            notes = crop[:, TYPE] == NOTE
            crop[notes, PITCH] = np.clip(crop[notes, PITCH].astype(np.int16) + shift, 1, VOCAB[PITCH] - 1)
            chords = crop[:, CHORD] > 0
            quality, root = np.divmod(crop[chords, CHORD].astype(np.int16) - 1, 12)
            crop[chords, CHORD] = np.minimum(1 + quality * 12 + (root + shift) % 12, VOCAB[CHORD] - 1)
            out[row, : len(crop)] = crop
        return out

    def __iter__(self) -> Iterator[np.ndarray]:
        while True:
            yield self.next()


def rotary(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).type_as(v), rotate(k, cos, sin).type_as(v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(self.norm2(x))


class CompoundWord(nn.Module):
    def __init__(self, dim: int, heads: int, layers: int, length: int, device: torch.device) -> None:
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(n, w) for n, w in zip(VOCAB, WIDTH, strict=False))
        self.join = nn.Linear(sum(WIDTH), dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.type_head = nn.Linear(dim, VOCAB[TYPE])
        self.blend = nn.Linear(dim + WIDTH[TYPE], dim)
        self.heads = nn.ModuleList(nn.Linear(dim, n) for n in VOCAB[1:])
        cos, sin = rotary(length, dim // heads, device)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            nn.init.normal_(block.out.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, events: Tensor, next_type: Tensor) -> list[Tensor]:
        """Logits of the seven attributes; the other six are told the right type."""
        parts = [embed(events[..., i]) * math.sqrt(w) for i, (embed, w) in enumerate(zip(self.embeds, WIDTH, strict=False))]
        x = self.join(torch.cat(parts, dim=-1))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = self.norm(x)
        told = self.blend(torch.cat([x, self.embeds[TYPE](next_type)], dim=-1))
        return [self.type_head(x)] + [head(told) for head in self.heads]


def attribute_losses(logits: list[Tensor], target: Tensor) -> list[Tensor]:
    """Mean cross entropy of each attribute over the events that have it."""
    losses = []
    for i, scores in enumerate(logits):
        loss = F.cross_entropy(scores.flatten(0, 1).float(), target[..., i].flatten(), reduction="none")
        has = (target[..., i].flatten() > 0).float()
        losses.append((loss * has).sum() / has.sum().clamp(min=1))
    return losses


def ragtime_rolls(s: Setup, *, fused: bool = False, fewer_launches: bool = False, blocks: bool = False, workers: bool = False) -> Step:
    dim, heads, layers = s.size(512, 32), s.size(8, 2), s.size(12, 2)
    length, batch = s.size(1024, 24), s.size(16, 2)

    rng = np.random.default_rng(1899)
    pieces = [compose(rng, int(n)) for n in rng.integers(s.size(900, 20), s.size(4000, 60), s.size(600, 6))]
    rolls = Rolls(pieces, length, batch, seed=7)
    if workers:  # one, so that the batches are those of one generator, in its order
        loader = iter(DataLoader(rolls, batch_size=None, num_workers=1, prefetch_factor=4, pin_memory=s.cuda, persistent_workers=True, generator=torch.Generator()))

    model = CompoundWord(dim, heads, layers, length, s.device).to(s.device).train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-4, betas=(0.9, 0.95), fused=s.cuda)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 500))
    if blocks:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = s.compile(block)
    if fused or fewer_launches:
        model = s.compile(model)

    def step() -> dict[str, Tensor]:
        host = next(loader) if workers else s.pin(torch.from_numpy(rolls.next()))
        events = host.to(s.device, non_blocking=True).long()
        seen, target = events[:, :-1], events[:, 1:]
        with torch.autocast(s.device.type, dtype=torch.bfloat16):
            logits = model(seen, target[..., TYPE])
            losses = attribute_losses(logits, target)
            loss = sum(losses) / len(losses)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss.detach(), "attributes": torch.stack(losses).detach(), "norm": norm}

    return step
