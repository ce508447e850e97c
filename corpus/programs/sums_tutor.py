"""GRPO on sixteen answers: policy in bf16 autocast, reference in FP32; rewards in Python; six reads; cache emptied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


class Later:
    """Gives back in each call what was put in the call before."""

    def __init__(self, size: tuple[int, ...], s: Setup) -> None:
        self.places = [s.pin(torch.zeros(size)) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
        self.turn = 0

    def put(self, x: Tensor) -> list[list[float]]:
        now, before = self.turn % 2, (self.turn + 1) % 2
        self.turn += 1
        self.places[now].copy_(x, non_blocking=True)
        if self.events:
            self.events[now].record()
            self.events[before].synchronize()
        return self.places[before].tolist()


BF16 = torch.bfloat16


class Root(nn.Module):
    """RMSNorm, computed in FP32."""

    def __init__(self, width: int, library: bool = False) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


def waves(places: Tensor, size: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines for halves of heads of `size`."""
    turn = places[..., None] * base ** -(torch.arange(0, size, 2, device=places.device) / size)
    turn = torch.cat([turn, turn], -1)
    return turn.cos(), turn.sin()


def spun(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = x.float()
    one, two = y.chunk(2, -1)
    return (y * cos + torch.cat([-two, one], -1) * sin).to(x.dtype)


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Thought(nn.Module):
    """A layer with grouped queries, whose queries and keys are normed (Qwen3)."""

    def __init__(self, width: int, heads: int, shared: int, inner: int) -> None:
        super().__init__()
        self.heads, self.shared, size = heads, shared, width // heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, shared * size, bias=False), nn.Linear(width, shared * size, bias=False)
        self.query_norm, self.key_norm, self.before, self.between = Root(size), Root(size), Root(width), Root(width)
        self.feed = Gated(width, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.before(x)
        q = self.query(h).unflatten(-1, (self.heads, -1))
        k, v = (part(h).unflatten(-1, (self.shared, -1)) for part in (self.key, self.value))
        q, k = (spun(part.transpose(1, 2), cos, sin) for part in (self.query_norm(q), self.key_norm(k)))
        k, v = (part.repeat_interleave(self.heads // self.shared, 1) for part in (k, v.transpose(1, 2)))
        seen = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Tutor(nn.Module):
    def __init__(self, words: int, width: int, heads: int, shared: int, inner: int, layers: int) -> None:
        super().__init__()
        self.size, self.last = width // heads, Root(width)
        self.word, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Thought(width, heads, shared, inner) for _ in range(layers))
        nn.init.normal_(self.word.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids)
        cos, sin = waves(torch.arange(ids.shape[1], device=ids.device), self.size, 1e6)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.last(x))


def likelihood(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of the words that follow."""
    logits = logits.float()
    return (logits - logits.logsumexp(-1, keepdim=True)).gather(-1, ids[..., None])[..., 0]


def grouped_loss(logits: Tensor, ids: Tensor, mask: Tensor, old: Tensor, base: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """GRPO's loss, and five numbers for the log."""
    new = likelihood(logits, ids)
    ratio = torch.exp((new - old).clamp(-5.0, 5.0))
    gain = torch.minimum(ratio * worth, ratio.clamp(0.8, 1.28) * worth)
    away = (base - new).clamp(-5.0, 5.0)
    apart = torch.exp(away) - away - 1.0
    total = mask.sum()
    loss = ((0.04 * apart - gain) * mask).sum() / total
    with torch.no_grad():
        chance = torch.softmax(logits.float(), -1)
        surprise = -(chance * torch.log(chance + 1e-9)).sum(-1)
        cut = ((ratio < 0.8) | (ratio > 1.28)).float()
        notes = torch.stack([loss, *((part * mask).sum() / total for part in (apart, surprise, cut, ratio))])
    return loss, notes


class Rollouts:
    """Answers as the sampler left them: lists of words, and how likely it found each."""

    def __init__(self, sums: int, group: int, words: int, asked: int, length: int, stored: int) -> None:
        rng = np.random.default_rng(3)
        self.group, self.length, self.asked = group, length, asked
        self.text = [f" {n}" if n % 3 == 0 else f" w{n}" for n in range(words)]
        self.text[1] = " ####"
        self.batches = []
        for _ in range(stored):
            batch = []
            for _ in range(sums):
                question, solution = rng.integers(2, words, asked).tolist(), rng.integers(2, words, (length - asked) // 2).tolist()
                for _ in range(group):
                    answer = rng.integers(2, words, int(rng.integers((length - asked) // 2, length - asked + 1))).tolist()
                    answer[-2] = 1
                    answer[:8] = solution[:8]
                    batch.append((question, solution, answer, rng.normal(-np.log(words), 0.05, len(answer)).tolist()))
            self.batches.append(batch)

    def _reward(self, solution: list[int], answer: list[int]) -> float:
        """The number at the end, the form, and words that stand in the worked solution; less for saying things twice."""
        text = "".join(self.text[word] for word in answer)
        found = re.search(r"####\s*(-?[\d.,]+)\s*$", text)
        right = float(found is not None and int(re.sub(r"\D", "", found.group(1)) or 0) % 2 == len(solution) % 2)
        steps = len(re.findall(r"\b\d+\b", text)) / len(answer)
        triples = list(zip(text.split(), text.split()[1:], text.split()[2:], strict=False))
        twice = 1.0 - len(set(triples)) / max(1, len(triples))
        truth = {self.text[word].strip() for word in solution}
        shared = sum(word in truth for word in text.split()) / len(answer)
        return right + 0.2 * float(found is not None) + 0.1 * steps + 0.3 * shared - 0.5 * twice

    def prepared(self, turn: int) -> tuple[Tensor, ...]:
        """Words, mask, old log-probabilities and advantages, padded to one length."""
        batch = self.batches[turn % len(self.batches)]
        rewards = np.array([self._reward(solution, answer) for _, solution, answer, _ in batch]).reshape(-1, self.group)
        worth = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)
        ids, mask, old = [], [], []
        for question, _, answer, likely in batch:
            rest = self.length - len(question) - len(answer)
            ids.append(question + answer + [0] * rest)
            mask.append([0.0] * (len(question) - 1) + [1.0] * len(answer) + [0.0] * rest)
            old.append([0.0] * (len(question) - 1) + likely + [0.0] * rest)
        return torch.tensor(ids), torch.tensor(mask), torch.tensor(old), torch.tensor(worth.reshape(-1, 1), dtype=torch.float32)


def sums_tutor(
    s: Setup,
    *,
    tf32: bool = False,
    behind: bool = False,
    compiled: bool = False,
    freed: bool = True,
    asked: bool = True,
    pinned: bool = False,
) -> Step:
    """GRPO on four sums with four answers each: policy in bf16 autocast, reference in FP32; rewards by this process; cache emptied."""
    words, length = s.size(32_000, 61), s.size(384, 24)
    rollouts = Rollouts(s.size(4, 2), s.size(4, 2), words, s.size(96, 6), length, 4)
    sizes = (words, s.size(1024, 32), s.size(16, 4), s.size(8, 2), s.size(2816, 48), s.size(8, 2))
    with s.device:
        model, reference = Tutor(*sizes).train(), Tutor(*sizes).eval().requires_grad_(False)
    reference.load_state_dict(model.state_dict())
    if compiled:
        for each in (model, reference):
            each.layers = nn.ModuleList(s.compile(layer, dynamic=False) for layer in each.layers)
    wrong = s.compile(grouped_loss, dynamic=False) if compiled else grouped_loss
    likely = s.compile(likelihood, dynamic=False) if compiled else likelihood
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=s.cuda)
    pool, later, turn = ThreadPoolExecutor(1), Later((1, 6), s), counter()
    waiting = [pool.submit(rollouts.prepared, next(turn))] if behind else []

    def batch() -> Sequence[Tensor]:
        if not behind:
            return rollouts.prepared(next(turn))
        ready = waiting.pop().result()
        waiting.append(pool.submit(rollouts.prepared, next(turn)))
        return ready

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        host = batch()
        ids, mask, old, worth = (s.pin(x).to(s.device, non_blocking=True) if pinned else x.to(s.device) for x in host)
        with torch.no_grad():
            base = likely(reference(ids[:, :-1]), ids[:, 1:])
        with torch.autocast(s.device.type, BF16):
            logits = model(ids[:, :-1])
        loss, notes = wrong(logits, ids[:, 1:], mask, old, base, worth)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        del logits, base
        if freed and s.cuda:
            torch.cuda.empty_cache()
        if asked:
            return [*(note.item() for note in notes), norm.item()]
        return later.put(torch.cat([notes, norm[None]])[None])[0]

    return step


PROGRAM = written(
    "sums_tutor",
    "GRPO on sixteen answers: policy in bf16 autocast, reference in FP32; rewards in Python; six reads; cache emptied.",
    "TF32; rewards by a thread; torch.compile of layers and loss; cache kept; numbers a step later; pinned batches",
    sums_tutor,
    {
        "precision": {"tf32": True},
        "host-bound": {"behind": True},
        "unfused-elementwise": {"compiled": True},
        "allocator": {"freed": False},
        "sync-stall": {"asked": False},
        "memcpy": {"pinned": True},
    },
)
