"""Programs by an author who has not read the rules: a commuters' news feed, bearings that wear, a chat model of many tenants, slow motion.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture, written

BF16, FP16 = torch.bfloat16, torch.float16


# News: which of five articles a commuter opens, by the titles of those read before (NRMS).


class Impressions(Dataset[tuple[np.ndarray, np.ndarray]]):
    """What a reader has read, and one article that was opened among those that were not, as titles of word numbers."""

    def __init__(self, articles: int, words: int, length: int, stored: int, past: int, others: int) -> None:
        rng = np.random.default_rng(7)
        self.past, self.others = past, others
        self.titles = [np.zeros(length, np.int64)]
        for _ in range(articles):
            title = np.zeros(length, np.int64)
            known = int(rng.integers(length // 3, length + 1))
            title[:known] = rng.integers(1, words, known)
            self.titles.append(title)
        self.read = [rng.integers(1, articles + 1, int(rng.integers(1, 2 * past))).tolist() for _ in range(stored)]
        self.opened = rng.integers(1, articles + 1, stored).tolist()
        self.shown = [rng.integers(1, articles + 1, int(rng.integers(others, 60))).tolist() for _ in range(stored)]

    def __len__(self) -> int:
        return len(self.opened)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        history = self.read[index][-self.past :]
        history = history + [0] * (self.past - len(history))
        offered = [self.opened[index], *random.sample(self.shown[index], self.others)]
        return np.stack([self.titles[n] for n in history]), np.stack([self.titles[n] for n in offered])


class Mixing(nn.Module):
    """Self-attention without a projection at the end."""

    def __init__(self, heads: int, size: int, scale: float, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.scale, self.sdpa = heads, scale, sdpa
        width = heads * size
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            seen = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * self.scale, -1) @ v
        return seen.transpose(1, 2).flatten(2)


class Pooling(nn.Module):
    """One vector for many, by additive attention."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, inner), nn.Linear(inner, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.softmax(self.two(torch.tanh(self.one(x))), 1)
        return (weight * x).sum(1)


class Titles(nn.Module):
    def __init__(self, words: int, heads: int, size: int, scale: float, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.word = nn.Embedding(words, heads * size)
        self.mixing, self.pooling = Mixing(heads, size, scale, sdpa), Pooling(heads * size, inner)

    def forward(self, titles: Tensor) -> Tensor:
        x = F.dropout(self.word(titles), 0.2, self.training)
        return self.pooling(F.dropout(self.mixing(x), 0.2, self.training))


class Reader(nn.Module):
    def __init__(self, heads: int, size: int, scale: float, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.mixing, self.pooling = Mixing(heads, size, scale, sdpa), Pooling(heads * size, inner)

    def forward(self, read: Tensor) -> Tensor:
        return self.pooling(F.dropout(self.mixing(read), 0.2, self.training))


class Newspaper(nn.Module):
    def __init__(self, words: int, heads: int, size: int, scale: float, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.titles = Titles(words, heads, size, scale, inner, sdpa)
        self.reader = Reader(heads, size, scale, inner, sdpa)

    def forward(self, read: Tensor, offered: Tensor) -> Tensor:
        count, past = read.shape[:2]
        titles = torch.cat([read, offered], 1)
        seen = self.titles(titles.flatten(0, 1)).view(count, titles.shape[1], -1)
        return torch.einsum("bw,bow->bo", self.reader(seen[:, :past]), seen[:, past:])


@torch.no_grad()
def widened(model: nn.Module, wide: nn.Module, size: int, wide_size: int) -> nn.Module:
    """`wide` with the weights of `model`, and zeros where each head of it is wider."""
    for small, large in zip(model.parameters(), wide.parameters(), strict=True):
        places = []
        for old, new in zip(small.shape, large.shape, strict=True):
            place = torch.arange(old, device=small.device)
            places.append(place if old == new else place // size * wide_size + place % size)
        large.zero_()
        large[torch.meshgrid(*places, indexing="ij")] = small
    return wide


def without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def commuter_news(
    s: Setup,
    *,
    workers: bool = False,
    padded: bool = False,
    sdpa: bool = False,
    compiled: bool = False,
    fused: bool = False,
    read: bool = True,
) -> Step:
    """Training in bf16 autocast with words of 300 numbers and four heads; titles are looked up by this process; loss and hits are read."""
    count, past, length, words = s.size(64, 3), s.size(50, 4), s.size(30, 5), s.size(60_000, 50)
    heads, size, wide_size, inner = s.size(4, 2), s.size(75, 5), s.size(80, 8), s.size(200, 8)
    data = Impressions(s.size(20_000, 30), words, length, s.size(20_000, 12), past, 4)
    more: dict[str, Any] = {"num_workers": s.size(8, 1), "persistent_workers": True, "pin_memory": s.cuda} if workers else {}
    batches = without_end(DataLoader(data, count, shuffle=True, drop_last=True, **more))
    with s.device:
        model: nn.Module = Newspaper(words, heads, size, size**-0.5, inner, sdpa)
        if padded:
            model = widened(model, Newspaper(words, heads, wide_size, size**-0.5, inner, sdpa), size, wide_size)
        first = torch.zeros(count, dtype=torch.long)
        noted = torch.zeros(2)
    if compiled:
        model.titles = s.compile(model.titles, dynamic=False)
        model.reader = s.compile(model.reader, dynamic=False)
    optimizer, log = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused or None), [0.0, 0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        before, offered = (part.to(s.device, non_blocking=True) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            scores = model(before, offered)
        loss = F.cross_entropy(scores.float(), first)
        loss.backward()
        optimizer.step()
        hits = (scores.argmax(-1) == first).float().mean()
        if read:
            log[0], log[1] = 0.99 * log[0] + 0.01 * loss.item(), 0.99 * log[1] + 0.01 * hits.item()
        else:
            noted.lerp_(torch.stack([loss.detach(), hits]), 0.01)
        return loss.detach()

    return step


# Bearings: whether the vibrations of 32 machines drift away from what they used to be.


def levelled(x: Tensor) -> Tensor:
    """Without the sensor's offset and in units of its spread; spikes of the cable are cut."""
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6)
    return x.clamp(-12.0, 12.0)


def running_sum(x: Tensor, parts: int) -> Tensor:
    if parts == 1:
        return x.cumsum(-1)
    inside = x.unflatten(-1, (parts, -1)).cumsum(-1)
    total = inside[..., -1]
    return (inside + (total.cumsum(-1) - total)[..., None]).flatten(-2)


def running_least(x: Tensor, parts: int) -> Tensor:
    if parts == 1:
        return x.cummin(-1).values
    inside = x.unflatten(-1, (parts, -1)).cummin(-1).values
    least = inside[..., -1].cummin(-1).values
    before = F.pad(least[..., :-1], (1, 0), value=float("inf"))
    return torch.minimum(inside, before[..., None]).flatten(-2)


def drifted(loud: Tensor, slack: float, parts: int) -> tuple[Tensor, Tensor]:
    """How far each machine's loudness has gone up and down (CUSUM)."""
    unusual = (loud - loud.mean(-1, keepdim=True)) / loud.std(-1, keepdim=True)
    up, down = running_sum(unusual - slack, parts), running_sum(-unusual - slack, parts)
    return up - running_least(up, parts), down - running_least(down, parts)


def shapes(x: Tensor) -> Tensor:
    """Indicators of wear in each window: crest, kurtosis, skewness, shape, impulse and margin."""
    mean = x.mean(-1, keepdim=True)
    away = x - mean
    spread = away.square().mean(-1).sqrt() + 1e-6
    strong = x.square().mean(-1).sqrt() + 1e-6
    peak, size = x.abs().amax(-1), x.abs().mean(-1) + 1e-6
    kurtosis = (away / spread[..., None]).pow(4).mean(-1)
    skewness = (away / spread[..., None]).pow(3).mean(-1)
    margin = peak / (x.abs() + 1e-6).sqrt().mean(-1).square()
    return torch.stack([peak / strong, kurtosis, skewness.abs(), strong / size, peak / size, margin])


def misfit(windows: Tensor, again: Tensor) -> Tensor:
    wrong = (windows - again).abs()
    wrong = torch.where(wrong < 1.0, 0.5 * wrong.square(), wrong - 0.5)
    return wrong.mean(-1) / (windows.square().mean(-1) + 1e-3)


class Memory(nn.Module):
    """An autoencoder of windows, taught when all machines were new."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            weight_norm(nn.Conv1d(1, width, 16, 4, 6)), nn.ELU(),
            weight_norm(nn.Conv1d(width, 2 * width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.Conv1d(2 * width, 4 * width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.ConvTranspose1d(4 * width, 2 * width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.ConvTranspose1d(2 * width, width, 8, 4, 2)), nn.ELU(),
            weight_norm(nn.ConvTranspose1d(width, 1, 8, 4, 2)),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x[:, None])[:, 0]


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


def bearing_streams(
    s: Setup,
    *,
    ahead: bool = False,
    divided: bool = False,
    compiled: bool = False,
    folded: bool = False,
    autocast: bool = False,
    asked: bool = True,
) -> Step:
    """Inference in FP32 with TF32 convolutions on five seconds of 32 machines; nine limits are asked for one after the other."""
    machines, length, window = s.size(32, 2), s.size(131_072, 1024), s.size(2048, 128)
    parts, names = s.size(256, 8) if divided else 1, ("crest", "kurtosis", "skewness", "shape", "impulse", "margin", "up", "down", "memory")
    limits = dict(zip(names, (40.0, 900.0, 90.0, 9.0, 90.0, 120.0, 1e6, 1e6, 50.0), strict=True))
    with s.device:
        model = Memory(s.size(32, 4)).eval()
        pitch = torch.linspace(0.0, 12_800.0, length // 2 + 1)
        band = 2.0 * torch.sigmoid((pitch - 500.0) / 50.0) * torch.sigmoid((10_000.0 - pitch) / 200.0)
    if folded:
        for layer in model.modules():
            if parametrize.is_parametrized(layer, "weight"):
                parametrize.remove_parametrizations(layer, "weight")
    level, shape, miss = (s.compile(f, dynamic=False) if compiled else f for f in (levelled, shapes, misfit))
    remember = s.compile(model, dynamic=False) if compiled else model
    rng = np.random.default_rng(11)
    chunks = [rng.standard_normal((machines, length), dtype=np.float32) for _ in range(4)]
    queue = Prefetcher([(s.pin(torch.from_numpy(chunk)),) for chunk in chunks], s) if ahead else None
    later, turn = None if asked else Later((2, len(names) + 1), s), counter()

    @torch.no_grad()
    def step() -> list[tuple[str, int]]:
        torch.set_float32_matmul_precision("high")
        x = queue.next()[0] if queue else torch.from_numpy(chunks[next(turn) % len(chunks)]).to(s.device)
        whole = torch.isfinite(x).all()
        if asked and not whole:
            raise ValueError("a sensor is broken")
        analytic = torch.fft.ifft(torch.fft.rfft(level(x)) * band, n=length)
        sound, loud = analytic.real, analytic.abs()
        up, down = drifted(loud, 0.25, parts)
        windows = sound.unfold(-1, window, window // 2).flatten(0, 1)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again = remember(windows)
        found = [*shape(windows), up.amax(-1), down.amax(-1), miss(windows, again.float())]
        alarms = []
        if asked:
            for name, values in zip(names, found, strict=True):
                if values.max() > limits[name]:
                    alarms.append((name, int(values.argmax())))
            return alarms
        most = [torch.stack([values.max(), values.argmax().float()]) for values in found]
        most.append(torch.stack([whole.float(), whole.float()]))
        highest, where = later.put(torch.stack(most, 1))
        if later.turn > 1 and not highest[-1]:
            raise ValueError("a sensor is broken")
        return [(name, int(where[n])) for n, name in enumerate(names) if highest[n] > limits[name]]

    return step


# Tenants: one small chat model for all customers, each of whom has low-rank adapters of their own.


def root_normed(x: Tensor, gain: Tensor, library: bool) -> Tensor:
    if library:
        return F.rms_norm(x, x.shape[-1:], gain, 1e-5)
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
    return y.to(x.dtype) * gain


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = x.float()
    one, two = y.chunk(2, -1)
    return (y * cos + torch.cat([-two, one], -1) * sin).to(x.dtype)


class Adapter(nn.Module):
    """What each tenant's adapter adds to a projection."""

    def __init__(self, tenants: int, inner: int, out: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(inner**-0.5 * torch.randn(tenants, rank, inner))
        self.up = nn.Parameter(0.1 * rank**-0.5 * torch.randn(tenants, out, rank))

    def forward(self, x: Tensor, tenant: Tensor) -> Tensor:
        low = torch.einsum("bi,bri->br", x, self.down[tenant])
        return torch.einsum("br,bor->bo", low, self.up[tenant])


class Turn(nn.Module):
    """A layer with the keys and values of all conversations."""

    def __init__(self, many: int, room: int, width: int, heads: int, shared: int, tenants: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.library, self.sdpa = heads, shared, library, sdpa
        size = width // heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, shared * size, bias=False), nn.Linear(width, shared * size, bias=False)
        self.more_query, self.more_value = Adapter(tenants, width, width, 16), Adapter(tenants, width, shared * size, 16)
        inner = 8 * width // 3 // 64 * 64 or 64
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.before, self.between = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.register_buffer("keys", torch.randn(many, shared, room, size))
        self.register_buffer("values", torch.randn(many, shared, room, size))

    def seen(self, q: Tensor, known: Tensor) -> Tensor:
        keys = self.keys.repeat_interleave(self.heads // self.shared, 1)
        values = self.values.repeat_interleave(self.heads // self.shared, 1)
        if self.sdpa:
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=known[:, None, None])[:, :, 0]
        scores = torch.einsum("bhd,bhtd->bht", q, keys) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~known[:, None], float("-inf"))
        return torch.einsum("bht,bhtd->bhd", torch.softmax(scores.float(), -1).to(q.dtype), values)

    def forward(self, x: Tensor, tenant: Tensor, rows: Tensor, places: Tensor, known: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = root_normed(x, self.before, self.library)
        q = (self.query(h) + self.more_query(h, tenant)).unflatten(-1, (self.heads, -1))
        k = self.key(h).unflatten(-1, (self.shared, -1))
        v = (self.value(h) + self.more_value(h, tenant)).unflatten(-1, (self.shared, -1))
        self.keys[rows, :, places] = turned(k, cos, sin)
        self.values[rows, :, places] = v
        x = x + self.out(self.seen(turned(q, cos, sin), known).flatten(1))
        h = root_normed(x, self.between, self.library)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Helper(nn.Module):
    def __init__(
        self, words: int, many: int, room: int, width: int, heads: int, shared: int, layers: int, tenants: int, library: bool, sdpa: bool
    ) -> None:
        super().__init__()
        self.library = library
        self.word, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.turns = nn.ModuleList(Turn(many, room, width, heads, shared, tenants, library, sdpa) for _ in range(layers))
        self.last = nn.Parameter(torch.ones(width))
        self.register_buffer("rows", torch.arange(many))
        self.register_buffer("room", torch.arange(room))
        self.register_buffer("pairs", torch.arange(width // heads // 2))

    def forward(self, tokens: Tensor, tenant: Tensor, places: Tensor) -> Tensor:
        x = self.word(tokens)
        angle = places[:, None, None] * 10_000.0 ** -(self.pairs / len(self.pairs))
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos(), angle.sin()
        known = self.room <= places[:, None]
        for turn in self.turns:
            x = turn(x, tenant, self.rows, places, known, cos, sin)
        return self.head(root_normed(x, self.last, self.library))


def tenant_adapters(
    s: Setup,
    *,
    many: int = 32,
    library: bool = False,
    sdpa: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    asked: bool = True,
) -> Step:
    """Eight tokens for each conversation in bf16; keys are repeated for all heads; after each token it is asked whether all are done."""
    rows, room, words, new = s.size(many, 3), s.size(1024, 16), s.size(32_000, 64), s.size(8, 3)
    width, heads, shared, layers, tenants, spoken = s.size(1536, 32), s.size(12, 4), s.size(4, 2), s.size(12, 1), s.size(48, 5), s.size(64, 4)
    with s.device:
        model = Helper(words, rows, room, width, heads, shared, layers, tenants, library, sdpa)
        model = model.to(BF16).eval()
        tenant, begin = torch.randint(tenants, (rows,)), torch.randint(room // 2, room - new, (rows,))
        said, replies = torch.randint(2, words, (rows, spoken + new)), torch.zeros(rows, new, dtype=torch.long)
    network = s.compile(model, mode="reduce-overhead") if compiled else model
    waits = asked and not graphed

    @torch.no_grad()
    def reply() -> None:
        replies.zero_()
        places, tokens = begin.clone(), said[:, spoken - 1].clone()
        done = torch.zeros_like(tokens, dtype=torch.bool)
        for turn in range(new):
            logits = network(tokens, tenant, places).float()
            before = said[:, : spoken + turn]
            scores = logits.gather(1, before)
            logits.scatter_(1, before, torch.where(scores > 0, scores / 1.15, scores * 1.15))
            tokens = logits.argmax(-1).masked_fill(done, 0)
            done = done | (tokens == 1)
            said[:, spoken + turn], replies[:, turn] = tokens, tokens
            if waits and done.all():
                break
            places = places + 1

    torch.set_float32_matmul_precision("high")
    work = capture(reply, s) if graphed else reply

    def step() -> list[list[int]]:
        torch.set_float32_matmul_precision("high")
        work()
        return replies.tolist()

    return step


# Slow motion: the picture between two others, by flows that are refined from coarse to fine (RIFE).


def pulled(picture: Tensor, flow: Tensor, grid: Tensor) -> Tensor:
    """The picture as the flow carries it."""
    high, wide = picture.shape[-2:]
    flow = flow.float()
    flow = torch.cat([flow[:, :1] / ((wide - 1.0) / 2.0), flow[:, 1:] / ((high - 1.0) / 2.0)], 1)
    return F.grid_sample(picture, (grid + flow).permute(0, 2, 3, 1), mode="bilinear", padding_mode="border", align_corners=True)


def rectified(inner: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, out, 3, stride, 1), nn.PReLU(out))


class Refiner(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.begin = nn.Sequential(rectified(inner, width // 2, 2), rectified(width // 2, width, 2))
        self.body = nn.Sequential(*(rectified(width, width, 1) for _ in range(8)))
        self.end = nn.ConvTranspose2d(width, 5, 4, 2, 1)

    def forward(self, x: Tensor, flow: Tensor | None, scale: int) -> tuple[Tensor, Tensor]:
        if scale != 1:
            x = F.interpolate(x, scale_factor=1.0 / scale, mode="bilinear", align_corners=False)
        if flow is not None:
            flow = F.interpolate(flow, scale_factor=1.0 / scale, mode="bilinear", align_corners=False) / scale
            x = torch.cat([x, flow], 1)
        x = self.begin(x)
        x = self.end(self.body(x) + x)
        x = F.interpolate(x, scale_factor=2.0 * scale, mode="bilinear", align_corners=False)
        return x[:, :4] * scale * 2.0, x[:, 4:]


class Between(nn.Module):
    """Three refiners, and a teacher who sees the true picture."""

    def __init__(self, side: int, widths: tuple[int, int, int]) -> None:
        super().__init__()
        self.refiners = nn.ModuleList(Refiner(6 if n == 0 else 17, width) for n, width in enumerate(widths))
        self.teacher = Refiner(20, widths[-1])
        line = torch.linspace(-1.0, 1.0, side)
        self.register_buffer("grid", torch.stack(torch.meshgrid(line, line, indexing="xy"))[None])

    def mixed(self, one: Tensor, two: Tensor, flow: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two = pulled(one, flow[:, :2], self.grid), pulled(two, flow[:, 2:], self.grid)
        part = torch.sigmoid(mask.float())
        return one, two, one * part + two * (1.0 - part)

    def forward(self, one: Tensor, two: Tensor, true: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The picture between, the teacher's, and how far the flows are from the teacher's where that one is better."""
        flow, mask = self.refiners[0](torch.cat([one, two], 1), None, 4)
        near, far, picture = self.mixed(one, two, flow, mask)
        flows, pictures = [flow], [picture]
        for refiner, scale in zip(self.refiners[1:], (2, 1), strict=True):
            more, sure = refiner(torch.cat([one, two, near, far, mask], 1), flow, scale)
            flow, mask = flow + more, mask + sure
            near, far, picture = self.mixed(one, two, flow, mask)
            flows.append(flow)
            pictures.append(picture)
        more, sure = self.teacher(torch.cat([one, two, near, far, mask, true], 1), flow, 1)
        taught = flow + more
        best = self.mixed(one, two, taught, mask + sure)[2]
        apart = best.new_zeros(())
        for flow, picture in zip(flows, pictures, strict=True):
            better = (picture - true).abs().mean(1, True) > (best - true).abs().mean(1, True) + 0.01
            off = ((taught.detach().float() - flow.float()).square().mean(1, True) + 1e-6).sqrt()
            apart = apart + (off * better.float().detach()).mean()
        return pictures[-1], best, apart


def pyramid(x: Tensor, kernel: Tensor, levels: int) -> list[Tensor]:
    bands = []
    for _ in range(levels):
        soft = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), kernel, groups=3)
        small = soft[:, :, ::2, ::2]
        bands.append(x - F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False))
        x = small
    return [*bands, x]


def blurry(guess: Tensor, true: Tensor, kernel: Tensor, levels: int) -> Tensor:
    """L1 between the pictures' Laplacian pyramids."""
    pairs = zip(pyramid(guess, kernel, levels), pyramid(true, kernel, levels), strict=True)
    return sum((2.0**n * (a - b).abs().mean() for n, (a, b) in enumerate(pairs)), start=guess.new_zeros(()))


def slow_motion(
    s: Setup,
    *,
    last: bool = False,
    compiled: bool = False,
    fused: bool = False,
    scaled: bool = True,
    none: bool = False,
    ahead: bool = False,
) -> Step:
    """Training in FP16 with a GradScaler on sixteen triples; gradients are filled with zeros; pictures are pageable bytes."""
    count, side, levels = s.size(16, 1), s.size(256, 64), s.size(4, 2)
    dtype = FP16 if scaled and s.cuda else BF16
    with s.device:
        model = Between(side, (s.size(240, 8), s.size(150, 8), s.size(90, 8)))
        row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0
        kernel = (row[:, None] * row).expand(3, 1, 5, 5).contiguous()
    if last:
        model = model.to(memory_format=torch.channels_last)
    network = s.compile(model, dynamic=False) if compiled else model
    wrong = s.compile(blurry, dynamic=False) if compiled else blurry
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-3, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    films = [torch.randint(256, (count, 9, side, side), dtype=torch.uint8) for _ in range(4)]
    queue = Prefetcher([(s.pin(film),) for film in films], s) if ahead else None
    turn = counter()

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        film = queue.next()[0] if queue else films[next(turn) % len(films)].to(s.device)
        film = film.float() / 255.0
        if last:
            film = film.contiguous(memory_format=torch.channels_last)
        one, two, true = film.split(3, 1)
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, dtype):
            picture, best, apart = network(one, two, true)
        loss = wrong(picture.float(), true, kernel, levels) + wrong(best.float(), true, kernel, levels) + 0.01 * apart
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "commuter_news", "NRMS in training on 64 readers, bf16 autocast, 300 numbers a word in four heads; titles looked up here; two reads.",
        "eight workers; heads of 80; scaled_dot_product_attention; torch.compile of titles and readers; fused Adam; nothing is read", commuter_news,
        {
            "data-loading": {"workers": True}, "gemm-alignment": {"padded": True}, "unfused-attention": {"sdpa": True},
            "unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}, "sync-stall": {"read": False},
        },
    ),
    written(
        "bearing_streams", "Vibrations of 32 machines, FP32: running sums of long rows, indicators, an autoencoder with weight norm; limits are asked.",
        "pinned chunks ahead; rows divided; torch.compile; weights folded once; bf16 autocast; limits are read a step later", bearing_streams,
        {
            "memcpy": {"ahead": True}, "small-grid": {"divided": True}, "unfused-elementwise": {"compiled": True},
            "weight-norm": {"folded": True}, "precision/bf16": {"autocast": True}, "sync-stall": {"asked": False},
        },
    ),
    written(
        "tenant_adapters", "Eight tokens of a chat model in bf16 for 32 conversations, with adapters for each tenant; norms and attention written out.",
        "torch.compile; all tokens as a CUDA graph; scaled_dot_product_attention; F.rms_norm; nobody asks; 96 conversations", tenant_adapters,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "unfused-attention": {"sdpa": True},
            "unfused-norm": {"library": True}, "sync-stall": {"asked": False}, "low-arithmetic-intensity": {"many": 96},
        }, shared={"low-arithmetic-intensity": 3.0},
    ),
    written(
        "slow_motion", "RIFE in training on sixteen triples, FP16 with a scaler, NCHW; gradients filled with zeros; pageable bytes.",
        "channels_last; torch.compile of network and loss; fused AdamW; bf16 without a scaler; set_to_none; pinned bytes ahead", slow_motion,
        {
            "memory-layout": {"last": True}, "unfused-elementwise": {"compiled": True}, "amp-scaler-sync": {"fused": True},
            "amp-scaler-sync/bf16": {"scaled": False}, "grad-zeroing": {"none": True}, "memcpy": {"ahead": True},
        },
    ),
)  # fmt: skip
