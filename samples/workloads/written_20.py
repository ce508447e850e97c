"""Programs by an author who has not read the rules: smoke, bedtime stories, coral reefs, chords, ten critics, an order book, shoe lasts, frescoes.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as counter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16
DRAWS = np.random.default_rng(0)


# Smoke: a plume that rises in a box, incompressible, by semi-Lagrangian advection and Jacobi's method.


def neighbours(p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Above, below, left and right; walls repeat what is next to them."""
    p = F.pad(p, (1, 1, 1, 1), mode="replicate")
    return p[..., :-2, 1:-1], p[..., 2:, 1:-1], p[..., 1:-1, :-2], p[..., 1:-1, 2:]


def sweeps(p: Tensor, source: Tensor, count: int) -> Tensor:
    for _ in range(count):
        up, down, left, right = neighbours(p)
        p = (up + down + left + right - source) / 4.0
    return p


def carried(what: Tensor, flow: Tensor, time: Tensor, grid: Tensor) -> Tensor:
    """What was upstream a moment ago."""
    back = grid - time * flow.permute(0, 2, 3, 1) * (2.0 / flow.shape[-1])
    return F.grid_sample(what, back, mode="bilinear", padding_mode="border", align_corners=False)


def smoke_plume(s: Setup, *, graphed: bool = False, compiled: bool = False, asked: bool = True) -> Step:
    """A moment is as long as the fastest smoke allows."""
    side, rounds, each = s.size(512, 16), s.size(10, 2), s.size(8, 2)
    with s.device:
        flow, smoke, time = torch.zeros(1, 2, side, side), torch.zeros(1, 1, side, side), torch.zeros(())
        line = (torch.arange(side) + 0.5) * (2.0 / side) - 1.0
        down, right = torch.meshgrid(line, line, indexing="ij")
        grid = torch.stack([right, down], -1)[None]
        inlet = ((right.square() + (down - 0.8).square()) < 0.01).float()[None, None]
    relax = s.compile(sweeps) if compiled else sweeps

    def moment() -> None:
        moved = 0.995 * carried(flow, flow, time, grid)
        new = torch.maximum(0.998 * carried(smoke, flow, time, grid), inlet)
        lift = torch.cat([torch.zeros_like(new), -0.5 * new], 1)
        moved = moved + time * lift
        up, below, left, beyond = neighbours(moved)
        spin = 0.5 * ((beyond - left)[:, 1:] - (below - up)[:, :1])
        up, below, left, beyond = neighbours(spin.abs())
        slope = torch.cat([beyond - left, below - up], 1)
        slope = slope / (slope.square().sum(1, keepdim=True).sqrt() + 1e-5)
        moved = moved + 0.1 * time * spin * torch.cat([slope[:, 1:], -slope[:, :1]], 1)
        up, below, left, beyond = neighbours(moved)
        source = 0.5 * ((beyond - left)[:, :1] + (below - up)[:, 1:])
        pressure = torch.zeros_like(source)
        for _ in range(rounds):
            pressure = relax(pressure, source, each)
        up, below, left, beyond = neighbours(pressure)
        flow.copy_((moved - 0.5 * torch.cat([beyond - left, below - up], 1)).clamp(-20.0, 20.0))
        smoke.copy_(new)

    go = capture(moment, s) if graphed else moment

    @torch.no_grad()
    def step() -> Tensor:
        if asked:
            time.fill_(min(1.0, 2.0 / (flow.abs().max().item() + 1e-6)))
        else:
            time.copy_((2.0 / (flow.abs().max() + 1e-6)).clamp(max=1.0))
        go()
        return smoke

    return step


# Bedtime stories: a small language model from scratch, in half precision.


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


# Coral reefs: what grows where, in photographs under water.


class Reefs(Dataset[tuple[Tensor, Tensor]]):
    """Crops that are mirrored; the sea's colour is taken out, light and the camera's noise are varied, unless that is done later."""

    def __init__(self, count: int, side: int, crop: int, kinds: int, raw: bool) -> None:
        draw = np.random.default_rng(0)
        self.photos = draw.integers(0, 256, (count, side, side, 3), np.uint8)
        self.kinds = draw.integers(0, kinds, (count, side, side), np.uint8)
        self.crop, self.raw = crop, raw

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = np.random.default_rng()
        top, left = draw.integers(0, self.photos.shape[1] - self.crop + 1, 2)
        photo = self.photos[index, top : top + self.crop, left : left + self.crop]
        kinds = self.kinds[index, top : top + self.crop, left : left + self.crop]
        if draw.random() < 0.5:
            photo, kinds = photo[:, ::-1], kinds[:, ::-1]
        label = torch.from_numpy(kinds.copy())
        if self.raw:
            return torch.from_numpy(photo.transpose(2, 0, 1).copy()), label
        x = photo.astype(np.float32) / 255.0
        x *= x.mean() / (x.mean((0, 1)) + 1e-3)  # the world is grey
        x = np.clip(x, 0.0, 1.0) ** np.float32(draw.uniform(0.7, 1.4))
        x += 0.02 * draw.standard_normal(x.shape, dtype=np.float32)
        x = (x - 0.45) / 0.25
        return torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1), dtype=np.float32)), label


def clear_water(photo: Tensor) -> Tensor:
    """The same as Reefs does one by one, for a batch of bytes."""
    x = photo.float() / 255.0
    x = x * (x.mean((1, 2, 3), keepdim=True) / (x.mean((2, 3), keepdim=True) + 1e-3))
    x = x.clamp(0.0, 1.0) ** (0.7 + 0.7 * torch.rand(len(x), 1, 1, 1, device=x.device))
    return (x + 0.02 * torch.randn_like(x) - 0.45) / 0.25


def twice(inner: int, outer: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inner, outer):
        layers += [nn.Conv2d(width, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class ReefMap(nn.Module):
    """A U-Net of four levels."""

    def __init__(self, width: int, kinds: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(twice(inner, outer) for inner, outer in zip([3, *widths], widths, strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * outer, outer, 2, 2) for outer in reversed(widths[:-1]))
        self.up = nn.ModuleList(twice(2 * outer, outer) for outer in reversed(widths[:-1]))
        self.out = nn.Conv2d(width, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for rise, up in zip(self.rise, self.up, strict=True):
            x = up(torch.cat([rise(x), kept.pop()], 1))
        return self.out(x)


def without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def coral_reefs(s: Setup, *, workers: bool = False, later: bool = False, last: bool = False, autocast: bool = False, none: bool = True) -> Step:
    """One loader in the loop itself, as it came from the notebook."""
    count, crop, kinds = s.size(32, 2), s.size(224, 16), s.size(12, 4)
    with s.device:
        model = ReefMap(s.size(32, 4), kinds)
        mean = torch.zeros(())
    if last:
        model = model.to(memory_format=torch.channels_last)
    more: dict[str, Any] = {}
    if workers:
        more = {"num_workers": s.size(12, 1), "persistent_workers": True, "prefetch_factor": 4, "pin_memory": s.cuda}
    batches = without_end(DataLoader(Reefs(s.size(1024, 8), s.size(288, 20), crop, kinds, later), count, shuffle=True, drop_last=True, **more))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        photo, kind = (part.to(s.device, non_blocking=workers) for part in next(batches))
        x = clear_water(photo) if later else photo
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(x)
        loss = F.cross_entropy(guess.float(), kind.long())
        loss.backward()
        optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        return mean

    return step


# Chords: a pianist's left hand, note by note.


class Bar(nn.Module):
    """One layer of a decoder that keeps what it has seen, and may look back at most as far as its cache is long."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, songs: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(songs, heads, longest, width // heads, dtype=BF16))

    def forward(self, x: Tensor, place: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).to(BF16)
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        seen = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Pianist(nn.Module):
    def __init__(self, notes: int, width: int, heads: int, layers: int, songs: int, longest: int) -> None:
        super().__init__()
        self.notes, self.places = nn.Embedding(notes, width), nn.Embedding(longest, width)
        self.bars = nn.ModuleList(Bar(width, heads, songs, longest) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, notes)
        self.longest = longest

    def forward(self, note: Tensor, place: Tensor) -> Tensor:
        mask = (torch.arange(self.longest, device=note.device) <= place)[None]
        x = self.notes(note)[:, None] + self.places(place)
        for bar in self.bars:
            x = bar(x, place, mask)
        return self.head(self.norm(x))[:, 0]


def chord_writer(s: Setup, *, cast: bool = False, asked: bool = True, graphed: bool = False, songs: int = 1) -> Step:
    """Sixteen notes, the best forty considered for each, until the piece is over; what was played before is in the cache."""
    notes, width, heads, longest, played, more, best, over = (
        s.size(4096, 50), s.size(1536, 16), s.size(16, 2), s.size(512, 16), s.size(256, 4), s.size(16, 3), s.size(40, 5), 1,
    )  # fmt: skip
    with s.device:
        model = Pianist(notes, width, heads, s.size(8, 2), songs, longest).eval()
        nn.init.constant_(model.head.bias[over : over + 1], -1e4)  # this piece is long
        note, place, first = torch.full((songs,), 3), torch.tensor([played]), torch.full((songs,), 3)
        for bar in model.bars:
            bar.keys.normal_()
            bar.values.normal_()
    if cast:
        model = model.to(BF16)

    @torch.no_grad()
    def play() -> None:
        with torch.autocast(s.device.type, BF16, enabled=not cast):
            logits = model(note, place)
        likely, which = logits.float().topk(best)
        odds = torch.softmax(likely / 0.9, -1)
        pick = (odds / torch.empty_like(odds).exponential_()).argmax(-1, keepdim=True)
        note.copy_(which.gather(-1, pick)[:, 0])
        place.add_(1)

    go = capture(play, s) if graphed else play

    def step() -> Tensor:
        note.copy_(first)
        place.fill_(played)
        heard = list[Tensor]()
        for _ in range(more):
            go()
            heard.append(note.clone())
            if asked and (note == over).all().item():
                break
        return torch.stack(heard, 1)

    return step


# Robots: ten critics judge what an actor would do, many times for each thing that it does (REDQ).


def layers_of(inner: int, width: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outer))


class Judges(nn.Module):
    def __init__(self, count: int, seen: int, done: int, width: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(layers_of(seen + done, width, 1) for _ in range(count))

    def forward(self, seen: Tensor, done: Tensor) -> Tensor:
        x = torch.cat([seen, done], -1)
        return torch.stack([judge(x).squeeze(-1) for judge in self.each])


def act(actor: nn.Module, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action between -1 and 1, and the logarithm of its density."""
    mean, deviation = actor(seen).chunk(2, -1)
    deviation = deviation.clamp(-5.0, 2.0)
    raw = mean + deviation.exp() * noise
    density = -0.5 * noise.square() - deviation - 0.919
    density = density - 2.0 * (0.693 - raw - F.softplus(-2.0 * raw))
    return torch.tanh(raw), density.sum(-1)


def ten_critics(
    s: Setup, *, graphed: bool = False, compiled: bool = False, fused: bool = False, together: bool = False, autocast: bool = False,
) -> Step:  # fmt: skip
    """Four updates of the critics and one of the actor; what happened before lies on the GPU."""
    moments, count, seen_size, done_size, width, critics, updates = (
        s.size(200_000, 40), s.size(256, 4), s.size(67, 5), s.size(21, 3), s.size(256, 8), s.size(10, 3), s.size(4, 2),
    )  # fmt: skip
    with s.device:
        actor = layers_of(seen_size, width, 2 * done_size)
        judges, slow = (Judges(critics, seen_size, done_size, width) for _ in range(2))
        slow.load_state_dict(judges.state_dict())
        seen, then = torch.randn(2, moments, seen_size)
        done, reward, mean = torch.rand(moments, done_size) * 2.0 - 1.0, torch.randn(moments), torch.zeros(())
    slow.requires_grad_(False)
    own, averaged = list(judges.parameters()), list(slow.parameters())
    options: dict[str, Any] = {"lr": 3e-4, "fused": fused or None, "capturable": graphed and s.cuda}
    critic_optimizer, actor_optimizer = torch.optim.Adam(own, **options), torch.optim.Adam(actor.parameters(), **options)

    def hoped(after: Tensor, gain: Tensor, noise: Tensor, dice: Tensor) -> Tensor:
        """What the worse of two of the slow critics hopes for."""
        action, density = act(actor, after, noise)
        two = slow(after, action)[dice.topk(2).indices].amin(0)
        return gain + 0.99 * (two - 0.2 * density)

    def critic_loss(now: Tensor, did: Tensor, goal: Tensor) -> Tensor:
        return (judges(now, did) - goal).square().mean(1).sum()

    def actor_loss(now: Tensor, noise: Tensor) -> Tensor:
        action, density = act(actor, now, noise)
        return (0.2 * density - judges(now, action).mean(0)).mean()

    hope, judged = (s.compile(hoped), s.compile(critic_loss)) if compiled else (hoped, critic_loss)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        for _ in range(updates):
            these = torch.randint(moments, (count,), device=s.device)
            noise, dice = torch.randn(count, done_size, device=s.device), torch.rand(critics, device=s.device)
            with torch.autocast(s.device.type, BF16, enabled=autocast, cache_enabled=not graphed):
                with torch.no_grad():
                    goal = hope(then[these], reward[these], noise, dice)
                loss = judged(seen[these], done[these], goal)
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
            with torch.no_grad():
                if together:
                    torch._foreach_lerp_(averaged, own, 0.005)
                else:
                    for average, parameter in zip(averaged, own, strict=True):
                        average.mul_(0.995)
                        average.add_(0.005 * parameter)
        with torch.autocast(s.device.type, BF16, enabled=autocast, cache_enabled=not graphed):
            loss = actor_loss(seen[these], torch.randn(count, done_size, device=s.device))
        actor_optimizer.zero_grad()
        loss.backward()
        actor_optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        return mean

    return capture(step, s) if graphed else step


# Markets: where the price goes next, by ten levels of the order book (DeepLOB).


class OrderBook(nn.Module):
    """Convolutions over prices and volumes, then levels, then sides; three views of time; a recurrent layer."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def block(inner: int, outer: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1), same: bool = False) -> list[nn.Module]:
            layers: list[nn.Module] = [nn.Conv2d(inner, outer, kernel, stride, padding="same" if same else 0)]
            return [*layers, nn.LeakyReLU(0.01), nn.BatchNorm2d(outer)]

        layers = list[nn.Module]()
        for inner, kernel, stride in ((1, (1, 2), (1, 2)), (width, (1, 2), (1, 2)), (width, (1, 10), (1, 1))):
            layers += block(inner, width, kernel, stride) + block(width, width, (4, 1)) + block(width, width, (4, 1))
        self.levels = nn.Sequential(*layers)
        self.short = nn.Sequential(*block(width, 2 * width, (1, 1), same=True), *block(2 * width, 2 * width, (3, 1), same=True))
        self.long = nn.Sequential(*block(width, 2 * width, (1, 1), same=True), *block(2 * width, 2 * width, (5, 1), same=True))
        self.most = nn.Sequential(nn.MaxPool2d((3, 1), 1, (1, 0)), *block(width, 2 * width, (1, 1), same=True))
        self.recurrent, self.head = nn.LSTM(6 * width, 2 * width, batch_first=True), nn.Linear(2 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.levels(x)
        x = torch.cat([self.short(x), self.long(x), self.most(x)], 1)
        return self.head(self.recurrent(x.squeeze(-1).transpose(1, 2))[0][:, -1])


def order_book(
    s: Setup, *, ahead: bool = False, last: bool = False, autocast: bool = False, fused: bool = False, none: bool = False,
) -> Step:  # fmt: skip
    """A hundred states of the book for each example, from the host's memory."""
    count, states = s.size(512, 3), s.size(100, 30)
    with s.device:
        model, right = OrderBook(s.size(32, 4)), torch.zeros(())
    if last:
        model = model.to(memory_format=torch.channels_last)
    books: list[tuple[Tensor, ...]] = [(torch.randn(count, 1, states, 40), torch.randint(3, (count,))) for _ in range(6)]
    queue = Prefetcher([(s.pin(book), s.pin(move)) for book, move in books], s) if ahead else None
    optimizer, turn = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused or None), counter()

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        book, move = queue.next() if queue else tuple(part.to(s.device) for part in books[next(turn) % len(books)])
        if last:
            book = book.to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(book)
        loss = F.cross_entropy(guess.float(), move)
        loss.backward()
        optimizer.step()
        right.lerp_((guess.argmax(-1) == move).float().mean(), 0.01)
        return right

    return step


# Shoemakers: a mesh is drawn over the points that a scanner saw of a foot.


def tube(rings: int, around: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Vertices of a tube that is closed around, and two triangles for each of its squares."""
    along, angle = np.meshgrid(np.linspace(-1.0, 1.0, rings), np.linspace(0.0, 2.0 * np.pi, around, endpoint=False), indexing="ij")
    place = np.stack([np.cos(angle), np.sin(angle), 2.0 * along], -1).reshape(-1, 3).astype(np.float32)
    name = np.arange(rings * around).reshape(rings, around)
    a, b = name[:-1], np.roll(name, -1, 1)[:-1]
    c, d = name[1:], np.roll(name, -1, 1)[1:]
    return place, np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([b, d, c], -1).reshape(-1, 3)])


def chamfer(one: Tensor, other: Tensor) -> Tensor:
    """From each point to the nearest of the others, both ways."""
    apart = (one[:, None, :] - other[None, :, :]).pow(2).sum(-1)
    return apart.min(1)[0].mean() + apart.min(0)[0].mean()


def corners_on_host(place: Tensor, faces: np.ndarray[Any, Any], count: int) -> tuple[Tensor, Tensor]:
    """Triangles by their area, and where in each; in NumPy."""
    corner = place.detach().cpu().numpy()[faces]
    area = np.linalg.norm(np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]), axis=-1).astype(np.float64)
    these = DRAWS.choice(len(faces), count, p=area / area.sum())
    u, v = np.sqrt(DRAWS.random((count, 1))), DRAWS.random((count, 1))
    share = np.concatenate([1.0 - u, u * (1.0 - v), u * v], 1).astype(np.float32)
    return torch.from_numpy(faces[these]).to(place.device), torch.from_numpy(share).to(place.device)


def corners_in_place(place: Tensor, faces: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same where the mesh is."""
    a, b, c = place.detach()[faces].unbind(1)
    area = torch.linalg.cross(b - a, c - a).norm(dim=-1)
    these = torch.multinomial(area, count, replacement=True)
    u, v = torch.rand(2, count, 1, device=place.device)
    u = u.sqrt()
    return faces[these], torch.cat([1.0 - u, u * (1.0 - v), u * v], 1)


def shoe_lasts(s: Setup, *, device: bool = False, compiled: bool = False, keep: bool = False, read: bool = True) -> Step:
    """Memory is given back after each step, because the scanner's other programs once ran out of it."""
    count, scanned = s.size(6000, 20), s.size(200_000, 60)
    start, faces = tube(s.size(96, 5), s.size(64, 6))
    with s.device:
        move, base, names = torch.zeros(start.shape), torch.from_numpy(start).to(s.device), torch.from_numpy(faces).to(s.device)
        foot = torch.randn(scanned, 3)
        foot = foot / foot.norm(dim=-1, keepdim=True) * torch.tensor([0.8, 1.0, 1.9])
        edges = torch.cat([names[:, [0, 1]], names[:, [1, 2]], names[:, [2, 0]]])
        degree = torch.zeros(len(start), 1).index_add_(0, edges[:, 0], torch.ones(len(edges), 1))
    move.requires_grad_()
    optimizer, apart, history = torch.optim.Adam([move], lr=1e-3), s.compile(chamfer) if compiled else chamfer, [0.0]

    def step() -> Tensor:
        place = base + move
        corners, share = corners_in_place(place, names, count) if device else corners_on_host(place, faces, count)
        points = (place[corners] * share[..., None]).sum(1)
        if device:
            some = foot[torch.randint(scanned, (count,), device=s.device)]
        else:
            some = foot[torch.from_numpy(DRAWS.integers(0, scanned, count)).to(s.device)]
        one, other = place[edges[:, 0]], place[edges[:, 1]]
        length = (one - other).square().sum(-1).mean()
        middle = torch.zeros_like(place).index_add(0, edges[:, 0], other) / degree.clamp(min=1.0)
        smooth = (middle - place).square().sum(-1).mean()
        loss = apart(points, some) + 0.2 * length + 0.5 * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read:
            history[0] = loss.item()
        result = loss.detach()
        del loss, length, smooth, middle, one, other, points, some
        if not keep and s.cuda:
            torch.cuda.empty_cache()
        return result

    return step


# Frescoes: what damp and smoke did to a wall is taken back, one photograph at a time.


def norm_and_gate(x: Tensor, groups: int, gain: Tensor, shift: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, groups, gain, shift, 1e-5))


def split_norm_and_gate(x: Tensor, groups: int, gain: Tensor, shift: Tensor, parts: int = 64) -> Tensor:
    """The same; each group's sums are made in parts, so that the whole GPU has something to add."""
    size = x[0].numel() // groups
    part = x.reshape(len(x), groups, parts, size // parts)
    mean = part.sum(-1, dtype=torch.float32).sum(-1) / size
    square = torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32).square().sum(-1) / size
    scale = torch.rsqrt((square - mean.square()).clamp(min=0.0) + 1e-5)
    width = x.shape[1] // groups
    scale, mean = scale.repeat_interleave(width, 1, output_size=x.shape[1]), mean.repeat_interleave(width, 1, output_size=x.shape[1])
    factor = scale * gain.float()
    offset = shift.float() - mean * factor
    return F.silu(torch.addcmul(offset[..., None, None].to(x.dtype), x, factor[..., None, None].to(x.dtype)))


class Plaster(nn.Module):
    """Two convolutions past which the picture goes as well."""

    def __init__(self, width: int, groups: int, norm: Callable[..., Tensor]) -> None:
        super().__init__()
        self.groups, self.norm = groups, norm
        self.one, self.two = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.gains, self.shifts = nn.Parameter(torch.ones(2, width)), nn.Parameter(torch.zeros(2, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(self.norm(x, self.groups, self.gains[0], self.shifts[0]))
        return x + self.two(self.norm(y, self.groups, self.gains[1], self.shifts[1]))


class Whole(nn.Module):
    """Every spot of the wall looks at every other one."""

    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.flatten(2).transpose(1, 2))
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            odds = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k).softmax(-1)
            y = torch.einsum("bhij,bhjd->bhid", odds, v)
        return x + self.out(y.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(2, x.shape[2:])


class Restorer(nn.Module):
    def __init__(self, widths: tuple[int, ...], groups: int, heads: int, sdpa: bool, norm: Callable[..., Tensor]) -> None:
        super().__init__()

        def blocks(width: int) -> nn.Sequential:
            return nn.Sequential(Plaster(width, groups, norm), Plaster(width, groups, norm))

        self.first, self.last = nn.Conv2d(3, widths[0], 3, 1, 1), nn.Conv2d(widths[0], 3, 3, 1, 1)
        self.down, self.up = nn.ModuleList(map(blocks, widths)), nn.ModuleList(map(blocks, reversed(widths[:-1])))
        pairs = list(pairwise(widths))
        self.shrink = nn.ModuleList(nn.Conv2d(inner, outer, 2, 2) for inner, outer in pairs)
        self.grow = nn.ModuleList(nn.Conv2d(outer, inner, 1) for inner, outer in reversed(pairs))
        self.whole = Whole(widths[-1], heads, sdpa)

    def forward(self, photo: Tensor) -> Tensor:
        x, kept = self.first(photo), list[Tensor]()
        for level, down in enumerate(self.down):
            x = down(self.shrink[level - 1](x) if level else x)
            kept.append(x)
        x = self.whole(kept.pop())
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(F.interpolate(grow(x), scale_factor=2.0, mode="nearest") + kept.pop())
        return photo + self.last(x)


def fresco_restorer(s: Setup, *, sdpa: bool = False, spread: bool = False, last: bool = False, compiled: bool = False) -> Step:
    """Photographs lie on the GPU as bytes; weights are in bf16."""
    side, widths = s.size(1024, 64), (64, 128, 256, 256) if not s.tiny else (8, 8, 16, 16)
    norm = split_norm_and_gate if spread else s.compile(norm_and_gate, dynamic=False) if compiled else norm_and_gate
    with s.device:
        model = Restorer(widths, s.size(8, 4), s.size(4, 2), sdpa, norm).to(BF16).eval()
        photos = torch.randint(256, (8, 1, 3, side, side), dtype=torch.uint8)
    if last:
        model = model.to(memory_format=torch.channels_last)
    turn = counter()

    @torch.no_grad()
    def step() -> Tensor:
        x = photos[next(turn) % len(photos)].to(BF16) / 127.5 - 1.0
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        return ((model(x).float() + 1.0) * 127.5).clamp(0.0, 255.0).to(torch.uint8)

    return step


WORKLOADS = (
    written(
        "smoke_plume", "Smoke in 512 x 512 cells: advection, swirl, eighty sweeps of Jacobi by pointwise kernels; the fastest flow is read first.",
        "a moment as a CUDA graph; torch.compile of eight sweeps; the fastest flow stays on the GPU", smoke_plume,
        {"graph-candidate": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}},
    ),
    written(
        "bedtime_stories", "Eight layers of a GPT in training, fp16 autocast, a GradScaler, 10,003 words; attention and RMSNorm written out.",
        "bf16 without a scaler; F.scaled_dot_product_attention; F.rms_norm; 10,048 words; AdamW(fused=True)", bedtime_stories,
        {
            "amp-scaler-sync": {"half": False}, "unfused-attention": {"sdpa": True}, "unfused-norm": {"library": True},
            "gemm-alignment": {"padded": True}, "optimizer-foreach": {"fused": True},
        }, gpu_bound=True,
    ),
    written(
        "coral_reefs", "A U-Net in training on 32 crops of reefs, TF32 in NCHW; NumPy augments each crop in a DataLoader without workers.",
        "workers, pinned; colours, light and noise on the GPU; channels_last; bf16 autocast", coral_reefs,
        {"data-loading": {"workers": True}, "host-bound": {"later": True}, "memory-layout": {"last": True}, "precision": {"autocast": True}},
    ),
    written(
        "chord_writer", "Eight layers play sixteen notes of one song, FP32 weights under bf16 autocast; each note is read to see if it is the last.",
        "weights cast once; notes not read; a note as a CUDA graph; eight songs together", chord_writer,
        {"dtype-casts": {"cast": True}, "sync-stall": {"asked": False}, "launch-gap": {"graphed": True}, "low-arithmetic-intensity": {"songs": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "ten_critics", "REDQ: ten small critics one by one, four updates of each, one of the actor, averages by a Python loop; TF32, batch of 256.",
        "the step as a CUDA graph; torch.compile of both losses; fused Adam; averages by foreach; bf16 autocast", ten_critics,
        {
            "graph-candidate": {"graphed": True}, "launch-gap": {"compiled": True}, "optimizer-foreach/fused": {"fused": True},
            "optimizer-foreach/averages": {"together": True}, "precision": {"autocast": True},
        },
    ),
    written(
        "order_book", "DeepLOB in training on 512 x 100 states of a book, TF32 in NCHW; books are pageable, gradients are filled with noughts.",
        "pinned books on a side stream; channels_last; bf16 autocast; fused Adam; zero_grad(set_to_none=True)", order_book,
        {
            "memcpy": {"ahead": True}, "memory-layout": {"last": True}, "precision": {"autocast": True}, "optimizer-foreach": {"fused": True},
            "grad-zeroing": {"none": True},
        }, gpu_bound=True,
    ),
    written(
        "shoe_lasts", "A mesh is fitted to a scan: points drawn in NumPy, all 6000 x 6000 distances written out, the loss read, the cache emptied.",
        "points are drawn on the GPU; torch.compile of the distances; no empty_cache(); the loss is not read", shoe_lasts,
        {"host-bound": {"device": True}, "unfused-elementwise": {"compiled": True}, "allocator": {"keep": True}, "sync-stall": {"read": False}},
    ),
    written(
        "fresco_restorer", "A U-Net restores a 1024 x 1024 photograph, bf16 in NCHW, eight groups a norm; attention over 16,384 spots written out.",
        "F.scaled_dot_product_attention; group norms in parts; channels_last; torch.compile of norm and gate", fresco_restorer,
        {
            "unfused-attention": {"sdpa": True}, "small-grid": {"spread": True}, "memory-layout": {"last": True},
            "unfused-elementwise": {"compiled": True},
        }, gpu_bound=True,
    ),
)  # fmt: skip
