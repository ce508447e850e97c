"""Programs by an author who has not read the rules: mail that completes itself, a tutor of sums, an archive of parishes.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count as counter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written
from .written_24 import Later

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


def grown(layer: nn.Linear, inner: int, out: int) -> nn.Linear:
    """The same layer with zeros for further inputs and outputs."""
    place = layer.weight
    wide = nn.utils.skip_init(nn.Linear, inner, out, bias=False, device=place.device, dtype=place.dtype)
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[: place.shape[0], : place.shape[1]] = place
    return wide


def up_to(size: int, step: int) -> int:
    return -(-size // step) * step


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


# Mail: endings of sentences, drafted by a model's first layers and checked by all of them (LayerSkip).


class Written(nn.Module):
    """A layer with grouped queries, and the keys and values of all mails."""

    def __init__(self, rows: int, room: int, width: int, heads: int, shared: int, inner: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.sdpa, size = heads, shared, sdpa, width // heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, shared * size, bias=False), nn.Linear(width, shared * size, bias=False)
        self.before, self.between, self.feed = Root(width, library), Root(width, library), Gated(width, inner)
        self.register_buffer("keys", torch.randn(rows, shared, room, size))
        self.register_buffer("values", torch.randn(rows, shared, room, size))

    def seen(self, q: Tensor, known: Tensor) -> Tensor:
        keys = self.keys.repeat_interleave(self.heads // self.shared, 1)
        values = self.values.repeat_interleave(self.heads // self.shared, 1)
        if self.sdpa:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=known[:, None])
        scores = torch.matmul(q, keys.transpose(2, 3)) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~known[:, None], torch.finfo(scores.dtype).min)
        return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), values)

    def forward(self, x: Tensor, rows: Tensor, places: Tensor, known: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.before(x)
        q = self.query(h).unflatten(-1, (self.heads, -1))
        k, v = (part(h).unflatten(-1, (self.shared, -1)) for part in (self.key, self.value))
        self.keys[rows, :, places] = spun(k, cos, sin)
        self.values[rows, :, places] = v
        seen = self.seen(spun(q, cos, sin).transpose(1, 2), known)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Mail(nn.Module):
    def __init__(
        self, words: int, rows: int, room: int, width: int, heads: int, shared: int, layers: int, early: int, library: bool, sdpa: bool
    ) -> None:
        super().__init__()
        self.words, self.early, self.size = words, early, width // heads
        self.word, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Written(rows, room, width, heads, shared, 8 * width // 3, library, sdpa) for _ in range(layers))
        self.last = Root(width, library)
        self.register_buffer("rows", torch.arange(rows)[:, None])
        self.register_buffer("room", torch.arange(room))
        with torch.no_grad():
            for layer in self.layers[early:]:
                layer.out.weight *= 0.1
                layer.feed.down.weight *= 0.1

    def _said(self, tokens: Tensor, at: Tensor, depth: int) -> Tensor:
        places = at[:, None] + self.room[: tokens.shape[1]]
        cos, sin = waves(places[:, :, None], self.size)
        known, x = self.room <= places[:, :, None], self.word(tokens)
        for layer in self.layers[:depth]:
            x = layer(x, self.rows, places, known, cos, sin)
        return self.head(self.last(x))[..., : self.words].argmax(-1)

    def draft(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self._said(tokens, at, self.early)

    def check(self, tokens: Tensor, at: Tensor) -> Tensor:
        return self._said(tokens, at, len(self.layers))


def mail_endings(
    s: Setup,
    *,
    rows: int = 4,
    compiled: bool = False,
    graphed: bool = False,
    asked: bool = True,
    library: bool = False,
    sdpa: bool = False,
    padded: bool = False,
) -> Step:
    """Three rounds of four drafted words for four mails in bf16; each drafted word is compared on the host."""
    rows, room, words, ahead, rounds = s.size(rows, rows // 2), s.size(1024, 48), s.size(32_003, 61), s.size(4, 2), s.size(3, 2)
    width, heads, shared, layers, early = s.size(1536, 32), s.size(12, 4), s.size(4, 2), s.size(12, 2), s.size(3, 1)
    with s.device:
        model = Mail(words, rows, room, width, heads, shared, layers, early, library, sdpa).to(BF16).eval()
        begin = torch.randint(room // 2, room - rounds * (ahead + 1), (rows,))
        first = torch.randint(words, (rows,))
        drafted, said = torch.zeros(rows, ahead + 1, dtype=torch.long), torch.zeros(rows, rounds * (ahead + 1), dtype=torch.long)
        many, places = torch.zeros(rows, dtype=torch.long), torch.arange(ahead + 1)
    if padded:
        model.head = grown(model.head, width, up_to(words, 64))
    draft = s.compile(model.draft, mode="reduce-overhead", dynamic=False) if compiled else model.draft
    check = s.compile(model.check, mode="reduce-overhead", dynamic=False) if compiled else model.check

    def round_of(word: Tensor, at: Tensor) -> Tensor:
        drafted[:, 0] = word
        for n in range(ahead):
            drafted[:, n + 1] = draft(drafted[:, n : n + 1], at + n)[:, 0]
        return check(drafted, at)

    @torch.no_grad()
    def compared() -> list[list[int]]:
        """Word by word."""
        texts: list[list[int]] = [[] for _ in range(rows)]
        word, at = first, begin
        for _ in range(rounds):
            true = round_of(word, at)
            for row, text in enumerate(texts):
                for n in range(ahead + 1):
                    text.append(int(true[row, n].item()))
                    if n == ahead or text[-1] != drafted[row, n + 1].item():
                        break
            word = torch.tensor([text[-1] for text in texts], device=s.device)
            at = begin + torch.tensor([len(text) for text in texts], device=s.device)
        return texts

    @torch.no_grad()
    def kept() -> None:
        """How many words are right, as a tensor; what stands behind them is written over by the next round."""
        word = first
        many.zero_()
        for _ in range(rounds):
            true = round_of(word, begin + many)
            right = (true[:, :-1] == drafted[:, 1:]).long().cumprod(1).sum(1, keepdim=True)
            said.scatter_(1, many[:, None] + places, true)
            word = true.gather(1, right)[:, 0]
            many.add_(right[:, 0] + 1)

    torch.set_float32_matmul_precision("high")
    work = capture(kept, s) if graphed else kept

    def step() -> list[list[int]]:
        torch.set_float32_matmul_precision("high")
        if asked and not graphed:
            return compared()
        work()
        *texts, lengths = torch.cat([said, F.pad(many, (0, said.shape[1] - rows))[None]]).tolist()
        return [text[:length] for text, length in zip(texts, lengths, strict=False)]

    return step


# Tutor: a small model that learns to solve sums by groups of its own answers (GRPO).


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


# Archive: long registers of parishes are read whole, and each entry gets a vector out of what was read (late chunking).


class Reading(nn.Module):
    """A layer that sees all words, or those nearby."""

    def __init__(self, width: int, heads: int, inner: int, near: int, blocked: bool) -> None:
        super().__init__()
        self.heads, self.near, self.blocked = heads, near, blocked
        self.all, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*x, bias=False) for x in ((width, inner), (width, inner), (inner, width)))
        self.before, self.between = Root(width), Root(width)

    def within(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Blocks of words, each with the block before and the one behind."""
        rows, _heads, length, _ = q.shape
        block = self.near
        here = torch.arange(block, device=q.device)
        there = torch.arange(3 * block, device=q.device) - block
        place = torch.arange(length // block, device=q.device)[:, None, None] * block + there
        mask = ((here[:, None] - there).abs() <= self.near) & (place >= 0) & (place < length)
        q = q.unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1)
        k, v = (F.pad(x, (0, 0, block, block)).unfold(2, 3 * block, block).permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat(rows, 1, 1)[:, None])
        return seen.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2, 3)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.all(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = spun(q, cos, sin), spun(k, cos, sin)
        if not self.near:
            seen = F.scaled_dot_product_attention(q, k, v)
        elif self.blocked:
            seen = self.within(q, k, v)
        else:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.between(x)
        return x + self.down(F.gelu(self.gate(h)) * self.up(h))


class Register(nn.Module):
    def __init__(self, words: int, width: int, heads: int, inner: int, layers: int, near: int, blocked: bool) -> None:
        super().__init__()
        self.near, self.size, self.word, self.last = near, width // heads, nn.Embedding(words, width), Root(width)
        self.layers = nn.ModuleList(Reading(width, heads, inner, 0 if n % 3 == 0 else near, blocked) for n in range(layers))

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        mask = (place[:, None] - place).abs() <= self.near
        cos, sin = waves(place, self.size, 160_000.0)
        x = self.word(ids)
        for layer in self.layers:
            x = layer(x, mask, cos, sin)
        return self.last(x)


def parish_archive(
    s: Setup,
    *,
    blocked: bool = False,
    compiled: bool = False,
    padded: bool = False,
    half: bool = False,
    graphed: bool = False,
    asked: bool = True,
) -> Step:
    """Four registers of 4096 words in bf16 autocast with FP32 weights; a band of a full mask; entries are fetched one by one."""
    count, length, words, near = s.size(4, 2), s.size(4096, 48), s.size(50_368, 61), s.size(128, 8)
    width, heads, inner, layers, most = s.size(768, 32), s.size(12, 2), s.size(2730, 26), s.size(10, 3), s.size(12, 3)
    with s.device:
        model = Register(words, width, heads, inner, layers, near, blocked).eval()
    if padded:
        wide = up_to(inner, s.size(64, 8))
        for layer in model.layers:
            layer.gate, layer.up, layer.down = grown(layer.gate, width, wide), grown(layer.up, width, wide), grown(layer.down, wide, width)
    if half:
        model = model.to(BF16)
    if compiled:
        model.layers = nn.ModuleList(s.compile(layer, dynamic=False) for layer in model.layers)
    rng = np.random.default_rng(5)
    books = [torch.from_numpy(rng.integers(0, words, (count, length))) for _ in range(3)]
    cuts = [np.sort(rng.choice(np.arange(1, length), (count, most - 1), replace=False), 1) for _ in range(3)]
    entries = [[[0, *row.tolist(), length] for row in part] for part in cuts]
    turn, given = counter(), torch.zeros(count, length, dtype=torch.long, device=s.device)
    read: list[Tensor] = [given]

    @torch.no_grad()
    def network() -> None:
        with torch.autocast(s.device.type, BF16):
            read[0] = model(given)

    torch.set_float32_matmul_precision("high")
    work = capture(network, s) if graphed else network

    def one_by_one(x: Tensor, ends: list[list[int]]) -> list[np.ndarray]:
        found = []
        for row, places in enumerate(ends):
            for begin, end in pairwise(places):
                vector = F.normalize(x[row, begin:end].float().mean(0), dim=0)
                found.append(vector.cpu().numpy())
        return found

    def at_once(x: Tensor, ends: list[list[int]]) -> list[np.ndarray]:
        spans = [(row, *span) for row, places in enumerate(ends) for span in pairwise(places)]
        found = [x[row, begin:end].float().mean(0) for row, begin, end in spans]
        return list(F.normalize(torch.stack(found), dim=1).cpu().numpy())

    @torch.no_grad()
    def step() -> list[Any]:
        torch.set_float32_matmul_precision("high")
        now = next(turn) % len(books)
        given.copy_(books[now])
        work()
        return (one_by_one if asked else at_once)(read[0], entries[now])

    return step


WORKLOADS = (
    written(
        "mail_endings", "LayerSkip: four words drafted by three layers and checked by twelve, four mails, bf16; compared on the host.",
        "torch.compile; three rounds as a CUDA graph; compared on the GPU; F.rms_norm; scaled_dot_product_attention; a head of 32,064",
        mail_endings,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"asked": False},
            "unfused-norm": {"library": True}, "unfused-attention": {"sdpa": True}, "gemm-alignment": {"padded": True},
        },
    ),
    written(
        "sums_tutor", "GRPO on sixteen answers: policy in bf16 autocast, reference in FP32; rewards in Python; six reads; cache emptied.",
        "TF32; rewards by a thread; torch.compile of layers and loss; cache kept; numbers a step later; pinned batches", sums_tutor,
        {
            "precision": {"tf32": True}, "host-bound": {"behind": True}, "unfused-elementwise": {"compiled": True},
            "allocator": {"freed": False}, "sync-stall": {"asked": False}, "memcpy": {"pinned": True},
        },
    ),
    written(
        "parish_archive", "Late chunking of four registers, FP32 weights in bf16 autocast; windows as masks; vectors fetched one by one.",
        "blocks of 128; torch.compile of layers; 2752 inside; weights in bf16; the network as a CUDA graph; one copy of all vectors",
        parish_archive,
        {
            "other/blocked": {"blocked": True}, "unfused-elementwise": {"compiled": True}, "gemm-alignment": {"padded": True},
            "dtype-casts": {"half": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"asked": False},
        },
    ),
)  # fmt: skip
