"""Programs by an author who has not read the rules, the twelfth set: batteries that age, pressed leaves, a wide painting, letters drafted ahead.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Batteries: how much a cell will still hold, after each of its cycles.


class Ageing(nn.Module):
    """Two gated recurrent layers over the cycles of a cell, and three quantiles of its capacity after each."""

    def __init__(self, measured: int, width: int, layers: int, library: bool) -> None:
        super().__init__()
        cells = [nn.GRUCell(width if layer else measured, width) for layer in range(layers)]
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3))
        if library:
            self.layers: nn.Module = nn.GRU(measured, width, layers, batch_first=True)
            with torch.no_grad():
                for layer, cell in enumerate(cells):
                    for name, weight in cell.named_parameters():
                        getattr(self.layers, f"{name}_l{layer}").copy_(weight)
        else:
            self.layers = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layers, nn.GRU):
            return self.head(self.layers(x)[0])
        for cell in self.layers.children():
            hidden, states = x.new_zeros(len(x), cell.hidden_size), list[Tensor]()
            for now in x.unbind(1):
                hidden = cell(now, hidden)
                states.append(hidden)
            x = torch.stack(states, 1)
        return self.head(x)


def pinball(guess: Tensor, held: Tensor, levels: Tensor) -> Tensor:
    """The loss of quantiles; a cell does not recover, nor do quantiles cross."""
    short = held[..., None] - guess
    loss = torch.maximum(levels * short, (levels - 1.0) * short).mean()
    recovers = F.relu(guess[:, 1:] - guess[:, :-1]).mean()
    crosses = F.relu(guess[..., :-1] - guess[..., 1:]).mean()
    return loss + 0.1 * recovers + crosses


def battery_ageing(s: Setup, *, library: bool = False, graphed: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    """All that was measured lies on the GPU; the mean loss does too."""
    cells, cycles, measured, count = s.size(4096, 12), s.size(100, 5), s.size(24, 3), s.size(256, 4)
    with s.device:
        curves, held = torch.randn(cells, cycles, measured), 1.0 - 0.002 * torch.rand(cells, cycles).cumsum(1)
        model = Ageing(measured, s.size(128, 8), 2, library)
        levels, mean = torch.tensor([0.1, 0.5, 0.9]), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None, capturable=graphed and s.cuda)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        these = torch.randint(cells, (count,), device=s.device)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(curves[these])
        loss = pinball(guess.float(), held[these], levels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        return mean

    return capture(step, s) if graphed else step


# Herbaria: pressed leaves that nobody has named, by two views of each (VICReg).


def luma(x: Tensor) -> Tensor:
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def recolour(x: Tensor, dice: Tensor, grain: Tensor) -> Tensor:
    """Light, contrast, saturation, hue, grey, the sun and the camera's noise, as the dice of each leaf say."""
    bright, contrast, saturation, angle, grey, sun = dice[..., None, None, None]
    x = x.float() / 255.0
    x = (x * (0.6 + 0.8 * bright)).clamp(0.0, 1.0)
    middle = luma(x).mean((2, 3), keepdim=True)
    x = ((x - middle) * (0.6 + 0.8 * contrast) + middle).clamp(0.0, 1.0)
    light = luma(x)
    x = ((x - light) * (0.8 + 0.4 * saturation) + light).clamp(0.0, 1.0)
    light = luma(x)
    warm, green = 0.596 * x[:, 0:1] - 0.274 * x[:, 1:2] - 0.322 * x[:, 2:3], 0.211 * x[:, 0:1] - 0.523 * x[:, 1:2] + 0.312 * x[:, 2:3]
    cosine, sine = torch.cos(0.6 * (angle - 0.5)), torch.sin(0.6 * (angle - 0.5))
    warm, green = cosine * warm - sine * green, sine * warm + cosine * green
    red, blue = light + 0.956 * warm + 0.621 * green, light - 1.106 * warm + 1.703 * green
    x = torch.cat([red, light - 0.272 * warm - 0.647 * green, blue], 1).clamp(0.0, 1.0)
    x = torch.where(grey < 0.2, luma(x), x)
    x = torch.where((sun < 0.1) & (x > 0.5), 1.0 - x, x)
    return ((x + 0.02 * grain).clamp(0.0, 1.0) - 0.45) / 0.25


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.after_one, self.after_two = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        same = inner == outer and stride == 1
        self.past = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.after_one(self.one(x)))
        return F.relu(self.after_two(self.two(y)) + self.past(x))


def leaf_encoder(width: int, out: int) -> nn.Sequential:
    """A small residual network, and the three layers that spread what it saw."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = width
    for level in range(4):
        outer = width * 2**level
        layers += [Residual(inner, outer, 2 if level else 1), Residual(outer, outer, 1)]
        inner = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for last in (False, False, True):
        layers += [nn.Linear(inner, out)] if last else [nn.Linear(inner, out, bias=False), nn.BatchNorm1d(out), nn.ReLU()]
        inner = out
    return nn.Sequential(*layers)


def spread_and_apart(z: Tensor) -> tuple[Tensor, Tensor]:
    """Each number is to vary among the leaves, and no two numbers are to vary together."""
    z = z - z.mean(0)
    spread = F.relu(1.0 - torch.sqrt(z.square().sum(0) / (len(z) - 1) + 1e-4)).mean()
    together = z.T @ z / (len(z) - 1)
    return spread, (together.square().sum() - together.diagonal().square().sum()) / z.shape[1]


def leaf_views(s: Setup, *, compiled: bool = False, last: bool = False, autocast: bool = False, log: bool = True, fused: bool = False) -> Step:
    """The sheets lie on the GPU; the three parts of the loss are written down in each step."""
    leaves, side, crop, count = s.size(4096, 10), s.size(144, 40), s.size(128, 32), s.size(256, 4)
    with s.device:
        model = leaf_encoder(s.size(64, 4), s.size(2048, 16))
        sheets = torch.randint(256, (leaves, 3, side, side), dtype=torch.uint8)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-6, fused=fused or None)
    paint, written = s.compile(recolour) if compiled else recolour, [0.0, 0.0, 0.0]

    def view(these: Tensor, top: int, left: int) -> Tensor:
        cut = sheets[these, :, top : top + crop, left : left + crop]
        return paint(cut, torch.rand(6, count, device=s.device), torch.randn(count, 3, crop, crop, device=s.device))

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        these = torch.randint(leaves, (count,), device=s.device)
        pair = torch.cat([view(these, 0, side - crop), view(these, side - crop, 0)])
        if last:
            pair = pair.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            seen = model(pair)
        one, other = seen.float().chunk(2)
        alike = F.mse_loss(one, other)
        (spread, apart), (more_spread, more_apart) = spread_and_apart(one), spread_and_apart(other)
        spread, apart = spread + more_spread, apart + more_apart
        loss = 25.0 * alike + 25.0 * spread + apart
        loss.backward()
        optimizer.step()
        if log:
            for n, part in enumerate((alike, spread, apart)):
                written[n] += part.item()
        return loss.detach()

    return step


# Wallpapers: a painting wider than the model has ever seen, by tiles that overlap (MultiDiffusion).


class GroupNorm(nn.Module):
    """In FP32, whatever comes in; written out unless `library`."""

    def __init__(self, groups: int, width: int, library: bool) -> None:
        super().__init__()
        self.groups, self.library = groups, library
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.group_norm(x, self.groups, self.gain, self.shift, 1e-5)
        y = x.float().unflatten(1, (self.groups, -1))
        mean, variance = y.mean((2, 3, 4), keepdim=True), y.var((2, 3, 4), correction=0, keepdim=True)
        y = ((y - mean) * torch.rsqrt(variance + 1e-5)).flatten(1, 2)
        return (y * self.gain[:, None, None] + self.shift[:, None, None]).to(x.dtype)


class Strokes(nn.Module):
    def __init__(self, inner: int, outer: int, told: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.before_one, self.before_two = norm(inner), norm(outer)
        self.one, self.two = nn.Conv2d(inner, outer, 3, 1, 1), nn.Conv2d(outer, outer, 3, 1, 1)
        self.told = nn.Linear(told, outer)
        self.past = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        y = self.one(F.silu(self.before_one(x))) + self.told(told)[..., None, None]
        return self.past(x) + self.two(F.silu(self.before_two(y)))


class Composition(nn.Module):
    """Each place of a tile looks at all others."""

    def __init__(self, width: int, heads: int, norm: Callable[[int], nn.Module], sdpa: bool) -> None:
        super().__init__()
        self.norm, self.heads, self.sdpa = norm(width), heads, sdpa
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(self.norm(x).flatten(2).transpose(1, 2))
        q, k, v = y.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v)
        else:
            seen = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
        return x + self.out(seen.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(2, x.shape[2:])


class Painter(nn.Module):
    """A U-Net of three levels; the lower two compose."""

    def __init__(self, widths: Sequence[int], told: int, head: int, groups: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        norm = partial(GroupNorm, groups, library=library)
        block = partial(Strokes, told=told, norm=norm)
        self.told = nn.Sequential(nn.Linear(told, told), nn.SiLU(), nn.Linear(told, told), nn.SiLU())
        self.first, self.last = nn.Conv2d(4, widths[0], 3, 1, 1), nn.Sequential(norm(widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 4, 3, 1, 1))
        self.down, self.up, self.looks = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for before, width in zip((widths[0], *widths), widths, strict=False):
            self.down.append(nn.ModuleList([block(before, width), block(width, width)]))
        for level, width in reversed(list(enumerate(widths))):
            below = widths[min(level + 1, len(widths) - 1)]
            self.up.append(nn.ModuleList([block(below + width, width), block(width, width)]))
        for width in (*widths[1:], *reversed(widths[1:])):
            self.looks.append(Composition(width, width // head, norm, sdpa))
        self.middle = block(widths[-1], widths[-1])

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        told, looks = self.told(told), iter(self.looks)
        x, kept = self.first(x), list[Tensor]()
        for level, (one, two) in enumerate(self.down):  # type: ignore[misc, arg-type]
            x = two(one(F.avg_pool2d(x, 2) if level else x, told), told)
            x = next(looks)(x) if level else x
            kept.append(x)
        x = self.middle(x, told)
        for turn, (one, two) in enumerate(self.up):  # type: ignore[misc, arg-type]
            x = F.interpolate(x, scale_factor=2.0) if turn else x
            x = two(one(torch.cat([x, kept.pop()], 1), told), told)
            x = next(looks)(x) if kept else x
        return self.last(x)


def wide_painting(s: Setup, *, sdpa: bool = False, library: bool = False, last: bool = False, together: bool = False, kept: bool = False) -> Step:
    """Two turns of a sampler; where tiles overlap, what they say is blended by a window. Each tile is painted with and without the words."""
    side, stride, count, told, turns = s.size(128, 16), s.size(64, 8), s.size(4, 2), s.size(512, 16), 2
    widths, head = ((192, 384, 512), 64) if not s.tiny else ((8, 8, 16), 4)
    with s.device:
        model = Painter(widths, told, head, s.size(32, 2), sdpa, library).to(BF16).eval()
        start, words = torch.randn(1, 4, side, stride * (count - 1) + side), torch.randn(2, told)
        rate = torch.exp(-math.log(10_000.0) * torch.arange(told // 2) / (told // 2))
    if last:
        model = model.to(memory_format=torch.channels_last)
    slope = torch.hann_window(side + 2, periodic=False)[1:-1]
    window = slope[:, None] * slope
    if kept:
        window = window.to(s.device)
    lefts, times = [stride * n for n in range(count)], torch.linspace(1.0, 0.0, turns + 1).tolist()

    def guess(tiles: Tensor, when: float) -> Tensor:
        """What leads away from noise, the words being followed more than the model would."""
        angle = 1000.0 * when * rate
        know = torch.cat([angle.sin(), angle.cos()]) + words
        x = tiles.repeat_interleave(2, 0).to(BF16)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        without, given = model(x, know.repeat(len(tiles), 1).to(BF16)).float().unflatten(0, (-1, 2)).unbind(1)
        return without + 5.0 * (given - without)

    @torch.no_grad()
    def step() -> Tensor:
        x = start
        for now, then in pairwise(times):
            total, share = torch.zeros_like(x), torch.zeros_like(x)
            if together:
                said = list(guess(torch.cat([x[..., left : left + side] for left in lefts]), now).split(1))
            else:
                said = list[Tensor]()
            for n, left in enumerate(lefts):
                place = slice(left, left + side)
                tile = said[n] if together else guess(x[..., place], now)
                weight = window.to(s.device)
                total[..., place] += weight * tile
                share[..., place] += weight
            x = x + (then - now) * total / share
        return x

    return step


# Offices: letters that a small model drafts and a large one corrects, some words at a time.


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


class Clause(nn.Module):
    """One layer, with all that it has heard so far."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, rows: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.down = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(rows, longest, heads, width // heads, dtype=BF16))

    def forward(self, x: Tensor, places: Tensor, rows: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        self.keys[rows, places] = turned(k, *turn)
        self.values[rows, places] = v
        q, k, v = (part.transpose(1, 2) for part in (turned(q, *turn), self.keys, self.values))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate(self.between(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Writer(nn.Module):
    cosine: Tensor
    sine: Tensor

    def __init__(self, words: int, width: int, layers: int, head: int, rows: int, longest: int) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(words, width), nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(Clause(width, width // head, rows, longest) for _ in range(layers))
        angle = torch.arange(longest)[:, None] * 10_000.0 ** (-torch.arange(0, head, 2) / head)
        self.register_buffer("cosine", angle.cos().to(BF16)[:, None])
        self.register_buffer("sine", angle.sin().to(BF16)[:, None])

    def forward(self, text: Tensor, places: Tensor) -> Tensor:
        rows = torch.arange(len(text), device=text.device)[:, None]
        mask = (torch.arange(len(self.cosine), device=text.device) <= places[..., None])[:, None]
        x, turn = self.words(text), (self.cosine[places], self.sine[places])
        for layer in self.layers:
            x = layer(x, places, rows, turn, mask)
        return self.head(self.norm(x))


def letter_drafts(s: Setup, *, cast: bool = False, asked: bool = True, compiled: bool = False, letters: int = 1) -> Step:
    """Each of six rounds drafts four words, and corrects them; after each word one asks whether the letter is done."""
    words, prompt, longest, ahead, rounds, end = s.size(32_000, 40), s.size(192, 6), s.size(512, 32), s.size(4, 2), s.size(6, 2), 2
    head, sizes = s.size(128, 4), ((512, 2), (2048, 6)) if not s.tiny else ((8, 1), (16, 2))
    with s.device:
        small, large = (Writer(words, width, layers, head, letters, longest).eval() for width, layers in sizes)
        text = torch.randint(3, words, (letters, longest))
        rows, steps = torch.arange(letters)[:, None], torch.arange(longest)
    if cast:
        for part in (*small.modules(), *large.modules()):
            if isinstance(part, nn.Linear):
                part.to(BF16)
    draft, correct = ((s.compile(model, mode="reduce-overhead", dynamic=False) if compiled else model) for model in (small, large))

    def most_likely(model: Callable[..., Any], seen: Tensor, places: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(s.device.type, BF16):
            return model(seen, places).argmax(-1)

    for model in (small, large):  # both have read the letter that is to be answered
        most_likely(model, text[:, :prompt], steps[:prompt].expand(letters, -1))

    @torch.no_grad()
    def step() -> Tensor:
        size, written = torch.full((letters, 1), prompt, device=s.device), 0
        for _ in range(rounds):
            two, drafted = text[rows, size - 2 + steps[:2]], list[Tensor]()
            for turn in range(ahead):  # the word before the last one may be new to the small model as well
                new = most_likely(draft, two, size - 2 + turn + steps[:2])[:, -1:]
                drafted.append(new)
                if asked and (new == end).all().item():
                    break
                two = torch.cat([two[:, 1:], new], 1)
            guess = torch.cat(drafted, 1)
            checked = torch.cat([text[rows, size - 1], guess], 1)
            best = most_likely(correct, checked, size - 1 + steps[: checked.shape[1]])
            right = (best[:, :-1] == guess).long().cumprod(1).sum(1, keepdim=True)
            text[rows, size + steps[: best.shape[1]]] = best
            size = size + right + 1
            if asked:
                written += int(right.sum().item()) + letters
                if (best[:, 0] == end).all().item():
                    break
        return text[:, prompt : prompt + rounds].clone()

    return step


WORKLOADS = (
    written(
        "battery_ageing", "Two GRU layers over 100 cycles of 256 battery cells, a Python loop over nn.GRUCell, three quantiles after each cycle; training with TF32.",
        "nn.GRU; the step as a CUDA graph; fused AdamW; bf16 autocast", battery_ageing,
        {"launch-gap": {"library": True}, "graph-candidate": {"graphed": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True}},
    ),
    written(
        "leaf_views", "VICReg of a ResNet-18 on two views of 256 pressed leaves, recoloured on the GPU, training with TF32 in NCHW; three losses are read in each step.",
        "torch.compile of the recolouring; channels_last; bf16 autocast; losses not read; fused SGD", leaf_views,
        {
            "unfused-elementwise": {"compiled": True}, "memory-layout": {"last": True}, "precision": {"autocast": True}, "sync-stall": {"log": False},
            "optimizer-foreach": {"fused": True},
        }, gpu_bound=True,
    ),
    written(
        "wide_painting", "Two turns of a guided diffusion sampler on four tiles that overlap, one after another, bf16 in NCHW; attention and group norms written out.",
        "F.scaled_dot_product_attention; F.group_norm; channels_last; all tiles in one call; the window stays on the GPU", wide_painting,
        {
            "unfused-attention": {"sdpa": True}, "unfused-norm": {"library": True}, "memory-layout": {"last": True}, "small-grid": {"together": True},
            "memcpy": {"kept": True},
        }, gpu_bound=True,
    ),
    written(
        "letter_drafts", "Speculative decoding: two layers draft four words, six layers correct them, six rounds for one letter; FP32 weights under bf16 autocast, each word is read.",
        "weights cast once; words not read; torch.compile(mode='reduce-overhead') of both models; eight letters together", letter_drafts,
        {"dtype-casts": {"cast": True}, "sync-stall": {"asked": False}, "launch-gap": {"compiled": True}, "low-arithmetic-intensity": {"letters": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
