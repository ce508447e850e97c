"""Programs by an author who has not read the rules: tapestries as codes, orders of bakeries, clauses of contracts, whales by their calls.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# Tapestries: photographs of weavings as codes out of one book (VQ-VAE, the book being a running mean).


class Thread(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.look, self.mix = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.relu(self.look(F.relu(x))))


class Loom(nn.Module):
    """An encoder to a quarter of the side, and the decoder back."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        wide = 2 * width
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, wide, 4, 2, 1), nn.ReLU(), nn.Conv2d(wide, wide, 3, 1, 1),
            Thread(wide), Thread(wide), nn.Conv2d(wide, code, 1),
        )  # fmt: skip
        self.decode = nn.Sequential(
            nn.Conv2d(code, wide, 3, 1, 1), Thread(wide), Thread(wide), nn.ReLU(),
            nn.ConvTranspose2d(wide, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip


def nearest(flat: Tensor, book: Tensor) -> Tensor:
    """Which code of the book is next to each spot."""
    away = flat.square().sum(1, keepdim=True) - 2.0 * (flat @ book.T) + book.square().sum(1)
    return away.argmin(1)


def tapestry_codes(
    s: Setup, *, last: bool = False, autocast: bool = False, read: bool = True, ahead: bool = False, compiled: bool = False
) -> Step:
    """Codes that nobody uses any more are put where some spot is; how many are in use is written down."""
    count, side, codes, size = s.size(64, 2), s.size(128, 16), s.size(4096, 8), s.size(64, 4)
    with s.device:
        model, book = Loom(s.size(128, 4), size), torch.randn(codes, size)
        used, total, noted = torch.ones(codes), book.clone(), torch.zeros(2)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    photos: list[tuple[Tensor, ...]] = [(torch.rand(count, 3, side, side) - 0.5,) for _ in range(4)]
    queue = Prefetcher([(s.pin(photo),) for (photo,) in photos], s) if ahead else None
    find, turn, log = s.compile(nearest) if compiled else nearest, counter(), [0.0, 0.0]

    def renew(flat: Tensor, chosen: Tensor) -> None:
        """The running mean of the spots at each code."""
        used.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
        total.mul_(0.99).add_(chosen.T @ flat, alpha=0.01)
        book.copy_(total / (used + 1e-5)[:, None])
        if read:
            dead = (used < 0.01).nonzero()[:, 0]
            if len(dead):
                spots = flat[torch.randint(len(flat), (len(dead),), device=s.device)]
                book[dead], total[dead], used[dead] = spots, spots, 1.0
            return
        lost = used < 0.01
        spots = flat[torch.randint(len(flat), (codes,), device=s.device)]
        book.copy_(torch.where(lost[:, None], spots, book))
        total.copy_(torch.where(lost[:, None], spots, total))
        used.masked_fill_(lost, 1.0)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        (x,) = queue.next() if queue else (photos[next(turn) % len(photos)][0].to(s.device),)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            z = model.encode(x)
        z = z.float().permute(0, 2, 3, 1)
        flat = z.detach().reshape(-1, size)
        with torch.no_grad():
            chosen = torch.zeros(len(flat), codes, device=s.device)
            chosen.scatter_(1, find(flat, book)[:, None], 1.0)
            woven = (chosen @ book).view(z.shape)
            share = chosen.mean(0)
            variety = torch.exp(-(share * torch.log(share + 1e-10)).sum())
            renew(flat, chosen)
        commit = F.mse_loss(z, woven)
        woven = (z + (woven - z).detach()).permute(0, 3, 1, 2)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again = model.decode(woven if last else woven.contiguous())
        loss = F.mse_loss(again.float(), x) + 0.25 * commit
        loss.backward()
        optimizer.step()
        if read:
            log[0], log[1] = loss.item(), variety.item()
        else:
            noted.copy_(torch.stack([loss.detach(), variety]))
        return loss.detach()

    return step


# Bakeries: how many loaves of a kind a shop will sell in the next two weeks (a temporal fusion transformer).


class Gated(nn.Module):
    """A gated residual network; what a layer says counts as much as its gate lets it."""

    def __init__(self, inner: int, width: int, out: int, told: bool = False) -> None:
        super().__init__()
        self.one, self.two, self.gate = nn.Linear(inner, width), nn.Linear(width, width), nn.Linear(width, 2 * out)
        self.told = nn.Linear(width, width, bias=False) if told else None
        self.past = nn.Linear(inner, out) if inner != out else nn.Identity()
        self.norm = nn.LayerNorm(out)

    def forward(self, x: Tensor, told: Tensor | None = None) -> Tensor:
        y = self.one(x)
        if self.told is not None:
            y = y + self.told(told)
        y = F.dropout(self.two(F.elu(y)), 0.1, self.training)
        return self.norm(self.past(x) + F.glu(self.gate(y), -1))


class Choice(nn.Module):
    """Each variable has its own network; a further one says how much each of them counts."""

    def __init__(self, variables: int, width: int) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.each = nn.ModuleList(Gated(width, width, width) for _ in range(variables))
        self.weigh = Gated(variables * width, width, variables, True)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        embedded = [embed(x[..., n : n + 1]) for n, embed in enumerate(self.embed)]
        weight = torch.softmax(self.weigh(torch.cat(embedded, -1), told), -1)
        seen = torch.stack([network(part) for network, part in zip(self.each, embedded, strict=True)], -1)
        return (seen * weight[..., None, :]).sum(-1)


class Bakery(nn.Module):
    def __init__(self, shops: int, kinds: int, past: int, known: int, width: int, heads: int) -> None:
        super().__init__()
        self.shop, self.kind, self.heads = nn.Embedding(shops, width), nn.Embedding(kinds, width), heads
        self.told = nn.ModuleList(Gated(width, width, width) for _ in range(4))
        self.past, self.known = Choice(past, width), Choice(known, width)
        self.before, self.after = nn.LSTM(width, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.gate, self.norm = nn.Linear(width, 2 * width), nn.LayerNorm(width)
        self.enrich, self.forward_feed = Gated(width, width, width, True), Gated(width, width, width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width // heads)
        self.out, self.gate_seen, self.norm_seen = nn.Linear(width // heads, width), nn.Linear(width, 2 * width), nn.LayerNorm(width)
        self.say = nn.Linear(width, 3)

    def forward(self, shop: Tensor, kind: Tensor, past: Tensor, known: Tensor) -> Tensor:
        fixed = self.shop(shop) + self.kind(kind)
        choose, hidden, cell, enrich = (network(fixed) for network in self.told)
        seen, coming = self.past(past, choose[:, None]), self.known(known, choose[:, None])
        days = torch.cat([seen, coming], 1)
        before, state = self.before(seen, (hidden[None].to(seen.dtype), cell[None].to(seen.dtype)))
        after, _ = self.after(coming, state)
        x = self.norm(days + F.glu(self.gate(torch.cat([before, after], 1)), -1))
        x = self.enrich(x, enrich[:, None])
        length, ahead = x.shape[1], known.shape[1]
        q = self.q(x[:, -ahead:]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        hides = torch.ones(ahead, length, dtype=torch.bool, device=x.device).triu(length - ahead + 1)
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hides, -1e4)
        looked = self.out(torch.softmax(scores, -1).mean(1).to(x.dtype) @ self.v(x))
        x = self.norm_seen(x[:, -ahead:] + F.glu(self.gate_seen(looked), -1))
        return self.say(self.forward_feed(x))


def bakery_orders(
    s: Setup, *, graphed: bool = False, compiled: bool = False, fused: bool = False, autocast: bool = False, read: bool = True
) -> Step:
    """The sales of all shops lie on the GPU; each step takes 64 windows of them and writes the loss down."""
    rows, back, ahead, count = s.size(4096, 12), s.size(90, 6), s.size(14, 3), s.size(64, 4)
    past, known, shops, kinds = s.size(10, 3), s.size(5, 2), s.size(200, 3), s.size(50, 3)
    with s.device:
        model = Bakery(shops, kinds, past, known, s.size(128, 8), s.size(4, 2))
        shop, kind = torch.randint(shops, (rows,)), torch.randint(kinds, (rows,))
        seen, coming, sold = torch.randn(rows, back, past), torch.randn(rows, ahead, known), torch.randn(rows, ahead)
        levels, kept = torch.tensor([0.1, 0.5, 0.9]), torch.zeros(())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused or None, capturable=graphed and s.cuda)
    if compiled:
        model.past, model.known = s.compile(model.past, dynamic=False), s.compile(model.known, dynamic=False)
    log = [0.0]

    def update() -> Tensor:
        these = torch.randint(rows, (count,), device=s.device)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(shop[these], kind[these], seen[these], coming[these])
        short = sold[these][..., None] - guess.float()
        loss = torch.maximum(levels * short, (levels - 1.0) * short).sum(-1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        kept.copy_(loss.detach())
        return kept

    torch.set_float32_matmul_precision("high")
    work = capture(update, s) if graphed else update

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        work()
        if read:
            log[0] = 0.99 * log[0] + 0.01 * kept.item()
        return kept

    return step


# Contracts: where, in each of eight contracts, a clause of some kind begins and ends.


class Norm(nn.Module):
    """In FP32; written out unless `library`."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.gain, self.shift, 1e-6)
        y = x.float()
        mean = y.mean(-1, keepdim=True)
        variance = (y - mean).pow(2).mean(-1, keepdim=True)
        y = (y - mean) / torch.sqrt(variance + 1e-6)
        return (self.gain * y + self.shift).to(x.dtype)


class Paragraph(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.before, self.between = Norm(width, library), Norm(width, library)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            seen = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias, -1) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Lawyer(nn.Module):
    """An encoder with a bias by distance, as T5's; two marks of each kind of clause at every word."""

    def __init__(self, words: int, width: int, heads: int, layers: int, kinds: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.words, self.distance, self.sdpa = nn.Embedding(words, width), nn.Embedding(32, heads), sdpa
        self.layers = nn.ModuleList(Paragraph(width, heads, sdpa, library) for _ in range(layers))
        self.norm, self.marks = Norm(width, library), nn.Linear(width, 2 * kinds)

    def forward(self, words: Tensor, length: Tensor) -> Tensor:
        place = torch.arange(words.shape[1], device=words.device)
        apart = place[None] - place[:, None]
        bucket = (2.0 * torch.log2(apart.abs() + 1.0)).long().clamp(max=15) + 16 * (apart > 0)
        bias = self.distance(bucket).permute(2, 0, 1)[None].contiguous()
        bias = bias.masked_fill((place >= length[:, None])[:, None, None], -1e4)
        x = self.words(words)
        if self.sdpa:
            bias = bias.to(self.layers[0].qkv.weight.dtype if not torch.is_autocast_enabled(x.device.type) else BF16)
        for layer in self.layers:
            x = layer(x, bias)
        return self.marks(self.norm(x))


def best_spans(starts: np.ndarray, ends: np.ndarray, top: int, longest: int) -> list[list[tuple[int, int, float]]]:
    """Of the best beginnings and ends, the pair that makes a clause and is the likeliest; (0, 0) if there is none."""
    found = []
    for begin, end in zip(starts, ends, strict=True):
        spans = []
        for start_row, end_row in zip(begin, end, strict=True):
            likely = [(0, 0, -1e9)]
            first, final = np.argsort(start_row)[: -top - 1 : -1].tolist(), np.argsort(end_row)[: -top - 1 : -1].tolist()
            for i in first:
                for j in final:
                    if j < i or j - i + 1 > longest:
                        continue
                    likely.append((i, j, float(start_row[i] + end_row[j])))
            spans.append(max(likely, key=lambda span: span[2]))
        found.append(spans)
    return found


def best_tensors(starts: Tensor, ends: Tensor, top: int, longest: int) -> list[list[tuple[int, int, float]]]:
    """The same for all clauses at once, where the marks are."""
    (begin, i), (end, j) = starts.topk(top, -1), ends.topk(top, -1)
    long = j[..., None, :] - i[..., :, None] + 1
    sure = (begin[..., :, None] + end[..., None, :]).masked_fill((long < 1) | (long > longest), -1e9)
    score, which = sure.flatten(-2).max(-1)
    any_clause = score > -1e8
    first = i.gather(-1, (which // top)[..., None])[..., 0] * any_clause
    final = j.gather(-1, (which % top)[..., None])[..., 0] * any_clause
    rows = torch.stack([first.double(), final.double(), score.double()], -1).tolist()
    return [[(int(a), int(b), c) for a, b, c in row] for row in rows]


def clause_finder(s: Setup, *, sdpa: bool = False, cast: bool = False, library: bool = False, vector: bool = False) -> Step:
    """FP32 weights under bf16 autocast; the clauses are found as in the script of the question answering task."""
    count, length, kinds, top = s.size(8, 2), s.size(1024, 16), s.size(4, 2), s.size(20, 4)
    words = s.size(32_000, 50)
    with s.device:
        model = Lawyer(words, s.size(1024, 8), s.size(16, 2), s.size(8, 2), kinds, sdpa, library).eval()
    if cast:
        model = model.to(BF16)
    texts = [s.pin(torch.randint(words, (count, length))) for _ in range(4)]
    lengths = [s.pin(torch.randint(length // 2, length, (count,))) for _ in range(4)]
    turn = counter()

    @torch.inference_mode()
    def step() -> list[list[tuple[int, int, float]]]:
        now = next(turn) % len(texts)
        text, long = texts[now].to(s.device, non_blocking=True), lengths[now].to(s.device, non_blocking=True)
        with torch.autocast(s.device.type, BF16, enabled=not cast):
            marks = model(text, long)
        outside = torch.arange(length, device=s.device) >= long[:, None]
        marks = marks.float().masked_fill(outside[..., None], -1e4)
        starts, ends = marks.transpose(1, 2).unflatten(1, (kinds, 2)).unbind(2)
        if vector:
            return best_tensors(starts, ends, top, s.size(256, 8))
        return best_spans(starts.cpu().numpy(), ends.cpu().numpy(), top, s.size(256, 8))

    return step


# Whales: sixteen of them are followed by their calls, whose bearings six buoys tell (a particle filter).


def swum_and_heard(state: Tensor, dice: Tensor, buoys: Tensor, bearings: Tensor) -> tuple[Tensor, Tensor]:
    """Where each guess is a minute later, and how well it explains the bearings, some of which are echoes."""
    x, y, speed, heading = state
    heading = heading + 0.15 * dice[3]
    speed = (speed + 0.05 * dice[2]).clamp(0.2, 3.0)
    x = x + 0.06 * speed * torch.cos(heading) + 0.02 * dice[0]
    y = y + 0.06 * speed * torch.sin(heading) + 0.02 * dice[1]
    right, up = x - buoys[:, 0, None, None], y - buoys[:, 1, None, None]
    wrong = torch.atan2(up, right) - bearings.T[..., None]
    wrong = torch.atan2(torch.sin(wrong), torch.cos(wrong))
    spread = 0.03 + 0.002 * torch.sqrt(right.square() + up.square())
    call = torch.exp(-0.5 * (wrong / spread).square()) / (spread * math.sqrt(2.0 * math.pi))
    likely = torch.log(0.9 * call + 0.1 / (2.0 * math.pi)).sum(0)
    return torch.stack([x, y, speed, heading]), likely


def running_sum(weight: Tensor, parts: int) -> Tensor:
    """As cumsum, but each row is summed in parts, which then begin where the parts before them ended."""
    within = weight.unflatten(-1, (parts, -1)).cumsum(-1)
    ends = within[..., -1]
    return (within + (ends.cumsum(-1) - ends)[..., None]).flatten(-2)


def whale_tracks(s: Setup, *, spread: bool = False, compiled: bool = False, asked: bool = True, kept: bool = False) -> Step:
    """Five minutes; guesses are drawn again once too few of them count, which is asked every minute."""
    whales, guesses, minutes, parts = s.size(16, 3), s.size(262_144, 64), s.size(5, 2), s.size(512, 8)
    angle = torch.arange(6) * (math.pi / 3.0)
    buoys = 12.0 * torch.stack([angle.cos(), angle.sin()], 1)
    place, course = 6.0 * torch.rand(whales, 2) - 3.0, 6.28 * torch.rand(whales)
    calls = []
    for _ in range(minutes):
        place = place + 0.09 * torch.stack([course.cos(), course.sin()], 1)
        right, up = (place[:, None] - buoys).unbind(-1)
        calls.append(torch.atan2(up, right) + 0.03 * torch.randn(whales, 6))
    with s.device:
        begin = torch.rand(4, whales, guesses)
        scale, shift = torch.tensor([10.0, 10.0, 2.5, 6.28]), torch.tensor([-5.0, -5.0, 0.3, 0.0])
        begin = begin * scale[:, None, None] + shift[:, None, None]
        rungs = torch.arange(guesses) / guesses
    buoys = buoys.to(s.device)
    if kept:
        calls = [call.to(s.device) for call in calls]
    minute = s.compile(swum_and_heard) if compiled else swum_and_heard

    @torch.no_grad()
    def step() -> Tensor:
        state, logs, means = begin, torch.zeros(whales, guesses, device=s.device), []
        for call in calls:
            dice = torch.randn(4, whales, guesses, device=s.device)
            state, likely = minute(state, dice, buoys, call if kept else call.to(s.device))
            logs = logs + likely
            if spread:
                weight = torch.exp(logs - logs.amax(-1, keepdim=True))
                weight = weight / weight.sum(-1, keepdim=True)
            else:
                weight = torch.softmax(logs, -1)
            means.append((state[:2] * weight).sum(-1))
            few = weight.square().sum(-1) * (0.5 * guesses) > 1.0
            if asked and not few.any().item():
                continue
            ladder = running_sum(weight, parts) if spread else weight.cumsum(-1)
            drawn = rungs + torch.rand(whales, 1, device=s.device) / guesses
            these = torch.searchsorted(ladder, drawn).clamp_(max=guesses - 1)
            again = state.gather(-1, these.expand(4, -1, -1))
            state = torch.where(few[:, None], again, state)
            logs = torch.where(few[:, None], 0.0, logs)
        return torch.stack(means)

    return step


WORKLOADS = (
    written(
        "tapestry_codes", "A VQ-VAE of 4096 codes in training on 64 photographs, TF32 in NCHW; they are pageable, loss and lost codes are read.",
        "channels_last; bf16 autocast; nothing is read; pinned photographs on a side stream; torch.compile of the distances", tapestry_codes,
        {
            "memory-layout": {"last": True}, "precision/bf16": {"autocast": True}, "sync-stall": {"read": False}, "memcpy": {"ahead": True},
            "unfused-elementwise": {"compiled": True},
        }, gpu_bound=True,
    ),
    written(
        "bakery_orders", "A temporal fusion transformer in training on 64 windows, TF32; a network for each of fifteen variables; the loss is read.",
        "the step as a CUDA graph; torch.compile of the variables' networks; fused Adam; bf16 autocast; the loss is not read", bakery_orders,
        {
            "graph-candidate": {"graphed": True}, "launch-gap": {"compiled": True}, "optimizer-foreach": {"fused": True},
            "precision/bf16": {"autocast": True}, "sync-stall": {"read": False},
        },
    ),
    written(
        "clause_finder", "Eight layers read eight contracts of 1024, FP32 weights, bf16 autocast; attention, norms written out; spans in Python.",
        "F.scaled_dot_product_attention; weights cast once; F.layer_norm; clauses are found on the GPU", clause_finder,
        {"unfused-attention": {"sdpa": True}, "dtype-casts": {"cast": True}, "unfused-norm": {"library": True}, "host-bound": {"vector": True}},
    ),
    written(
        "whale_tracks", "A particle filter of sixteen whales with 262,144 guesses each; pointwise kernels, a cumsum by row; asks every minute.",
        "running sums and softmax in parts; torch.compile of what is swum and heard; nobody asks; bearings on the GPU beforehand", whale_tracks,
        {"small-grid": {"spread": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}, "memcpy": {"kept": True}},
        gpu_bound=True,
    ),
)  # fmt: skip
