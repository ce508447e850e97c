"""Puzzle lenders' next boxes, microphones that hear birds at dawn and a costume hire's front page, by an author who likes plain loops.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# Puzzles: a SASRec over what members of a jigsaw library borrowed, against negatives drawn by popularity.


class Norm(nn.Module):
    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-8)
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-8) * self.weight + self.bias


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, drop: float, fused_norm: bool, fused_attention: bool) -> None:
        super().__init__()
        self.heads, self.drop, self.fused = heads, drop, fused_attention
        self.before, self.after = Norm(width, fused_norm), Norm(width, fused_norm)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor, future: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(future, float("-inf"))
            mixed = F.dropout(torch.softmax(scores, -1), self.drop) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        x = x + F.dropout(self.attend(self.before(x), future), self.drop)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.after(x)))), self.drop)


class Lender(nn.Module):
    def __init__(self, boxes: int, length: int, width: int, layers: int, **how: Any) -> None:
        super().__init__()
        self.boxes, self.gaps, self.places = nn.Embedding(boxes, width), nn.Embedding(32, width), nn.Embedding(length, width)
        for table in (self.boxes, self.gaps, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, 2, 0.2, **how) for _ in range(layers))
        self.last = Norm(width, how["fused_norm"])

    def forward(self, boxes: Tensor, gaps: Tensor, future: Tensor) -> Tensor:
        x = self.boxes(boxes) * math.sqrt(self.boxes.embedding_dim) + self.gaps(gaps) + self.places.weight
        x = F.dropout(x, 0.2)
        for layer in self.layers:
            x = layer(x, future)
        return self.last(x)


def puzzle_library(
    s: Setup,
    *,
    fused: bool = False,
    attention: bool = False,
    norm: bool = False,
    compiled: bool = False,
    autocast: bool = False,
    late: bool = False,
    pinned: bool = False,
) -> Step:
    """Training on 256 members of 200 loans each, a million boxes, 16 negatives for each loan."""
    members, length, boxes, negatives = s.size(256, 4), s.size(200, 6), s.size(1_000_000, 50), s.size(16, 3)
    rng = np.random.default_rng(470)
    batches = []
    for _ in range(6):
        loans = np.minimum(rng.zipf(1.1, (members, length + 1)), boxes - 1)
        days = rng.exponential(9.0, (members, length)).astype(np.float32)
        long = rng.integers(length // 4 + 1, length + 1, members)
        there = np.arange(length) < long[:, None]
        gaps = np.minimum(np.log2(1.0 + days) * 4.0, 31.0).astype(np.int64)
        told = (loans[:, :-1] * there, gaps, loans[:, 1:] * there, there)
        batches.append(tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in told))
    with s.device:
        model = Lender(boxes, length, s.size(128, 8), s.size(3, 1), fused_norm=norm, fused_attention=attention).train()
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        noted = torch.zeros(3)
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(weights, lr=1e-3, betas=(0.9, 0.98), **({"fused": True} if fused else {}))
    loader = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if pinned else None
    turn, logs = counter(), {"loss": 0.0, "first": 0.0, "norm": 0.0}

    def often(box: Tensor) -> Tensor:
        """Logarithm of how many times a box is expected among the negatives."""
        return torch.log(torch.log1p(1.0 / box.clamp(min=1).float()) * (negatives / math.log(boxes)))

    def losses(seen: Tensor, gaps: Tensor, following: Tensor, there: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        hidden = model(seen, gaps, future)
        right = (hidden * model.boxes(following)).sum(-1).float()
        wrong = (hidden.unsqueeze(2) * model.boxes(drawn)).sum(-1).float()
        # what is drawn often counts less, and what was really lent is no negative
        right, wrong = right - often(following), wrong - often(drawn)
        wrong = wrong.masked_fill(drawn == following.unsqueeze(2), -1e4)
        each = torch.logsumexp(torch.cat([right.unsqueeze(2), wrong], 2), 2) - right
        weight = there.float()
        first = ((right.unsqueeze(2) > wrong).all(2).float() * weight).sum() / weight.sum()
        return (each * weight).sum() / weight.sum(), first.detach()

    loss_of = s.compile(losses, dynamic=False) if compiled else losses

    def step() -> dict[str, float]:
        torch.set_float32_matmul_precision("highest")
        now = next(turn)
        seen, gaps, following, there = loader.next() if loader else [part.to(s.device) for part in batches[now % 6]]
        drawn = torch.rand(members, length, negatives, device=s.device).mul(math.log(boxes)).exp().long().clamp(1, boxes - 1)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss, first = loss_of(seen, gaps, following, there, drawn)
        loss.backward()
        total = nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()
        if late:
            noted.add_(torch.stack([loss.detach(), first, total]))
            if now % 50 == 49:
                logs.update(zip(logs, [value / 50 for value in noted.tolist()], strict=True))
                noted.zero_()
        else:
            logs.update(loss=loss.item(), first=first.item(), norm=total.item())
        return logs

    return step


# Dawn: microphones in a wood send half a second each; one after the other is heard, and what sings is noted.


class Listener(nn.Module):
    """A step takes each state as an argument and gives it back, so that one model serves all microphones."""

    def __init__(self, mels: int, width: int, convs: int, birds: int, fft: int, hop: int, whole: bool) -> None:
        super().__init__()
        self.fft, self.hop = fft, hop
        self.convs = nn.ModuleList(weight_norm(nn.Conv1d(width if n else mels, width, 5)) for n in range(convs))
        self.halve = weight_norm(nn.Conv1d(width, width, 2, stride=2))
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, birds)
        nn.init.normal_(self.head.weight, std=0.5)  # so that some birds sing
        self.register_buffer("window", torch.hann_window(fft))
        self.register_buffer("filters", torch.rand(fft // 2 + 1, mels) / fft)
        self.gru = None
        if whole:
            self.gru = nn.GRU(width, width, batch_first=True)
            self.gru.load_state_dict({f"{key}_l0": value for key, value in self.cell.state_dict().items()})

    def features(self, wave: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        frames = wave.unfold(1, self.fft, self.hop) * self.window
        power = torch.fft.rfft(frames).abs() ** 2
        mel = torch.log(power @ self.filters + 1e-6)
        mean = 0.95 * mean + 0.05 * mel.mean(1)
        return (mel - mean.unsqueeze(1)).transpose(1, 2), mean

    def heard(self, x: Tensor, hidden: Tensor, pasts: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        kept = []
        for n, conv in enumerate(self.convs):
            long = torch.cat([pasts[n].to(x.dtype), x], 2)
            kept.append(long[:, :, -4:])
            y = F.silu(conv(long))
            x = x + y if n else y
        x = F.silu(self.halve(x)).transpose(1, 2)
        if self.gru is not None:
            states, last = self.gru(x, hidden.unsqueeze(0))
            return torch.sigmoid(self.head(states)), last[0], kept
        rows = []
        for t in range(x.shape[1]):
            hidden = self.cell(x[:, t], hidden)
            rows.append(torch.sigmoid(self.head(hidden)))
        return torch.stack(rows, 1), hidden, kept


def dawn_chorus(
    s: Setup,
    *,
    batched: bool = False,
    whole: bool = False,
    graphed: bool = False,
    folded: bool = False,
    arrays: bool = False,
    autocast: bool = False,
    late: bool = False,
) -> Step:
    """A tick of 12 microphones, half a second at 16 kHz each, 180 birds, FP32; songs begin and end by two thresholds."""
    posts, samples, hop, fft = s.size(12, 3), s.size(8000, 64), s.size(160, 8), s.size(512, 16)
    mels, width, convs, birds = s.size(64, 6), s.size(192, 8), s.size(5, 2), s.size(180, 5)
    low, high = 0.45, 0.55
    with s.device:
        model = Listener(mels, width, convs, birds, fft, hop, whole).eval()
        banks = [torch.zeros(posts, fft - hop), torch.zeros(posts, mels), torch.zeros(posts, width)]
        banks += [torch.zeros(posts, width if n else mels, 4) for n in range(convs)]
        held = [torch.zeros_like(bank[:1]) for bank in banks]
        sound = torch.zeros(1, samples, dtype=torch.int16)
    if folded:
        for conv in (*model.convs, model.halve):
            parametrize.remove_parametrizations(conv, "weight")
    rng = np.random.default_rng(471)
    ticks = [(rng.standard_normal((posts, samples)) * 3000.0).astype(np.int16) for _ in range(8)]
    smooth = np.zeros((posts, birds)) if arrays else [[0.0] * birds for _ in range(posts)]
    sings = np.zeros((posts, birds), dtype=bool) if arrays else [[False] * birds for _ in range(posts)]
    songs: deque[tuple[int, int, int, bool]] = deque(maxlen=500)
    turn = counter()

    @torch.no_grad()
    def listen(new: Tensor, states: list[Tensor]) -> Tensor:
        """Updates the states in place."""
        tail, mean, hidden, *pasts = states
        wave = torch.cat([tail, new.float() / 32768.0], 1)
        x, now = model.features(wave, mean)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            heard, last, kept = model.heard(x, hidden, pasts)
        for state, value in zip(states, [wave[:, samples:], now, last, *kept], strict=True):
            state.copy_(value)
        return heard.float()

    out: list[Tensor] = []

    def captured() -> None:
        out[:] = [listen(sound, held)]

    torch.set_float32_matmul_precision("highest")
    replay = capture(captured, s) if graphed else None

    def tag(new: Tensor, group: slice) -> Tensor:
        states = [bank[group] for bank in banks]
        if replay is None:
            return listen(new, states)
        sound.copy_(new)
        for there, state in zip(held, states, strict=True):
            there.copy_(state)
        replay()
        for there, state in zip(held, states, strict=True):
            state.copy_(there)
        return out[0]

    def note(now: int, post: int, heard: np.ndarray) -> None:
        if arrays:
            for row in heard.astype(np.float64):
                smooth[post] = 0.7 * smooth[post] + 0.3 * row
                on = smooth[post] > np.where(sings[post], low, high)
                for bird in np.flatnonzero(on != sings[post]).tolist():
                    songs.append((now, post, bird, bool(on[bird])))
                sings[post] = on
            return
        level, singing = smooth[post], sings[post]
        for row in heard.tolist():
            for bird, value in enumerate(row):
                level[bird] = 0.7 * level[bird] + 0.3 * value
                on = level[bird] > (low if singing[bird] else high)
                if on != singing[bird]:
                    songs.append((now, post, bird, on))
                    singing[bird] = on

    groups = [slice(0, posts)] if batched else [slice(post, post + 1) for post in range(posts)]

    @torch.no_grad()
    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        now = next(turn)
        tick, waiting = torch.from_numpy(ticks[now % 8]).to(s.device), []
        for group in groups:
            heard = tag(tick[group], group)
            if late:
                waiting.append(heard)
                continue
            for post, rows in enumerate(heard.cpu().numpy(), group.start):
                note(now, post, rows)
        if late:
            for post, rows in enumerate(torch.cat(waiting).cpu().numpy()):
                note(now, post, rows)
        return songs

    return step


# Costumes: two towers find 300 of a million costumes for each visitor, a DIN ranks them, and a loop mixes the front page.


class Tower(nn.Module):
    def __init__(self, width: int, context: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width + context, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, past: Tensor, there: Tensor, context: Tensor) -> Tensor:
        mean = (past * there.unsqueeze(2)).sum(1) / there.sum(1, keepdim=True).clamp(min=1.0)
        return F.normalize(self.layers(torch.cat([mean, context], 1)), dim=1)


class Interest(nn.Module):
    """Deep interest network: each candidate looks at each costume that was hired before."""

    def __init__(self, width: int, context: int, numbers: int, hidden: int) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Linear(4 * width, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1))
        self.rank = nn.Sequential(
            nn.Linear(3 * width + context + numbers + 1, hidden), nn.PReLU(), nn.Linear(hidden, hidden // 2), nn.PReLU(), nn.Linear(hidden // 2, 1)
        )

    def forward(self, offered: Tensor, past: Tensor, there: Tensor, visitor: Tensor, context: Tensor, numbers: Tensor, near: Tensor) -> Tensor:
        many, long = offered.shape[1], past.shape[1]
        new = offered.unsqueeze(2).expand(-1, -1, long, -1)
        old = past.unsqueeze(1).expand(-1, many, -1, -1)
        weight = self.look(torch.cat([old, new, old - new, old * new], 3))
        weight = weight * there[:, None, :, None]
        liked = (weight * old).sum(2)
        whose = [part.unsqueeze(1).expand(-1, many, -1) for part in (visitor, context)]
        return torch.sigmoid(self.rank(torch.cat([liked, offered, *whose, numbers, near.unsqueeze(2)], 2))[:, :, 0].float())


def mixed_page(scores: np.ndarray, vectors: np.ndarray, kinds: np.ndarray, slots: int, most: int) -> list[int]:
    """Maximal marginal relevance, with at most so many of a kind."""
    closest = np.zeros(len(scores), dtype=np.float32)
    chosen: list[int] = []
    shown: dict[int, int] = {}
    for _ in range(slots):
        value = 0.7 * scores - 0.3 * closest
        for n in np.argsort(-value):
            kind = int(kinds[n])
            if int(n) in chosen or shown.get(kind, 0) >= most:
                continue
            chosen.append(int(n))
            shown[kind] = shown.get(kind, 0) + 1
            break
        closest = np.maximum(closest, vectors @ vectors[chosen[-1]])
    return chosen


def mixed_pages(scores: Tensor, vectors: Tensor, kinds: Tensor, slots: int, most: int, of: int) -> Tensor:
    """The same for all visitors at once."""
    closest, chosen = torch.zeros_like(scores), []
    taken, shown = torch.zeros_like(scores, dtype=torch.bool), scores.new_zeros(len(scores), of)
    for _ in range(slots):
        barred = taken | (shown.gather(1, kinds) >= most)
        best = (0.7 * scores - 0.3 * closest).masked_fill(barred, float("-inf")).argmax(1, keepdim=True)
        chosen.append(best)
        taken.scatter_(1, best, True)
        kind = kinds.gather(1, best)
        shown.scatter_add_(1, kind, torch.ones_like(kind, dtype=shown.dtype))
        picked = vectors.gather(1, best.unsqueeze(2).expand(-1, -1, vectors.shape[2]))
        closest = torch.maximum(closest, (vectors @ picked.transpose(1, 2))[:, :, 0])
    return torch.cat(chosen, 1)


def costume_hire(
    s: Setup,
    *,
    together: bool = False,
    ahead: bool = False,
    compiled: bool = False,
    autocast: bool = False,
    pinned: bool = False,
    padded: bool = False,
) -> Step:
    """A batch of 128 visitors: search of a million costumes, ranking of 300 for each, eight on the page."""
    visitors, costumes, many, long = s.size(128, 3), s.size(1_000_000, 60), s.size(300, 8), s.size(50, 4)
    width, told, numbers, kinds, slots, most = s.size(64, 8), s.size(13, 3), 7, s.size(40, 4), s.size(8, 3), 2
    context = -(-told // 8) * 8 if padded else told
    rng = np.random.default_rng(472)
    requests = []
    for _ in range(6):
        past = torch.from_numpy(rng.integers(0, costumes, (visitors, long)))
        there = torch.from_numpy((np.arange(long) < rng.integers(1, long + 1, visitors)[:, None]).astype(np.float32))
        about = np.zeros((visitors, context), dtype=np.float32)
        about[:, :told] = rng.standard_normal((visitors, told))
        requests.append((past, there, torch.from_numpy(about)))
    with s.device:
        tower, ranker = Tower(width, context, s.size(256, 8)).eval(), Interest(width, context, numbers, s.size(256, 8)).eval()
        index = F.normalize(torch.randn(costumes, width), dim=1)
        facts, kind = torch.rand(costumes, numbers), torch.randint(kinds, (costumes,))
    rank = s.compile(ranker, dynamic=False) if compiled else ranker
    loader = Prefetcher([tuple(s.pin(part) for part in request) for request in requests], s) if pinned else None
    turn = counter()

    def found() -> list[Tensor]:
        now = next(turn)
        past, there, about = loader.next() if loader else [part.to(s.device) for part in requests[now % 6]]
        old = index[past]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            visitor = tower(old, there, about).float()
        near = visitor @ index.T
        near.scatter_(1, past, float("-inf"))
        near, picked = near.topk(many, dim=1)
        offered = index[picked]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = rank(offered, old, there, visitor, about, facts[picked], near)
        return [scores, offered, kind[picked], picked]

    def landing() -> list[Tensor]:
        shapes = [((visitors, many), torch.float32), ((visitors, many, width), torch.float32), *[((visitors, many), torch.int64)] * 2]
        return [s.pin(torch.empty(shape, dtype=dtype)) for shape, dtype in shapes]

    spaces = [landing() for _ in range(2 if ahead else 1)] if ahead or pinned else []
    arrivals = [torch.cuda.Event() for _ in spaces] if s.cuda else []
    sent = counter()

    @torch.no_grad()
    def send() -> int:
        """Everything of a request that the GPU does, down to the copy to where the host reads it."""
        n = next(sent) % len(spaces)
        for space, part in zip(spaces[n], found(), strict=True):
            space.copy_(part, non_blocking=True)
        if s.cuda:
            arrivals[n].record()
        return n

    def arrived(n: int) -> list[np.ndarray]:
        if s.cuda:
            arrivals[n].synchronize()
        return [part.numpy() for part in spaces[n]]

    torch.set_float32_matmul_precision("highest")
    waiting = send() if ahead else 0

    @torch.no_grad()
    def step() -> object:
        nonlocal waiting
        torch.set_float32_matmul_precision("highest")
        if together:
            scores, offered, sort, picked = found()
            return picked.gather(1, mixed_pages(scores, offered, sort, slots, most, kinds)).cpu().numpy()
        if ahead:  # this request is sent before the page of the one before it is mixed
            ready, waiting = waiting, send()
            scores, offered, sort, picked = arrived(ready)
        elif pinned:
            scores, offered, sort, picked = arrived(send())
        else:
            scores, offered, sort, picked = [part.cpu().numpy() for part in found()]
        pages = []
        for n in range(visitors):
            chosen = mixed_page(scores[n], offered[n], sort[n], slots, most)
            pages.append([int(picked[n][place]) for place in chosen])
        return np.array(pages)

    return step


WORKLOADS = (
    written(
        "puzzle_library",
        "A SASRec in training on 256 members of 200 loans, FP32, a million boxes, 16 drawn negatives a loan; LayerNorm and attention written out.",
        "fused Adam; scaled_dot_product_attention; layer_norm; torch.compile of the losses; bf16 autocast; losses read late; "
        "batches pinned, copied ahead",
        puzzle_library,
        {
            "optimizer-foreach": {"fused": True}, "unfused-attention": {"attention": True}, "unfused-norm": {"norm": True},
            "unfused-elementwise": {"compiled": True}, "precision": {"autocast": True}, "sync-stall": {"late": True}, "memcpy": {"pinned": True},
        },
    ),
    written(
        "dawn_chorus",
        "A tagger of bird song hears 12 microphones one after the other: causal convolutions under weight norm, a GRU cell a frame, "
        "thresholds in lists.",
        "all microphones in one batch; nn.GRU; CUDA graph of a microphone; weight norms folded; thresholds by numpy; bf16 autocast; one read a tick",
        dawn_chorus,
        {
            "low-arithmetic-intensity": {"batched": True}, "launch-gap": {"whole": True}, "graph-candidate": {"graphed": True},
            "weight-norm": {"folded": True}, "host-bound": {"arrays": True}, "precision": {"autocast": True}, "sync-stall": {"late": True},
        },
    ),
    written(
        "costume_hire",
        "Two towers find 300 of a million costumes for each of 128 visitors, a DIN ranks them in FP32, a loop in numpy mixes each page.",
        "pages mixed on the GPU for all at once; the next request sent before pages are mixed; torch.compile of the ranker; bf16 autocast; "
        "pinned copies, ahead; 213 inputs padded to 216",
        costume_hire,
        {
            "host-bound": {"together": True}, "host-bound/ahead": {"ahead": True}, "unfused-elementwise": {"compiled": True},
            "precision": {"autocast": True}, "memcpy": {"pinned": True}, "gemm-alignment": {"padded": True},
        },
    ),
)  # fmt: skip
