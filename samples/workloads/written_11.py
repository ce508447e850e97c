"""Programs by an author who has not read the rules, the sixth set: floods, routes, malware, sleep, ore, words, harvests, speech, epidemics, maps.

Each fix is what its rule's advice says, alone; about a third are what people try first and gain nothing there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture, written_pair

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


# A river over its banks: the shallow water equations over a map of heights.


def _flood(h: Tensor, u: Tensor, v: Tensor, ground: Tensor, dt: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """One moment of depth and both discharges, by the fluxes of Rusanov."""
    moved = []
    depth = h.clamp(min=1e-4)
    sources = (torch.zeros_like(h), -9.81 * depth * (torch.roll(ground, -1, 1) - torch.roll(ground, 1, 1)) / 2, torch.zeros_like(h))
    wave = torch.sqrt(9.81 * depth)
    for axis, along in ((1, u), (0, v)):
        speed = along / depth
        fastest = torch.maximum(speed.abs() + wave, torch.roll(speed.abs() + wave, -1, axis))
        press = 4.905 * depth * depth
        for place, (state, flux) in enumerate(((h, along), (u, u * speed + (press if axis == 1 else 0.0)), (v, v * speed + (press if axis == 0 else 0.0)))):
            out = 0.5 * (flux + torch.roll(flux, -1, axis)) - 0.5 * fastest * (torch.roll(state, -1, axis) - state)
            change = out - torch.roll(out, 1, axis)
            if axis == 1:
                moved.append(state - dt * (change - sources[place]))
            else:
                moved[place] = moved[place] - dt * change
    h, u, v = moved
    drag = 1.0 / (1.0 + 0.01 * dt * torch.sqrt(u * u + v * v) / depth.pow(7 / 3).clamp(min=1e-3))
    return h.clamp(min=0.0), u * drag, v * drag


def flood_plain(s: Setup, *, compiled: bool = False, read: bool = True, wide: bool = True) -> Step:
    """The next moment's length is read from the fastest wave; the map of heights stayed float64, as the surveyors gave it."""
    side, moments = s.size(2560, 24), s.size(12, 3)
    x = torch.linspace(0, 20, side, device=s.device, dtype=torch.float64)
    ground = torch.sin(x)[:, None] * torch.cos(1.3 * x) + 0.02 * x
    if not wide:
        ground = ground.float()
    advance = s.compile(_flood) if compiled else _flood
    start = (2.0 - ground.float()).clamp(min=0.0) + torch.exp(-((x - 8.0) ** 2)).float()[:, None]

    @torch.no_grad()
    def step() -> Tensor:
        h, u, v = start, torch.zeros_like(start), torch.zeros_like(start)
        for _ in range(moments):
            fastest = (torch.maximum(u.abs(), v.abs()) / h.clamp(min=0.05) + torch.sqrt(9.81 * h)).max()
            dt: Tensor = (0.2 / fastest).clamp(max=0.1)
            if read:
                dt = torch.tensor(min(0.1, 0.2 / fastest.item()), device=s.device)
            h, u, v = advance(h, u, v, ground.float(), dt)
        return h

    return step


# Vans' routes, city by city, by a network that points.


class Router(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
        self.enter, self.encoder = nn.Linear(2, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.heads, self.wanted, self.glimpse = heads, nn.Linear(2 * width, width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def choose(self, whole: Tensor, last: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """How much each city is wanted next."""
        first, values, pointed = keys.chunk(3, -1)
        query = self.wanted(torch.cat([whole, last], -1))[:, None]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, first, values))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(seen[:, None, None], -1e9)
        glimpse = self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        logits = 10.0 * torch.tanh((glimpse @ pointed.transpose(-1, -2))[:, 0] / math.sqrt(pointed.shape[-1]))
        return logits.masked_fill(seen, -1e9)  # type: ignore[no-any-return]


def van_routes(s: Setup, *, graphed: bool = False, compiled: bool = False, autocast: bool = False) -> Step:
    batch, cities = s.size(256, 2), s.size(40, 6)
    model = Router(s.size(128, 16), s.size(8, 2), s.size(3, 1)).to(s.device).eval()
    choose = s.compile(model.choose, mode="reduce-overhead") if compiled else model.choose
    places = torch.rand(batch, cities, 2, device=s.device)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        torch.set_float32_matmul_precision("highest")
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            nodes = model.encoder(model.enter(places))
            whole, keys = nodes.mean(1), model.glimpse(nodes)
            seen = torch.zeros(batch, cities, dtype=torch.bool, device=s.device)
            last, route, surety = nodes[:, 0].contiguous(), [], []
            for _ in range(cities):
                scores = choose(whole, last, keys, seen).float().log_softmax(-1)
                value, city = scores.max(-1)
                seen = seen.scatter(1, city[:, None], True)
                last = nodes.gather(1, city[:, None, None].expand(-1, 1, nodes.shape[-1]))[:, 0]
                route.append(city)
                surety.append(value)
        order = torch.stack(route, 1)
        there = places.gather(1, order[:, :, None].expand(-1, -1, 2))
        return (there - there.roll(-1, 1)).norm(dim=-1).sum(1), torch.stack(surety, 1).sum(1)

    return capture(step, s) if graphed else step


# Malware: whole files, byte by byte.


class Bytes(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.table = nn.Embedding(257, 8, padding_idx=256)
        self.what, self.gate = (nn.Conv1d(8, width, stride, stride) for _ in range(2))
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, data: Tensor) -> Tensor:
        x = self.table(data).transpose(1, 2)
        x = self.what(x) * torch.sigmoid(self.gate(x))
        return self.last(torch.relu(self.first(x.amax(-1))))[:, 0]  # type: ignore[no-any-return]


def malware_bytes(s: Setup, *, ahead: bool = False, autocast: bool = False, fused: bool = False) -> Step:
    """Files come as int64 from the host, as an embedding wants them."""
    batch, length, stride = s.size(24, 2), s.size(512 * 600, 256), s.size(512, 16)
    model = Bytes(s.size(128, 8), stride).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    host = [(torch.randint(256, (batch, length)), torch.rand(batch).round()) for _ in range(2)]
    loader, turn = Prefetcher([tuple(s.pin(part) for part in pair) for pair in host], s) if ahead else None, [0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        if loader:
            data, bad = loader.next()
        else:
            turn[0] += 1
            data, bad = (part.to(s.device) for part in host[turn[0] % 2])
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = model(data)
        F.binary_cross_entropy_with_logits(scores.float(), bad).backward()
        optimizer.step()

    return step


# Sleep: stages from nights of brain waves.


class Nights(Dataset[tuple[Tensor, int]]):
    """Half a minute of each channel, with mains hum and drift taken out, and no two channels equally loud."""

    def __init__(self, s: Setup) -> None:
        rng = np.random.default_rng(0)
        self.nights = rng.standard_normal((s.size(6, 4), s.size(400_000, 2000))).astype(np.float32)
        self.length, self.points = s.size(3000, 256), s.size(10_000, 12)

    def __len__(self) -> int:
        return self.points

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        start = (index * 7919) % (self.nights.shape[1] - self.length)
        piece = self.nights[:, start : start + self.length]
        spectrum = np.fft.rfft(piece * np.hanning(self.length), axis=1)
        pitch = np.fft.rfftfreq(self.length, 0.01)
        spectrum[:, (pitch < 0.3) | (pitch > 35.0)] = 0.0
        piece = np.fft.irfft(spectrum, self.length, axis=1)
        middle = np.median(piece, axis=1, keepdims=True)
        spread = np.percentile(piece, 75, axis=1, keepdims=True) - np.percentile(piece, 25, axis=1, keepdims=True)
        return torch.from_numpy(np.clip((piece - middle) / (spread + 1e-6), -20, 20).astype(np.float32)), index % 5


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def sleep_stages(s: Setup, *, workers: bool = False, read: bool = True, autocast: bool = False) -> Step:
    width = s.size(64, 8)
    layers: list[nn.Module] = []
    for inner, kernel, stride in ((s.size(6, 4), 25, 6), (width, 9, 2), (width, 9, 2), (width, 9, 2)):
        layers += [nn.Conv1d(inner, width, kernel, stride, kernel // 2), nn.BatchNorm1d(width), nn.GELU()]
    body, rnn = nn.Sequential(*layers).to(s.device), nn.GRU(width, width, batch_first=True, bidirectional=True).to(s.device)
    head = nn.Linear(2 * width, 5).to(s.device)
    optimizer = torch.optim.AdamW([*body.parameters(), *rnn.parameters(), *head.parameters()], lr=1e-3)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches, sums = _without_end(DataLoader(Nights(s), batch_size=s.size(32, 3), shuffle=True, drop_last=True, **options)), [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        waves, stages = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(head(rnn(body(waves).transpose(1, 2))[0].mean(1)), stages)
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item()

    return step


# Ore between boreholes: a Gaussian process whose scales are learnt.


def _alike(x: Tensor, y: Tensor, scales: Tensor, height: Tensor) -> Tensor:
    """Matern's kernel of 5/2 along three axes, times a kernel of repeated layers."""
    total = torch.zeros(len(x), len(y), device=x.device)
    for axis in range(3):
        total = total + ((x[:, axis, None] - y[:, axis]) * torch.exp(-scales[axis])) ** 2
    away = torch.sqrt(5.0 * total + 1e-12)
    smooth = (1.0 + away + away * away / 3.0) * torch.exp(-away)
    turns = torch.sin(math.pi * (x[:, 2, None] - y[:, 2]) * torch.exp(-scales[3]))
    return torch.exp(height) * smooth * torch.exp(-2.0 * turns * turns)


def ore_body(s: Setup, *, compiled: bool = False, checked: bool = True) -> Step:
    """The likelihood of 4096 samples and its gradient by what it takes; torch.linalg.cholesky asks whether all went well."""
    count = s.size(4096, 24)
    x = torch.rand(count, 3, device=s.device) * 10.0
    y = torch.sin(x).sum(1) + 0.1 * torch.randn(count, device=s.device)
    scales = torch.zeros(4, device=s.device, requires_grad=True)
    height, noise = (torch.full((), value, device=s.device, requires_grad=True) for value in (0.0, -1.0))
    optimizer = torch.optim.Adam([scales, height, noise], lr=0.01)
    alike, eye = s.compile(_alike) if compiled else _alike, torch.eye(count, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        known = alike(x, x, scales, height) + (torch.exp(noise) + 1e-3) * eye
        with torch.no_grad():
            root = torch.linalg.cholesky(known) if checked else torch.linalg.cholesky_ex(known)[0]
            weights = torch.cholesky_solve(y[:, None], root)[:, 0]
            slope = 0.5 * (torch.cholesky_inverse(root) - weights[:, None] * weights)
        known.backward(slope)
        optimizer.step()

    return step


# A tree of words in a ball: distances of Poincaré.


class Ball(nn.Module):
    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, dim) * 1e-2)

    def forward(self, below: Tensor, others: Tensor) -> Tensor:
        """Minus the logarithm of how much more the first of `others` is like `below` than the rest."""
        u, v = self.table[below][:, None], self.table[others]
        alpha, beta = 1 - (u * u).sum(-1), 1 - (v * v).sum(-1)
        gamma = 1 + 2 * ((u - v) ** 2).sum(-1) / (alpha * beta).clamp(min=1e-6)
        away = torch.log(gamma + torch.sqrt((gamma * gamma - 1).clamp(min=1e-9)))
        return (torch.logsumexp(-away, 1) + away[:, 0]).mean()  # type: ignore[no-any-return]


def word_tree(s: Setup, *, drawn: bool = False, compiled: bool = False, checked: bool = True) -> Step:
    """Words that are no parents are drawn by Python, one after another, and tried against a set."""
    words, batch, others, rate = s.size(20_000, 30), s.size(256, 4), s.size(20, 3), 0.3
    model, draw = Ball(words, 10).to(s.device), random.Random(0)
    run = s.compile(model) if compiled else model
    parents = [{draw.randrange(words) for _ in range(draw.randint(1, 12))} for _ in range(words)]

    def batch_of() -> tuple[list[int], list[list[int]]]:
        below, rows = [draw.randrange(words) for _ in range(batch)], []
        for word in below:
            row = [draw.choice(sorted(parents[word]))]
            while len(row) <= others:
                other = draw.randrange(words)
                if other != word and other not in parents[word]:
                    row.append(other)
            rows.append(row)
        return below, rows

    ahead, turns = [tuple(torch.tensor(part, device=s.device) for part in batch_of()) for _ in range(8)] if drawn else [], iter(range(10**9))

    def step() -> None:
        below, rows = ahead[next(turns) % 8] if ahead else (torch.tensor(part).to(s.device) for part in batch_of())
        model.table.grad = None
        run(below, rows).backward()
        with torch.no_grad():
            table, slope = model.table, model.table.grad
            assert slope is not None
            curved = slope * ((1 - (table * table).sum(1, keepdim=True)) ** 2 / 4)
            table.sub_(rate * curved)
            size = table.norm(dim=1, keepdim=True)
            table.copy_(torch.where(size >= 1, table / size * (1 - 1e-5), table))
            if checked and not bool((table.norm(dim=1) < 1).all()):
                raise FloatingPointError("a word left the ball")

    return step


# Harvests: what grows in each field, by a year of a satellite's pictures.


class OwnNorm(nn.Module):
    """Written out, in FP32, as in the paper's code."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, self.scale.shape, self.scale, self.shift, 1e-5)
        x = x.float()
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift


class Season(nn.Module):
    def __init__(self, width: int, heads: int, norms: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.library, self.before, self.between = heads, library, OwnNorm(width, norms), OwnNorm(width, norms)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, clear: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.all(self.before(x)).chunk(3, -1))
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=clear)
        else:
            scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~clear, -1e4)
            seen = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


class Harvest(nn.Module):
    def __init__(self, s: Setup, norms: bool, library: bool) -> None:
        super().__init__()
        width, dates = s.size(128, 16), s.size(48, 6)
        self.enter, self.days = nn.Linear(10, width), nn.Parameter(torch.randn(dates, width) * 0.02)
        self.layers = nn.ModuleList(Season(width, s.size(8, 2), norms, library) for _ in range(s.size(3, 1)))
        self.last = nn.Linear(width, 20)

    def forward(self, bands: Tensor, clear: Tensor) -> Tensor:
        x = self.enter(bands) + self.days
        for layer in self.layers:
            x = layer(x, clear)
        return self.last(x.amax(1))  # type: ignore[no-any-return]


def field_harvests(s: Setup, *, norms: bool = False, sdpa: bool = False, compiled: bool = False) -> Step:
    model = Harvest(s, norms, sdpa).to(s.device)
    run, optimizer = s.compile(model) if compiled else model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    count, dates = s.size(4096, 4), s.size(48, 6)
    bands, crops = torch.rand(count, dates, 10, device=s.device), torch.randint(20, (count,), device=s.device)
    clear = (torch.rand(count, 1, 1, dates, device=s.device) < 0.7) | (torch.arange(dates, device=s.device) == 0)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            scores = run(bands, clear)
        F.cross_entropy(scores.float(), crops).backward()
        optimizer.step()

    return step


# Speech: a transducer's lattice, diagonal by diagonal.


def _shifted(joint: Tensor) -> Tensor:
    """Logarithms of probabilities, the largest score taken away before."""
    joint = joint - joint.amax(-1, keepdim=True)
    return joint - torch.log(torch.exp(joint).sum(-1, keepdim=True))


def speech_lattice(s: Setup, *, graphed: bool = False, library: bool = False, autocast: bool = False) -> Step:
    batch, frames, letters, width, symbols = s.size(8, 2), s.size(64, 6), s.size(16, 3), s.size(256, 8), s.size(512, 10)
    heard, said = nn.Linear(80, width).to(s.device), nn.Embedding(symbols, width).to(s.device)
    out = nn.Linear(width, symbols).to(s.device)
    rnn = nn.GRU(width, width, batch_first=True).to(s.device)
    optimizer = torch.optim.Adam([p for part in (heard, said, out, rnn) for p in part.parameters()], lr=1e-3, capturable=s.cuda)
    sound, text = torch.randn(batch, frames, 80, device=s.device), torch.randint(1, symbols, (batch, letters), device=s.device)
    before, spoken = F.pad(text, (1, 0)), F.pad(text, (0, 1))[:, None, :, None].expand(-1, frames, -1, 1)
    # A diagonal holds all pairs of frames and letters of one sum, by how many letters were said.
    when = torch.arange(frames + letters - 1, device=s.device)[:, None] - torch.arange(letters + 1, device=s.device)
    outside, when = (when < 0) | (when >= frames), when.clamp(0, frames - 1).expand(batch, -1, -1)
    start = torch.full((batch, letters + 1), -1e9, device=s.device)
    start[:, 0] = 0.0

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            joint = out(torch.tanh(heard(sound)[:, :, None] + rnn(said(before))[0][:, None]))
        scores = F.log_softmax(joint.float(), -1) if library else _shifted(joint.float())
        silent, heard_next = (
            part.gather(1, when).masked_fill(outside, -1e9) for part in (scores[..., 0], scores.gather(-1, spoken)[..., 0])
        )
        alpha = start
        for stay, go in zip(silent.unbind(1), heard_next.unbind(1), strict=True):
            went = torch.cat([start[:, 1:2], (alpha + go)[:, :-1]], 1)
            alpha = torch.logaddexp(alpha + stay, went)
        loss = -(alpha[:, -1] + scores[:, -1, -1, 0]).mean()
        loss.backward()
        optimizer.step()
        return loss

    return capture(step, s) if graphed else step


# An epidemic: people, their contacts, and the day's numbers.


def city_epidemic(s: Setup, *, on_gpu: bool = False, read: bool = True) -> Step:
    """Two weeks, day by day; luck is the host's, as in the numpy program before it, and the day's numbers go into a table."""
    people, days = s.size(300_000, 60), s.size(15, 3)
    one, other = torch.randint(people, (2, 6 * people), device=s.device)
    weak = torch.rand(people, device=s.device) * 0.5 + 0.75
    table: list[list[int]] = []

    def day(since: Tensor, hit: Tensor, ill: Tensor) -> tuple[Tensor, Tensor]:
        infectious = ((since > 2) & (since < 9)).float() * (0.3 + 0.7 * torch.exp(-((since - 5.0) ** 2) / 4.0))
        force = torch.zeros_like(since).index_add(0, one, infectious[other] * 0.05)
        caught = (since < 0) & (hit < 1 - torch.exp(-force * weak))
        since = torch.where(since >= 0, since + 1, torch.where(caught, torch.zeros_like(since), since))
        return since, (since > 5) & (since < 14) & (ill < 0.08 * weak)

    lucky = {"device": s.device} if on_gpu else {}

    @torch.no_grad()
    def step() -> Tensor:
        table.clear()
        since = torch.full((people,), -1.0, device=s.device)
        since[: people // 100 + 1] = 3.0
        for _ in range(days):
            since, ward = day(since, torch.rand(people, **lucky).to(s.device), torch.rand(people, **lucky).to(s.device))
            if read:
                table.append([int((since == 0).sum()), int(((since > 2) & (since < 9)).sum()), int(ward.sum()), int((since >= 14).sum())])
        return since

    return step


# Maps: what was built between two flights.


def _twice(inner: int, outer: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide in (inner, outer):
        layers += [nn.Conv2d(wide, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Changes(nn.Module):
    """One encoder for both flights; what differs goes to the decoder at each size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(_twice(inner, outer) for inner, outer in zip([3, *wide[:-1]], wide, strict=True))
        self.up = nn.ModuleList(_twice(wide[level + 1] + wide[level], wide[level]) for level in (2, 1, 0))
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        x, kept = torch.cat([before, after]), []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            one, other = x.chunk(2)
            kept.append((one - other).abs())
        x = kept.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="bilinear"), kept.pop()], 1))
        return self.last(x)[:, 0]  # type: ignore[no-any-return]


def two_flights(s: Setup, *, last: bool = False, autocast: bool = False, ahead: bool = False) -> Step:
    """Pairs of pictures come as bytes from pageable memory and are made floats on the GPU."""
    side, count = s.size(256, 32), s.size(12, 1)
    model = Changes(s.size(32, 4)).to(s.device)
    layout = torch.channels_last if last else torch.contiguous_format
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    host = [(*torch.randint(256, (2, count, 3, side, side), dtype=torch.uint8), torch.rand(count, side, side).round()) for _ in range(2)]
    loader, turn = Prefetcher([tuple(s.pin(part) for part in pair) for pair in host], s) if ahead else None, [0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        if loader:
            before, after, changed = loader.next()
        else:
            turn[0] += 1
            before, after, changed = (part.to(s.device) for part in host[turn[0] % 2])
        before, after = ((part.float() / 255 - 0.5).contiguous(memory_format=layout) for part in (before, after))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = model(before, after)
        F.binary_cross_entropy_with_logits(scores.float(), changed).backward()
        optimizer.step()

    return step


WORKLOADS = (
    written_pair(
        "flood_plain", "unfused-elementwise", "Twelve moments of shallow water over 2560 x 2560 cells; each one's length is read, the ground is float64.",
        "torch.compile of a moment", flood_plain, {"compiled": True},
        alone={"sync-stall": {"read": False}, "dtype-casts": {"wide": False}}, gpu_bound=True,
    ),
    written_pair(
        "van_routes", "graph-candidate", "An attention model finds 256 routes through forty cities, city by city, FP32.",
        "the step as a CUDA graph", van_routes, {"graphed": True},
        alone={"launch-gap": {"compiled": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "malware_bytes", "memcpy", "MalConv, training in FP32 on 24 files of 307,200 bytes, which come as int64 from pageable memory.",
        "pinned memory, the next files copied ahead", malware_bytes, {"ahead": True},
        alone={"precision": {"autocast": True}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "sleep_stages", "data-loading", "A convolutional and recurrent network on 32 pieces of a night, which numpy filters in the training process.",
        "num_workers=8, persistent_workers and pin_memory", sleep_stages, {"workers": True},
        alone={"sync-stall": {"read": False}, "precision": {"autocast": True}},
    ),
    written_pair(
        "ore_body", "unfused-elementwise", "A Gaussian process of 4096 samples learns its scales: a kernel of two parts written out, and a Cholesky root.",
        "torch.compile of the kernel", ore_body, {"compiled": True},
        alone={"sync-stall": {"checked": False}}, gpu_bound=True,
    ),
    written_pair(
        "word_tree", "host-bound", "A tree of 20,000 words in Poincaré's ball: Python draws 20 others for each of 256 words, the ball is checked.",
        "others drawn before training", word_tree, {"drawn": True},
        alone={"launch-gap": {"compiled": True}, "sync-stall": {"checked": False}},
    ),
    written_pair(
        "field_harvests", "unfused-norm", "A transformer over 48 dates of 4096 fields, training in bf16 autocast, attention and layer norm written out.",
        "F.layer_norm", field_harvests, {"norms": True},
        alone={"unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written_pair(
        "speech_lattice", "graph-candidate", "A transducer's loss over 64 frames and 16 letters, diagonal by diagonal, training in FP32; log softmax written out.",
        "the step as a CUDA graph", speech_lattice, {"graphed": True},
        alone={"unfused-norm": {"library": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "city_epidemic", "memcpy", "Fifteen days of an epidemic among 300,000 people; luck is drawn on the host, four numbers are read each day.",
        "luck drawn on the GPU", city_epidemic, {"on_gpu": True}, alone={"sync-stall": {"read": False}},
    ),
    written_pair(
        "two_flights", "memory-layout", "What was built between two flights: a U-Net with one encoder for both, FP32 with TF32 convolutions, NCHW.",
        "channels_last", two_flights, {"last": True}, alone={"precision": {"autocast": True}, "memcpy": {"ahead": True}}, gpu_bound=True,
    ),
)  # fmt: skip
