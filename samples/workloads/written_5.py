"""Programs written to test predictions, set E: exercises of a course on PyTorch's performance, each with one fault of the textbooks.

As in the sets before, one change between the sides, further changes timed alone, and global switches set in the step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


# Exercise: pin_memory and non_blocking.


class Flowers(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pictures that lie in memory, ready for use."""

    def __init__(self, stored: int, side: int) -> None:
        self.pictures = torch.randn(stored, 3, side, side)

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.pictures[at % len(self.pictures)], at % 102


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
        self.short = nn.Identity() if inner == outer and stride == 1 else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def flower_loader(s: Setup, *, pin: bool = False, workers: int = 6, ahead: bool = False) -> Step:
    data, batch, workers = Flowers(s.size(512, 4), s.size(112, 16)), s.size(256, 2), workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        data, batch, shuffle=True, num_workers=workers, pin_memory=pin and s.cuda, drop_last=True, persistent_workers=workers > 0
    )
    width, layout = s.size(64, 4), torch.channels_last
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), Residual(width, width, 1), Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2), Residual(4 * width, 4 * width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 102),
    ).to(s.device, memory_format=layout)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True)
    side = torch.cuda.Stream() if s.cuda and ahead else None

    def loaded() -> Iterator[tuple[Tensor, ...]]:
        while True:
            for pair in loader:
                with torch.cuda.stream(side):
                    there = tuple(part.to(s.device, non_blocking=pin) for part in pair)
                yield there

    def copied_before() -> Iterator[tuple[Tensor, ...]]:
        batches = loaded()
        coming = next(batches)
        while True:
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)
                for part in coming:
                    part.record_stream(torch.cuda.current_stream())
            ready, coming = coming, next(batches)
            yield ready

    batches = copied_before() if ahead else loaded()

    def step() -> None:
        pictures, labels = next(batches)
        pictures = pictures.contiguous(memory_format=layout)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()

    return step


# Exercise: asserts and .item() in a loop that the host bounds.


def soft_actor_critic(s: Setup, *, log: bool = True, fused: bool = False, autocast: bool = False, graphed: bool = False) -> Step:
    seen, moves, width, batch, kept = s.size(39, 5), s.size(8, 2), s.size(256, 8), s.size(256, 4), s.size(100_000, 16)
    actor = _mlp(seen, width, width, 2 * moves).to(s.device)
    critics = nn.ModuleList(_mlp(seen + moves, width, width, 1) for _ in range(2)).to(s.device)
    slow_critics = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = nn.Parameter(torch.zeros((), device=s.device))
    how: dict[str, Any] = {"lr": 3e-4, "capturable": graphed and s.cuda, **({"fused": True} if fused else {"foreach": True})}
    act_optimizer, judge_optimizer = torch.optim.Adam(actor.parameters(), **how), torch.optim.Adam(critics.parameters(), **how)
    alpha_optimizer = torch.optim.Adam([log_alpha], **how)
    states, actions = torch.randn(kept, seen, device=s.device), torch.rand(kept, moves, device=s.device) * 2 - 1
    rewards, after = torch.rand(kept, 1, device=s.device), torch.randn(kept, seen, device=s.device)
    history: list[float] = []

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(state).float().chunk(2, 1)
        log_std = log_std.clamp(-5.0, 2.0)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_p = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return torch.tanh(raw), (log_p - 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))).sum(1, keepdim=True)

    def checked(loss: Tensor) -> Tensor:
        if log:
            assert torch.isfinite(loss), "the loss is not finite"
            history.append(loss.item())
        return loss

    def step() -> None:
        at = torch.randint(kept, (batch,), device=s.device)
        state, action, reward, later = states[at], actions[at], rewards[at], after[at]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                move, log_p = act(later)
                there = torch.cat([later, move], 1)
                worth = torch.minimum(slow_critics[0](there), slow_critics[1](there)).float() - alpha * log_p
                target = reward + 0.99 * worth
            here = torch.cat([state, action], 1)
            judged = sum(F.mse_loss(critic(here).float(), target) for critic in critics)
        judge_optimizer.zero_grad()
        checked(judged).backward()
        judge_optimizer.step()
        critics.requires_grad_(False)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            move, log_p = act(state)
            there = torch.cat([state, move], 1)
            acted = (alpha * log_p - torch.minimum(critics[0](there), critics[1](there)).float()).mean()
        act_optimizer.zero_grad()
        checked(acted).backward()
        act_optimizer.step()
        critics.requires_grad_(True)
        tempered = -(log_alpha * (log_p.detach() - moves)).mean()
        alpha_optimizer.zero_grad()
        checked(tempered).backward()
        alpha_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(slow_critics.parameters()), list(critics.parameters()), 0.005)

    return capture(step, s) if graphed else step


# Exercise: torch.cuda.synchronize() and empty_cache() in a loop that the GPU bounds.


class Gate(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.reach = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.stay, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.reach(x).chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.stay(y), self.skip(y)


def timed_vocoder(s: Setup, *, empty: bool = True, waits: bool = True, fused: bool = False) -> Step:
    width, batch, length = s.size(192, 4), s.size(12, 2), s.size(16384, 64)
    first, last = nn.Conv1d(1, width, 1), nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1))
    gates = nn.ModuleList(Gate(width, 2**i) for i in range(s.size(8, 2)))
    model = nn.ModuleList([first, gates, last]).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    wave, target = torch.randn(batch, 1, length, device=s.device), torch.randint(256, (batch, length), device=s.device)

    def wait() -> None:
        if waits:
            s.synchronize()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            x, total = first(wave), torch.zeros((), device=s.device)
            for gate in gates:
                x, skip = gate(x)
                total = total + skip
            logits = last(total)
        loss = F.cross_entropy(logits.float(), target)
        wait()
        loss.backward()
        wait()
        optimizer.step()
        del x, skip, total, logits, loss
        wait()
        if empty and s.cuda:
            torch.cuda.empty_cache()

    return step


# Exercise: boolean masks.


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        b, n, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, dim))
        return x + self.feed(self.norm2(x))


def masked_sound(s: Setup, *, masks: bool = True, fused: bool = False, compiled: bool = False) -> Step:
    clips, patches, inputs, kept = s.size(48, 2), s.size(256, 8), s.size(256, 4), s.size(64, 2)
    wide, narrow = s.size(384, 12), s.size(192, 12)
    embed, bridge, back = nn.Linear(inputs, wide), nn.Linear(wide, narrow), nn.Linear(narrow, inputs)
    encoder = nn.ModuleList(Block(wide, s.size(6, 2)) for _ in range(s.size(6, 1)))
    decoder = nn.ModuleList(Block(narrow, s.size(6, 2)) for _ in range(s.size(2, 1)))
    places = nn.ParameterList([nn.Parameter(0.02 * torch.randn(patches, wide)), nn.Parameter(0.02 * torch.randn(patches, narrow))])
    blank = nn.ParameterList([nn.Parameter(torch.zeros(narrow))])
    model = nn.ModuleList([embed, bridge, back, encoder, decoder, places, blank]).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    sound = torch.randn(clips, patches, inputs, device=s.device)
    run = s.compile(Block.forward, dynamic=False) if compiled else Block.forward

    def loss_of() -> Tensor:
        order = torch.rand(clips, patches, device=s.device).argsort(1)
        hidden = order.argsort(1) >= kept
        x = embed(sound) + places[0]
        at = order[:, :kept].sort(1).values[..., None]
        h = x.gather(1, at.expand(-1, -1, wide)) if not masks else x[~hidden].view(clips, kept, wide)
        for block in encoder:
            h = run(block, h)
        h = bridge(h)
        whole = blank[0].to(h.dtype).expand(clips, patches, narrow)
        if masks:
            whole = whole.clone()
            whole[~hidden] = h.flatten(0, 1)
        else:
            whole = whole.scatter(1, at.expand(-1, -1, narrow), h)
        h = whole + places[1]
        for block in decoder:
            h = run(block, h)
        again = back(h).float()
        if masks:
            return F.mse_loss(again[hidden], sound[hidden])
        return ((again - sound).square().mean(2) * hidden).sum() / (clips * (patches - kept))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = loss_of()
        loss.backward()
        optimizer.step()

    return step


# Exercise: tensors created on the host.


class Sine(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30.0 * self.linear(x))


def sine_picture(s: Setup, *, where: str = "host", autocast: bool = False, compiled: bool = False) -> Step:
    side, width = s.size(512, 8), s.size(256, 8)
    model = nn.Sequential(Sine(2, width), *(Sine(width, width) for _ in range(s.size(3, 1))), nn.Linear(width, 3)).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    picture = torch.rand(1, 3, side, side, device=s.device)
    run = s.compile(model) if compiled else model

    def coordinates(device: torch.device) -> Tensor:
        axis = torch.linspace(-1.0, 1.0, side, device=device)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
        return grid + (torch.rand(grid.shape, device=device) - 0.5) * (2.0 / side)

    def step() -> None:
        if where == "gpu":
            points = coordinates(s.device)
        elif where == "pinned":
            points = s.pin(coordinates(torch.device("cpu"))).to(s.device, non_blocking=True)
        else:
            points = coordinates(torch.device("cpu")).to(s.device)
        target = F.grid_sample(picture, points.view(1, side, side, 2), align_corners=True).view(3, -1).T
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            colours = run(points)
        F.mse_loss(colours.float(), target).backward()
        optimizer.step()

    return step


# Exercise: attention by hand with relative positions.


class RelativeLayer(nn.Module):
    """Attention over all earlier notes, with the "skewed" relative positions of the Music Transformer."""

    def __init__(self, dim: int, heads: int, length: int, fused: bool, widen: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.widen = heads, fused, widen
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim)
        self.distance = nn.Parameter(0.1 * torch.randn(length, dim // heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, later: Tensor) -> Tensor:
        b, h, n, size = q.shape
        relative = F.pad(q @ self.distance.T, (1, 0)).view(b, h, n + 1, n)[:, :, 1:]
        if self.fused:
            bias = (relative / math.sqrt(size)).masked_fill(later, -math.inf)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        scores = (q @ k.transpose(-2, -1) + relative) / math.sqrt(size)
        scores = scores.masked_fill(later, -math.inf)
        weights = scores.float().softmax(-1).to(q.dtype) if self.widen else scores.softmax(-1)
        return weights @ v

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        b, n, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v, later).transpose(1, 2).reshape(b, n, dim))
        return x + self.feed(self.norm2(x))


def music_positions(s: Setup, *, fused: bool = False, widen: bool = True, graphed: bool = False) -> Step:
    dim, heads, songs, length = s.size(512, 16), s.size(8, 2), s.size(8, 2), s.size(1024, 8)
    layers = nn.ModuleList(RelativeLayer(dim, heads, length, fused, widen) for _ in range(s.size(6, 1)))
    layers = layers.to(s.device, torch.float16 if s.cuda else BF16).eval()
    notes = torch.randn(songs, length, dim, device=s.device, dtype=layers[0].distance.dtype)
    later = torch.ones(length, length, dtype=torch.bool, device=s.device).triu(1)

    @torch.no_grad()
    def step() -> Tensor:
        x = notes
        for layer in layers:
            x = layer(x, later)
        return x

    return capture(step, s) if graphed else step


# Exercise: an activation by hand between large products, and attention by hand over short texts.


def own_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class RankLayer(nn.Module):
    def __init__(self, dim: int, heads: int, gelu: Callable[[Tensor], Tensor], fused: bool) -> None:
        super().__init__()
        self.heads, self.gelu, self.fused = heads, gelu, fused
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, dim = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(b, n, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]), -1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(b, n, dim))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


def query_ranker(s: Setup, *, gelu: str = "own", fused: bool = False, graphed: bool = False) -> Step:
    dim, pairs, words = s.size(1536, 16), s.size(256, 2), s.size(64, 4)
    spelling = {"own": own_gelu, "library": partial(F.gelu, approximate="tanh"), "compiled": s.compile(own_gelu) if gelu == "compiled" else own_gelu}
    layers = nn.Sequential(*(RankLayer(dim, s.size(24, 2), spelling[gelu], fused) for _ in range(s.size(4, 1))))
    model = nn.Sequential(layers, nn.Linear(dim, 1)).to(s.device, BF16).eval()
    texts = torch.randn(pairs, words, dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(texts)[:, 0]

    return capture(step, s) if graphed else step


# Exercise: a norm over channels by hand, in a network that restores pictures.


def channel_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return gain[:, None, None] * ((x - mean) / torch.sqrt(variance + 1e-6)) + shift[:, None, None]


def library_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), gain.shape, gain, shift, 1e-6).permute(0, 3, 1, 2).contiguous()


class SimpleBlock(nn.Module):
    """NAFNet's block: gates in the place of activations."""

    def __init__(self, width: int, norm: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.gains, self.shifts = norm, nn.Parameter(torch.ones(2, width)), nn.Parameter(torch.zeros(2, width))
        self.expand, self.mix = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.attend, self.project = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.up, self.down = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.mix(self.expand(self.norm(x, self.gains[0], self.shifts[0]))).chunk(2, 1)
        y = a * b
        x = x + self.project(y * self.attend(y.mean((2, 3), keepdim=True)))
        a, b = self.up(self.norm(x, self.gains[1], self.shifts[1])).chunk(2, 1)
        return x + self.down(a * b)


def denoise_photos(s: Setup, *, norm: str = "own", last: bool = False) -> Step:
    width, side = s.size(48, 4), s.size(256, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    how = {"own": channel_norm, "library": library_norm, "compiled": s.compile(channel_norm) if norm == "compiled" else channel_norm}[norm]
    blocks = [SimpleBlock(width, how) for _ in range(s.size(8, 1))]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 3, 3, padding=1))
    model = model.to(s.device, BF16, memory_format=layout).eval()
    photos = torch.rand(s.size(8, 1), 3, side, side, device=s.device, dtype=BF16).to(memory_format=layout)

    @torch.no_grad()
    def step() -> Tensor:
        return photos + model(photos)

    return step


# Exercise: an optimizer that loops over many small tensors, and a Python loop over heads.


def station_heads(s: Setup, *, foreach: bool = False, together: bool = False, autocast: bool = False) -> Step:
    inputs, width, small, stations = s.size(64, 4), s.size(256, 8), s.size(32, 4), s.size(24, 3)
    trunk = _mlp(inputs, width, width, width).to(s.device)
    heads = nn.ModuleList(_mlp(width, small, 1) for _ in range(stations)).to(s.device)
    optimizer = torch.optim.NAdam([*trunk.parameters(), *heads.parameters()], lr=1e-3, foreach=foreach)
    weather, power = torch.randn(s.size(512, 4), inputs, device=s.device), torch.rand(s.size(512, 4), stations, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            x = F.relu(trunk(weather))
            if together:
                w1, b1, w2, b2 = (torch.stack(parts) for parts in zip(*(head.parameters() for head in heads), strict=True))
                h = F.relu(torch.baddbmm(b1[:, None], x.expand(stations, -1, -1), w1.mT))
                y = torch.baddbmm(b2[:, None], h, w2.mT).squeeze(2).T
            else:
                y = torch.cat([head(x) for head in heads], 1)
        F.smooth_l1_loss(y.float(), power).backward()
        optimizer.step()

    return step


# Exercise: channels_last.


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        half = outer // 2
        self.body = nn.Sequential(
            nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half), nn.ReLU(), nn.Conv2d(half, outer, 1),
        )  # fmt: skip
        self.short = nn.Identity() if inner == outer else nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.body(x)


class Hourglass(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.beside, self.before, self.after = (Bottleneck(width, width) for _ in range(3))
        self.inside = Hourglass(width, depth - 1) if depth > 1 else Bottleneck(width, width)

    def forward(self, x: Tensor) -> Tensor:
        below = self.after(self.inside(self.before(F.max_pool2d(x, 2))))
        return self.beside(x) + F.interpolate(below, scale_factor=2.0)


def pose_hourglass(s: Setup, *, last: bool = False, log: bool = True, fused: bool = False) -> Step:
    width, side, joints = s.size(256, 8), s.size(256, 32), s.size(16, 3)
    layout = torch.channels_last if last else torch.contiguous_format
    model = nn.Sequential(
        nn.Conv2d(3, width // 4, 7, 2, 3), nn.BatchNorm2d(width // 4), nn.ReLU(), Bottleneck(width // 4, width // 2), nn.MaxPool2d(2),
        Bottleneck(width // 2, width), Hourglass(width, s.size(3, 1)), Bottleneck(width, width), nn.Conv2d(width, joints, 1),
    ).to(s.device, memory_format=layout)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused)
    pictures = torch.rand(s.size(64, 2), 3, side, side, device=s.device).to(memory_format=layout)
    maps = torch.rand(len(pictures), joints, side // 4, side // 4, device=s.device)
    history: list[tuple[float, float]] = []

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            heat = model(pictures)
        loss = F.mse_loss(heat.float(), maps)
        loss.backward()
        optimizer.step()
        if log:
            hits = (heat.flatten(2).argmax(2) == maps.flatten(2).argmax(2)).float().mean()
            history.append((loss.item(), hits.item()))

    return step


# Exercise: work that numpy does in the middle of a step.


def hard_triplets(s: Setup, *, where: str = "numpy", last: bool = False, fused: bool = False) -> Step:
    width, side, batch = s.size(64, 4), s.size(48, 12), s.size(1024, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    layers: list[nn.Module] = []
    for inner, outer, stride in ((3, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1), (2 * width, 4 * width, 2)):
        layers += [nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, s.size(128, 8)))
    model = model.to(s.device, memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    pictures = torch.randn(batch, 3, side, side, device=s.device).to(memory_format=layout)
    people = torch.arange(batch) // 4
    same_there, same_here = (people[:, None] == people).to(s.device), (people[:, None] == people).numpy()
    buffer = s.pin(torch.zeros(batch, s.size(128, 8)))

    def mined_here(z: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        squared = (z * z).sum(1)
        distance = squared[:, None] + squared[None, :] - 2.0 * (z @ z.T)
        positive = np.where(same_here, distance, -np.inf).argmax(1)
        negative = np.where(same_here, np.inf, distance).argmin(1)
        return torch.from_numpy(positive).to(s.device), torch.from_numpy(negative).to(s.device)

    def mined_there(z: Tensor) -> tuple[Tensor, Tensor]:
        squared = z.square().sum(1)
        distance = squared[:, None] + squared[None, :] - 2.0 * (z @ z.T)
        return distance.masked_fill(~same_there, -math.inf).argmax(1), distance.masked_fill(same_there, math.inf).argmin(1)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            z = model(pictures)
        z = F.normalize(z.float())
        if where == "gpu":
            positive, negative = mined_there(z.detach())
        elif where == "pinned":
            buffer.copy_(z.detach(), non_blocking=True)
            s.synchronize()
            positive, negative = mined_here(buffer.numpy())
        else:
            positive, negative = mined_here(z.detach().cpu().numpy())
        F.triplet_margin_loss(z, z[positive], z[negative], margin=0.2).backward()
        optimizer.step()

    return step


# Exercise: an odd width.


def gene_counts(s: Setup, *, multiple: int = 1, fused: bool = False, compiled: bool = False) -> Step:
    genes, cells, width = s.size(20_001, 21), s.size(4096, 4), s.size(1024, 8)
    padded = -(-genes // multiple) * multiple
    model = _mlp(padded, width, s.size(128, 4), width, padded, act=nn.GELU).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    counts = torch.poisson(torch.rand(cells, genes, device=s.device)).to(BF16)
    inputs = F.pad(torch.log1p(counts), (0, padded - genes))

    def poisson(log_rate: Tensor, counts: Tensor) -> Tensor:
        return F.poisson_nll_loss(log_rate.float(), counts)

    criterion = s.compile(poisson) if compiled else poisson

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(inputs)[:, :genes], counts).backward()
        optimizer.step()

    return step


# Exercise: a loop over time.


def leak(current: Tensor, level: Tensor, spikes: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Leaky neurons that fire above 1, with the gradient of a sigmoid."""
    level = 0.9 * level * (1.0 - spikes.detach()) + current + spikes @ back
    soft = torch.sigmoid(5.0 * (level - 1.0))
    return level, ((level > 1.0).float() - soft).detach() + soft


def leaky_neurons(s: Setup, *, compiled: bool = False, graphed: bool = False, before: bool = False) -> Step:
    rows, moments, inputs, width = s.size(128, 2), s.size(40, 4), s.size(700, 6), s.size(256, 8)
    project, head = nn.Linear(inputs, width).to(s.device), nn.Linear(width, 20).to(s.device)
    back = nn.Parameter(torch.randn(width, width, device=s.device) / math.sqrt(width))
    optimizer = torch.optim.SGD([*project.parameters(), *head.parameters(), back], lr=1e-2, foreach=True)
    sound, labels = (torch.rand(rows, moments, inputs, device=s.device) < 0.05).float(), torch.randint(20, (rows,), device=s.device)
    advance = s.compile(leak) if compiled else leak

    def step() -> None:
        optimizer.zero_grad()
        currents = project(sound).unbind(1) if before else None
        level = spikes = total = torch.zeros(rows, width, device=s.device)
        for t in range(moments):
            current = project(sound[:, t]) if currents is None else currents[t]
            level, spikes = advance(current, level, spikes, back)
            total = total + spikes
        F.cross_entropy(head(total / moments), labels).backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Exercise: small inference, one request at a time.


class Payments(nn.Module):
    def __init__(self, values: int, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.table, self.blocks = nn.Embedding(values, dim), nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.score = nn.LayerNorm(dim), nn.Linear(dim, 1)

    def forward(self, fields: Tensor) -> Tensor:
        return torch.sigmoid(self.score(self.norm(self.blocks(self.table(fields)).mean(1))))


def payment_scores(s: Setup, *, rows: int = 1, graphed: bool = False, half: bool = False, compiled: bool = False) -> Step:
    values, fields = s.size(50_000, 20), s.size(28, 4)
    model = Payments(values, s.size(192, 8), s.size(6, 2), s.size(4, 1)).to(s.device).eval()
    model = model.half() if half and s.cuda else model
    run = s.compile(model) if compiled else model
    asked, placed = torch.randint(values, (rows, fields)), torch.zeros(rows, fields, dtype=torch.long, device=s.device)
    kept: list[Tensor] = []

    def score() -> None:
        kept[:] = [run(placed)]

    with torch.no_grad():
        answer = capture(score, s) if graphed else score

    @torch.no_grad()
    def step() -> list[list[float]]:
        placed.copy_(asked)
        answer()
        return kept[0].tolist()

    return step


# Exercise: FP32 where less would do, with an odd number of inputs and gradients filled with zeros.


class Forecaster(nn.Module):
    def __init__(self, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, 24)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.first(x))
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return self.last(x)


def price_forecaster(s: Setup, *, autocast: bool = False, tf32: bool = False, multiple: int = 1, fills: bool = True) -> Step:
    inputs, rows = s.size(333, 5), s.size(8192, 4)
    padded = -(-inputs // multiple) * multiple
    model = Forecaster(padded, s.size(3072, 8), s.size(3, 1)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, prices = F.pad(torch.randn(rows, inputs, device=s.device), (0, padded - inputs)), torch.randn(rows, 24, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad(set_to_none=not fills)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            y = model(x)
        F.l1_loss(y.float(), prices).backward()
        optimizer.step()
        torch.set_float32_matmul_precision("high")

    return step


WORKLOADS = (
    written_pair(
        "flower_loader", "memcpy", "A convolutional network in bf16 on batches of 38.5 MB from a DataLoader of six workers without pinned memory.",
        "pin_memory=True and non_blocking=True", flower_loader, {"pin": True},
        alone={"data-loading": {"workers": 12}, "missed-overlap": {"pin": True, "ahead": True}},
    ),
    written_pair(
        "soft_actor_critic", "sync-stall", "Soft actor-critic, small networks: each of three losses is asserted to be finite and read before its backward.",
        "neither assert nor .item()", soft_actor_critic, {"log": False},
        alone={"optimizer-foreach": {"fused": True}, "precision": {"autocast": True}, "graph-candidate": {"log": False, "graphed": True}},
        top=("sync-stall", "launch-gap", "graph-candidate"),
    ),
    written_pair(
        "timed_vocoder", None, "Training of a WaveNet in bf16 autocast with three torch.cuda.synchronize() and an empty_cache() in each step.",
        "each alone", timed_vocoder, {},
        alone={"allocator": {"empty": False}, "sync-stall": {"waits": False}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "masked_sound", "sync-stall", "A masked autoencoder of spectrograms in bf16 autocast that picks patches by boolean masks in five places.",
        "gather and scatter by index", masked_sound, {"masks": False},
        alone={"optimizer-foreach": {"fused": True}, "launch-gap": {"compiled": True}}, top=("sync-stall", "launch-gap", "graph-candidate"),
    ),
    written_pair(
        "sine_picture", "memcpy", "A network of sines learns a picture from 262,144 jittered points, which the host makes in each step.",
        "make them on the GPU", sine_picture, {"where": "gpu"},
        alone={"memcpy/pinned": {"where": "pinned"}, "precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}},
    ),
    written_pair(
        "music_positions", "unfused-attention", "fp16 inference with causal attention and skewed relative positions written out.",
        "scaled_dot_product_attention with the positions as its mask", music_positions, {"fused": True},
        alone={"dtype-casts": {"widen": False}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "query_ranker", "unfused-elementwise", "bf16 inference on 256 texts of 64 words; GELU's tanh form and attention are written out.",
        "F.gelu(approximate='tanh')", query_ranker, {"gelu": "library"},
        alone={"unfused-elementwise/compiled": {"gelu": "compiled"}, "unfused-attention": {"fused": True}, "graph-candidate": {"graphed": True}},
        gpu_bound=True,
    ),
    written_pair(
        "denoise_photos", "unfused-norm", "Blocks of NAFNet in bf16 on eight photos, whose norm over channels is written out.",
        "torch.compile of the norm", denoise_photos, {"norm": "compiled"},
        alone={"unfused-norm/library": {"norm": "library"}, "memory-layout": {"last": True}}, gpu_bound=True,
    ),
    written_pair(
        "station_heads", "optimizer-foreach", "Training of a trunk with 24 small heads, called one by one, under NAdam(foreach=False).",
        "foreach=True", station_heads, {"foreach": True},
        alone={"launch-gap": {"together": True}, "precision": {"autocast": True}}, top=("optimizer-foreach", "launch-gap", "graph-candidate"),
    ),
    written_pair(
        "pose_hourglass", "memory-layout", "Training of an hourglass in bf16 autocast on 64 pictures, NCHW; loss and hits are read in each step.",
        "channels_last", pose_hourglass, {"last": True},
        alone={"sync-stall": {"log": False}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "hard_triplets", "host-bound", "Metric learning in bf16 autocast, NCHW, whose hardest pairs numpy looks for between forward and backward.",
        "look for them on the GPU", hard_triplets, {"where": "gpu"},
        alone={"memcpy": {"where": "pinned"}, "memory-layout": {"last": True}, "optimizer-foreach": {"fused": True}}, with_stack=True,
    ),
    written_pair(
        "gene_counts", "gemm-alignment", "An autoencoder in bf16 of 4096 cells with 20,001 genes each and a Poisson loss.",
        "20,032 genes", gene_counts, {"multiple": 64},
        alone={"optimizer-foreach": {"fused": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written_pair(
        "leaky_neurons", "launch-gap", "Training of 256 spiking neurons over 40 moments in a Python loop.",
        "torch.compile of one moment", leaky_neurons, {"compiled": True},
        alone={"graph-candidate": {"graphed": True}, "launch-gap/before": {"before": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "payment_scores", "graph-candidate", "A small transformer in FP32 scores one payment a call and returns a float.",
        "a CUDA graph", payment_scores, {"graphed": True},
        alone={"low-arithmetic-intensity": {"rows": 32}, "launch-gap": {"compiled": True}, "precision": {"half": True}},
        shared={"low-arithmetic-intensity": 32.0}, top=("graph-candidate", "launch-gap"),
    ),
    written_pair(
        "price_forecaster", "precision", "Training of a residual MLP in FP32 without TF32 on 333 inputs; its gradients are filled with zeros.",
        "bf16 autocast", price_forecaster, {"autocast": True},
        alone={"precision/tf32": {"tf32": True}, "gemm-alignment": {"multiple": 16}, "grad-zeroing": {"fills": False}}, gpu_bound=True,
    ),
)  # fmt: skip
