"""Programs by an author who has not read the rules, the fourth set: written from scratch, in fields that the sets before left out.

Each fix is what its rule's advice says, alone; about a third are what people try first and gain nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture, written_pair

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


def _loaded(s: Setup, data: Dataset[Any], batch: int, workers: bool) -> Iterator[Any]:
    options = WORKERS | {"pin_memory": s.cuda} if workers and s.cuda else {}
    loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options)
    while True:
        yield from loader


# Biology: where cells of one day went on the next, by optimal transport.


def soft_minimum(cost: Tensor, potential: Tensor, dim: int) -> Tensor:
    return -0.05 * torch.logsumexp((potential - cost) / 0.05, dim)


def transport_plans(s: Setup, *, compiled: bool = False, checked: bool = True, tf32: bool = False) -> Step:
    many, genes = s.size(8192, 24), s.size(512, 8)
    today, tomorrow = (torch.rand(many, genes, device=s.device) for _ in range(2))
    soften = s.compile(soft_minimum, dynamic=False) if compiled else soft_minimum

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cost = (today.square().sum(1, keepdim=True) + tomorrow.square().sum(1) - 2.0 * today @ tomorrow.T) / genes
        f, g = torch.zeros(many, 1, device=s.device), torch.zeros(1, many, device=s.device)
        for _ in range(s.size(12, 3)):
            before = f
            f = soften(cost, g, 1)[:, None]
            g = soften(cost, f, 0)[None]
            if checked and (f - before).abs().max().item() < 1e-12:
                break
        plan = torch.exp((f + g - cost) / 0.05)
        return (plan * cost).sum() / plan.sum()

    return step


# Compression: a learned codec for pictures with a hyperprior.


def divided(x: Tensor, gamma: Tensor, beta: Tensor, inverse: bool) -> Tensor:
    """Generalised divisive normalisation: each channel by the energy of all."""
    norm = F.conv2d(x * x, gamma.abs()[:, :, None, None], beta.abs() + 1e-6)
    return x * torch.sqrt(norm) if inverse else x * torch.rsqrt(norm)


class Divide(nn.Module):
    def __init__(self, channels: int, inverse: bool, how: Callable[..., Tensor]) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(0.1 * torch.eye(channels) + 1e-3), nn.Parameter(torch.ones(channels))
        self.inverse, self.how = inverse, how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(x, self.gamma, self.beta, self.inverse)


class Codec(nn.Module):
    def __init__(self, n: int, m: int, how: Callable[..., Tensor]) -> None:
        super().__init__()

        def down(inner: int, outer: int) -> nn.Module:
            return nn.Conv2d(inner, outer, 5, 2, 2)

        def up(inner: int, outer: int) -> nn.Module:
            return nn.ConvTranspose2d(inner, outer, 5, 2, 2, 1)

        self.analysis = nn.Sequential(down(3, n), Divide(n, False, how), down(n, n), Divide(n, False, how), down(n, n), Divide(n, False, how), down(n, m))
        self.synthesis = nn.Sequential(up(m, n), Divide(n, True, how), up(n, n), Divide(n, True, how), up(n, n), Divide(n, True, how), up(n, 3))
        self.to_hyper = nn.Sequential(nn.Conv2d(m, n, 3, 1, 1), nn.LeakyReLU(), down(n, n), nn.LeakyReLU(), down(n, n))
        self.from_hyper = nn.Sequential(up(n, n), nn.LeakyReLU(), up(n, n), nn.LeakyReLU(), nn.Conv2d(n, 2 * m, 3, 1, 1))
        self.spread = nn.Parameter(torch.zeros(n, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.analysis(x)
        z = self.to_hyper(y)
        z = z + torch.rand_like(z) - 0.5
        y = y + torch.rand_like(y) - 0.5
        mean, scale = self.from_hyper(z).float().chunk(2, 1)
        off, scale = (y.float() - mean).abs(), F.softplus(scale).clamp_min(0.11)
        near = 0.5 * torch.erfc((off - 0.5) / (scale * math.sqrt(2.0))) - 0.5 * torch.erfc((off + 0.5) / (scale * math.sqrt(2.0)))
        wide = self.spread.exp()
        hyper = torch.sigmoid((z.float() + 0.5) / wide) - torch.sigmoid((z.float() - 0.5) / wide)
        bits = -torch.log2(near.clamp_min(1e-9)).sum() - torch.log2(hyper.clamp_min(1e-9)).sum()
        return self.synthesis(y), bits


def image_codec(s: Setup, *, last: bool = False, autocast: bool = False, compiled: bool = False) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    how = s.compile(divided, dynamic=False) if compiled else divided
    model = Codec(s.size(128, 8), s.size(192, 12), how).to(s.device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    pictures = torch.rand(s.size(16, 2), 3, s.size(256, 64), s.size(256, 64), device=s.device).to(memory_format=layout)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again, bits = model(pictures)
        loss = 0.01 * 255.0**2 * F.mse_loss(again.float(), pictures) + bits / pictures[:, 0].numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


# Search in a shop: two towers, the other queries' goods as the wrong answers.


class Tower(nn.Module):
    def __init__(self, buckets: int, width: int, dim: int) -> None:
        super().__init__()
        self.grams, self.net = nn.EmbeddingBag(buckets, width, mode="mean"), _mlp(width, 2 * width, dim, act=nn.GELU)

    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(self.net(self.grams(ids)), dim=1)


def shop_towers(s: Setup, *, library: bool = False, autocast: bool = False, read: bool = True) -> Step:
    buckets, batch, width, dim = s.size(50_000, 40), s.size(8192, 6), s.size(256, 8), s.size(128, 4)
    asks, goods = (Tower(buckets, width, dim).to(s.device) for _ in range(2))
    optimizer = torch.optim.Adam([*asks.parameters(), *goods.parameters()], lr=1e-3, fused=True)
    words, titles = (torch.randint(buckets, (batch, s.size(n, 3)), device=s.device) for n in (16, 40))
    product = torch.randint(4 * batch, (batch,), device=s.device)
    often = torch.rand(batch, device=s.device).mul_(0.01).add_(1e-5).log()
    right, hits = torch.arange(batch, device=s.device), torch.zeros((), device=s.device)
    history: list[float] = []

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = asks(words) @ goods(titles).T
        logits = logits.float() / 0.05 - often
        same = (product[:, None] == product) & (right[:, None] != right)
        logits = logits.masked_fill(same, -1e4)
        if library:
            loss = F.cross_entropy(logits, right)
        else:
            raised = torch.exp(logits - logits.max(1, keepdim=True).values)
            chance = raised / raised.sum(1, keepdim=True)
            loss = -torch.log(chance[right, right] + 1e-12).mean()
        loss.backward()
        optimizer.step()
        share = (logits.detach().argmax(1) == right).float().mean()
        if read:
            history.append(share.item())
        else:
            hits.add_(share)

    return step


# Music: the next track of a session, among two million.


class Sessions(nn.Module):
    def __init__(self, tracks: int, dim: int, heads: int, library: bool) -> None:
        super().__init__()
        self.table, self.heads, self.library = nn.Embedding(tracks, dim), heads, library
        self.qkv, self.out = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(2)), nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))
        self.feed, self.norms = nn.ModuleList(_mlp(dim, 4 * dim, dim) for _ in range(2)), nn.ModuleList(nn.LayerNorm(dim) for _ in range(4))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.library:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, float("-inf"))
        return scores.softmax(-1) @ v

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids).to(BF16)
        for i, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feed, strict=True)):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv(self.norms[2 * i](x)).chunk(3, -1))
            x = x + out(self.attend(q, k, v).transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * i + 1](x))
        return x[:, -1] @ self.table.weight.to(BF16).T


def next_track(s: Setup, *, narrow: bool = False, library: bool = False, graphed: bool = False) -> Step:
    tracks, dim, length = s.size(2_000_000, 200), s.size(128, 16), s.size(50, 6)
    with torch.device(s.device):
        model = Sessions(tracks, dim, s.size(4, 2), library).to(BF16).eval().requires_grad_(False)
        model.table.weight.data = torch.randn(tracks, dim, dtype=BF16 if narrow else torch.float32)
    heard = torch.randint(tracks, (s.size(32, 2), length), device=s.device)

    @torch.no_grad()
    def rank() -> Tensor:
        scores = model(heard)
        scores.scatter_(1, heard, float("-inf"))
        return scores.topk(min(50, tracks), dim=1).indices

    kept: list[Tensor] = []

    def keep() -> None:
        kept[:] = [rank()]

    run = capture(keep, s) if graphed else keep

    def step() -> list[list[int]]:
        run()
        return kept[0].tolist()  # type: ignore[no-any-return]

    return step


# Particle physics: what made a jet, from its particles and all pairs of them.


def pair_features(p: Tensor) -> Tensor:
    """p: transverse momentum, rapidity, angle and energy of each particle."""
    pt, y, phi, e = (part.squeeze(-1) for part in p.split(1, -1))
    px, py, pz = pt * torch.cos(phi), pt * torch.sin(phi), pt * torch.sinh(y)
    dphi = torch.remainder(phi[:, :, None] - phi[:, None] + math.pi, 2 * math.pi) - math.pi
    delta = torch.sqrt((y[:, :, None] - y[:, None]) ** 2 + dphi**2 + 1e-8)
    least = torch.minimum(pt[:, :, None], pt[:, None])
    mass = (e[:, :, None] + e[:, None]) ** 2
    for part in (px, py, pz):
        mass = mass - (part[:, :, None] + part[:, None]) ** 2
    share = least / (pt[:, :, None] + pt[:, None])
    return torch.stack([torch.log(x.clamp_min(1e-8)) for x in (delta, least * delta, share, mass)], 1)


class JetBlock(nn.Module):
    def __init__(self, dim: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads, self.library = heads, library
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        if self.library:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            mixed = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + bias, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Jets(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int, library: bool, pairs: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.pairs = _mlp(4, dim, dim, act=nn.GELU), pairs
        self.bias = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, dim // 4, 1), nn.GELU(), nn.Conv2d(dim // 4, heads, 1))
        self.blocks, self.head = nn.ModuleList(JetBlock(dim, heads, library) for _ in range(depth)), nn.Linear(dim, 10)

    def forward(self, p: Tensor, real: Tensor) -> Tensor:
        with torch.no_grad():
            pairs = self.pairs(p)
        bias = self.bias(pairs).masked_fill(~real[:, None, None], -1e4)
        x = self.first(p)
        for block in self.blocks:
            x = block(x, bias)
        return self.head((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def jet_tagger(s: Setup, *, library: bool = False, compiled: bool = False, fused: bool = False) -> Step:
    jets, particles = s.size(256, 2), s.size(128, 8)
    model = Jets(s.size(128, 8), s.size(8, 2), s.size(6, 1), library, s.compile(pair_features) if compiled else pair_features).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, **({"fused": True} if fused else {"foreach": False}))
    p = torch.rand(2, jets, particles, 4, device=s.device) + 0.1
    p[..., 3] += (p[..., 0] * torch.cosh(p[..., 1])).detach()
    real = torch.arange(particles, device=s.device) < torch.randint(particles // 4, particles + 1, (2, jets, 1), device=s.device)
    labels = torch.randint(10, (2, jets), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        for part in range(2):  # gradients of two small batches are added
            with torch.autocast(s.device.type, BF16):
                loss = F.cross_entropy(model(p[part], real[part]), labels[part], label_smoothing=0.1) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


# Microscopy: noise is taken away from pictures of cells by a diffusion model in fp16.


class GroupNorm32(nn.GroupNorm):
    """As in the programs that many copied: the norm goes to FP32 and back."""

    narrow = False

    def forward(self, x: Tensor) -> Tensor:
        if self.narrow:
            return super().forward(x)
        return F.group_norm(x.float(), self.num_groups, self.weight.float(), self.bias.float(), self.eps).type(x.dtype)


class CellBlock(nn.Module):
    def __init__(self, inner: int, outer: int, groups: int, emb: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = GroupNorm32(groups, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = GroupNorm32(groups, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time, self.skip = nn.Linear(emb, 2 * outer), nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(emb))[..., None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class CellNet(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.width, emb = width, 2 * width
        self.time = nn.Sequential(nn.Linear(width, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([CellBlock(width, width, groups, emb), CellBlock(width, 2 * width, groups, emb), CellBlock(2 * width, 2 * width, groups, emb)])
        self.up = nn.ModuleList([CellBlock(4 * width, 2 * width, groups, emb), CellBlock(4 * width, width, groups, emb), CellBlock(2 * width, width, groups, emb)])
        self.norm, self.last = GroupNorm32(groups, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        waves = t[:, None] * torch.exp(-torch.arange(self.width // 2, device=x.device) / self.width * 9.0)
        emb = self.time(torch.cat([waves.cos(), waves.sin()], 1).type(x.dtype))
        x, kept = self.first(x), []
        for block in self.down:
            x = block(x, emb)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), emb)
        return self.last(F.silu(self.norm(x)))


def cell_diffusion(s: Setup, *, narrow: bool = False, last: bool = False, graphed: bool = False) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    dtype = torch.float16 if s.cuda else BF16
    model = CellNet(s.size(128, 8), s.size(32, 4)).to(s.device, dtype, memory_format=layout).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, GroupNorm32):
            module.narrow = narrow
    side = s.size(128, 16)
    noise = torch.randn(s.size(16, 2), 4, side, side, device=s.device, dtype=dtype).to(memory_format=layout)
    times = [torch.full((len(noise),), t, device=s.device) for t in (900.0, 500.0)]

    @torch.no_grad()
    def step() -> Tensor:
        x = noise
        for t in times:
            x = x - 0.1 * model(x, t)
        return x

    return capture(step, s) if graphed else step


# Robots: one scan of a room laid on the scan before it, by the nearest points.


def nearest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    found = ((a[:, None] - b[None]) ** 2).sum(-1).min(1)
    return found.values, found.indices


def scan_matching(s: Setup, *, compiled: bool = False, on_gpu: bool = False, checked: bool = True) -> Step:
    many = s.size(6144, 32)
    old = torch.rand(many, 3, device=s.device) * torch.tensor([8.0, 6.0, 3.0], device=s.device)
    turn = torch.tensor([[0.998, -0.06, 0.0], [0.06, 0.998, 0.0], [0.0, 0.0, 1.0]], device=s.device)
    new = old[torch.randperm(many, device=s.device)] @ turn.T + 0.05 * torch.randn(many, 3, device=s.device)
    search = s.compile(nearest) if compiled else nearest

    @torch.no_grad()
    def step() -> Any:
        torch.set_float32_matmul_precision("highest")
        moved, pose, before = new, torch.eye(4, device=s.device), math.inf
        for _ in range(s.size(12, 3)):
            far, rows = search(moved, old)
            weight = torch.exp(-far)[:, None]
            there = old[rows]
            centre, goal = (weight * moved).sum(0) / weight.sum(), (weight * there).sum(0) / weight.sum()
            spread = (weight * (moved - centre)).T @ (there - goal)
            if on_gpu:
                u, _, v = torch.linalg.svd(spread)
                rotation = v.T @ u.T
            else:
                left, _, right = np.linalg.svd(spread.cpu().numpy())
                rotation = torch.from_numpy((right.T @ left.T).copy()).to(s.device)
            moved = (moved - centre) @ rotation.T + goal
            change = torch.eye(4, device=s.device)
            change[:3, :3], change[:3, 3] = rotation, goal - rotation @ centre
            pose = change @ pose
            if checked:
                error = far.mean().item()
                if abs(before - error) < 1e-12:
                    break
                before = error
        return pose.cpu().numpy()

    return step


# Finance: a temporal convolutional network forecasts quantiles from a book of orders.


class Ticks(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, many: int, channels: int, length: int) -> None:
        self.series, self.returns, self.length = torch.randn(many, channels), 0.01 * torch.randn(many, 5), length

    def __len__(self) -> int:
        return len(self.series) - self.length

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.series[at : at + self.length].T, self.returns[at + self.length - 1]


class Causal(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.reach = 2 * dilation
        self.conv1, self.conv2 = (weight_norm(nn.Conv1d(width, width, 3, dilation=dilation)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv1(F.pad(x, (self.reach, 0))))
        return F.relu(x + F.relu(self.conv2(F.pad(h, (self.reach, 0)))))


def tick_quantiles(s: Setup, *, autocast: bool = False, workers: bool = False, fused: bool = False) -> Step:
    channels, width, length, batch = s.size(12, 3), s.size(256, 8), s.size(512, 16), s.size(128, 4)
    body = nn.Sequential(nn.Conv1d(channels, width, 1), *(Causal(width, 2**i) for i in range(s.size(6, 2)))).to(s.device)
    head = nn.Linear(width, 15).to(s.device)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3, **({"fused": True} if fused else {}))
    batches = _loaded(s, Ticks(s.size(200_000, 60), channels, length), batch, workers)
    levels = torch.tensor([0.1, 0.5, 0.9], device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        x, y = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = head(body(x)[..., -1]).unflatten(1, (5, 3))
        off = y[..., None] - guess.float()
        torch.maximum(levels * off, (levels - 1.0) * off).mean().backward()
        optimizer.step()

    return step


# Astronomy: planets that pass before their star, looked for at each period in turn.


def transit_search(s: Setup, *, together: bool = False, read: bool = True, ahead: bool = False) -> Step:
    many, bins, wide = s.size(20_000, 60), s.size(200, 10), s.size(6, 2)
    periods = np.linspace(1.2, 9.7, s.size(80, 4)).tolist()
    time = torch.linspace(0.0, 90.0, many, device=s.device)
    stars = [torch.randn(many) * 1e-3 for _ in range(4)]
    batches = Prefetcher([(s.pin(star),) for star in stars], s) if ahead else None
    all_periods = torch.tensor(periods, device=s.device)[:, None]
    turn = [-1]

    def power(flux: Tensor, period: float) -> Tensor:
        phase = ((time / period) % 1.0 * bins).long().clamp_(max=bins - 1)
        total = torch.zeros(bins, device=s.device).index_add_(0, phase, flux)
        count = torch.zeros(bins, device=s.device).index_add_(0, phase, torch.ones_like(flux))
        inside = torch.cat([total, total[: wide - 1]]).unfold(0, wide, 1).sum(1)
        seen = torch.cat([count, count[: wide - 1]]).unfold(0, wide, 1).sum(1)
        return (inside**2 / (seen * (many - seen)).clamp_min(1.0)).max()

    def powers(flux: Tensor) -> Tensor:
        phase = ((time / all_periods) % 1.0 * bins).long().clamp_(max=bins - 1)
        rows = (phase + bins * torch.arange(len(periods), device=s.device)[:, None]).flatten()
        total = torch.zeros(len(periods) * bins, device=s.device).index_add_(0, rows, flux.repeat(len(periods)))
        count = torch.zeros_like(total).index_add_(0, rows, torch.ones(len(rows), device=s.device))
        total, count = total.view(-1, bins), count.view(-1, bins)
        inside = torch.cat([total, total[:, : wide - 1]], 1).unfold(1, wide, 1).sum(2)
        seen = torch.cat([count, count[:, : wide - 1]], 1).unfold(1, wide, 1).sum(2)
        return (inside**2 / (seen * (many - seen)).clamp_min(1.0)).amax(1)

    @torch.no_grad()
    def step() -> tuple[float, float]:
        turn[0] += 1
        flux = batches.next()[0] if batches else stars[turn[0] % 4].to(s.device)
        flux = flux - flux.median()
        best, at = -1.0, 0.0
        if together:
            found = powers(flux).tolist()
            best = max(found)
            return best, periods[found.index(best)]
        if not read:
            found = torch.stack([power(flux, period) for period in periods]).tolist()
            best = max(found)
            return best, periods[found.index(best)]
        for period in periods:
            height = power(flux, period).item()
            if height > best:
                best, at = height, period
        return best, at

    return step


# Games: a tree search that asks a small network about one position at a time.


class BoardNet(nn.Module):
    def __init__(self, width: int, depth: int, squares: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.policy = nn.Sequential(nn.Conv2d(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * squares, squares))
        self.value = nn.Sequential(nn.Conv2d(width, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(squares, 64), nn.ReLU(), nn.Linear(64, 1), nn.Tanh())

    def forward(self, board: Tensor) -> Tensor:
        x = F.relu(self.first(board))
        for block in self.blocks:
            x = F.relu(x + block(x))
        return torch.cat([self.policy(x).softmax(1), self.value(x)], 1)


class Position:
    def __init__(self, prior: Any, listed: bool) -> None:
        self.prior = prior.tolist() if listed else prior
        self.visits: Any = [0] * len(prior) if listed else np.zeros(len(prior))
        self.total: Any = [0.0] * len(prior) if listed else np.zeros(len(prior))
        self.after: dict[int, Position] = {}
        self.listed, self.seen = listed, 0

    def choose(self) -> int:
        root = math.sqrt(self.seen + 1)
        if not self.listed:
            score = self.total / np.maximum(self.visits, 1) + 1.5 * self.prior * root / (1 + self.visits)
            return int(np.where(self.prior > 0, score, -np.inf).argmax())
        best, move = -math.inf, 0
        for i, prior in enumerate(self.prior):
            if prior <= 0:
                continue
            mean = self.total[i] / self.visits[i] if self.visits[i] else 0.0
            score = mean + 1.5 * prior * root / (1 + self.visits[i])
            if score > best:
                best, move = score, i
        return move


def board_search(s: Setup, *, compiled: bool = False, listed: bool = True, autocast: bool = False) -> Step:
    side = s.size(9, 4)
    squares = side * side
    model = BoardNet(s.size(64, 8), s.size(5, 1), squares).to(s.device).eval().requires_grad_(False)
    net = s.compile(model, mode="reduce-overhead") if compiled else model
    rng, stones = np.random.default_rng(0), [np.zeros(squares, np.float32)]

    def ask(board: Any, player: float) -> tuple[Position, float]:
        planes = np.stack([board == player, board == -player, np.full(squares, player > 0)]).astype(np.float32).reshape(1, 3, side, side)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            out = net(torch.from_numpy(planes).to(s.device)).float().cpu().numpy()[0]
        prior = (out[:-1].astype(np.float64) + 1e-6) * (board == 0)
        return Position(prior / prior.sum(), listed), float(out[-1])

    @torch.no_grad()
    def step() -> int:
        if (stones[0] == 0).sum() < squares // 2:
            stones[0] = np.zeros(squares, np.float32)
        player = 1.0 if (stones[0] != 0).sum() % 2 == 0 else -1.0
        root, _ = ask(stones[0], player)
        for _ in range(s.size(24, 3)):
            node, board, turn, path = root, stones[0].copy(), player, []
            while True:
                move = node.choose()
                path.append((node, move))
                board[move], turn = turn, -turn
                if move not in node.after:
                    break
                node = node.after[move]
            if (board == 0).any():
                node.after[move], value = ask(board, turn)
            else:
                value = 0.0
            for node, move in reversed(path):
                value = -value
                node.seen += 1
                node.visits[move] += 1
                node.total[move] += value
        visits = np.asarray(root.visits, dtype=np.float64)
        chosen = int(rng.choice(squares, p=visits / visits.sum()))
        stones[0] = stones[0].copy()
        stones[0][chosen] = player
        return chosen

    return step


# Bandits: which of sixty articles each visitor sees.


def news_bandit(s: Setup, *, together: bool = False, checked: bool = True, ahead: bool = False) -> Step:
    arms, dim, visitors = s.size(60, 3), s.size(48, 4), s.size(256, 5)
    a = torch.eye(dim, device=s.device).repeat(arms, 1, 1)
    b = torch.zeros(arms, dim, device=s.device)
    rng = np.random.default_rng(0)
    likes = rng.standard_normal((arms, dim)).astype(np.float32) * 0.3
    days = [torch.randn(visitors, dim) for _ in range(4)]
    batches = Prefetcher([(s.pin(day),) for day in days], s) if ahead else None
    turn = [-1]
    inverse: Callable[[Tensor], Tensor] = torch.linalg.inv if checked else (lambda x: torch.linalg.inv_ex(x).inverse)

    @torch.no_grad()
    def step() -> float:
        torch.set_float32_matmul_precision("highest")
        turn[0] += 1
        day = days[turn[0] % 4]
        x = batches.next()[0] if batches else day.to(s.device)
        if together:
            inv = inverse(a)
            theta = torch.bmm(inv, b[..., None])
            wide = (torch.matmul(x, inv) * x).sum(-1)
            scores = (torch.matmul(x, theta).squeeze(-1) + 0.5 * wide.clamp_min(0.0).sqrt()).T
        else:
            columns = []
            for arm in range(arms):
                inv = inverse(a[arm])
                theta = inv @ b[arm]
                wide = ((x @ inv) * x).sum(1)
                columns.append(x @ theta + 0.5 * wide.clamp_min(0.0).sqrt())
            scores = torch.stack(columns, 1)
        chosen = scores.argmax(1)
        shown = chosen.cpu().numpy()
        clicked = (rng.random(visitors) < 1.0 / (1.0 + np.exp(-(day.numpy() * likes[shown]).sum(1)))).astype(np.float32)
        reward = torch.from_numpy(clicked).to(s.device)
        a.mul_(0.999).index_add_(0, chosen, x[:, :, None] * x[:, None])
        b.mul_(0.999).index_add_(0, chosen, x * reward[:, None])
        return float(clicked.mean())

    return step


# Quantum chemistry: a network as the wave function of an atom, by variational Monte Carlo.


class Wave(nn.Module):
    def __init__(self, electrons: int, width: int) -> None:
        super().__init__()
        self.electrons, self.net = electrons, _mlp(4 * electrons, width, width, width, 1, act=nn.Tanh)
        self.charge = nn.Parameter(torch.tensor(float(electrons) - 0.3))
        pairs = torch.triu_indices(electrons, electrons, 1)
        self.register_buffer("one", pairs[0])
        self.register_buffer("two", pairs[1])

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = x.unflatten(1, (self.electrons, 3))
        out = (places.square().sum(-1) + 1e-6).sqrt()
        apart = ((places[:, self.one] - places[:, self.two]).square().sum(-1) + 1e-6).sqrt()
        return out, apart

    def forward(self, x: Tensor) -> Tensor:
        out, apart = self.parts(x)
        return self.net(torch.cat([x, out], 1)).squeeze(1) - self.charge * out.sum(1) + (0.5 * apart / (1.0 + apart)).sum(1)


def atom_walkers(s: Setup, *, graphed: bool = False, together: bool = False, tf32: bool = False) -> Step:
    electrons, walkers = s.size(4, 2), s.size(2048, 8)
    coordinates = 3 * electrons
    wave = Wave(electrons, s.size(128, 8)).to(s.device)
    optimizer = torch.optim.Adam(wave.parameters(), lr=1e-3, capturable=s.cuda)
    place = torch.randn(walkers, coordinates, device=s.device)
    each = torch.eye(coordinates, device=s.device)[:, None].expand(-1, walkers, -1)

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        with torch.no_grad():
            x, now = place, wave(place)
            for _ in range(s.size(8, 2)):
                tried = x + 0.2 * torch.randn_like(x)
                then = wave(tried)
                taken = torch.rand_like(now) < torch.exp(2.0 * (then - now))
                x, now = torch.where(taken[:, None], tried, x), torch.where(taken, then, now)
            place.copy_(x)
        x = place.detach().clone().requires_grad_()
        slope = torch.autograd.grad(wave(x).sum(), x, create_graph=True)[0]
        if together:
            bends = torch.autograd.grad(slope, x, each, is_grads_batched=True)[0]
            bent = bends.diagonal(dim1=0, dim2=2).sum(-1)
        else:
            bent = torch.zeros(walkers, device=s.device)
            for i in range(coordinates):
                bent = bent + torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0][:, i]
        with torch.no_grad():
            out, apart = wave.parts(x)
            energy = -0.5 * (bent + slope.square().sum(1)) - electrons * (1.0 / out).sum(1) + (1.0 / apart).sum(1)
            middle = energy.median()
            energy = energy.clamp(middle - 5.0, middle + 5.0)
        optimizer.zero_grad()
        (2.0 * (energy - energy.mean()) * wave(x.detach())).mean().backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Robots: a controller that draws thousands of plans and weighs them.


def sampling_planner(s: Setup, *, graphed: bool = False, compiled: bool = False, autocast: bool = False) -> Step:
    plans, horizon, state, act = s.size(4096, 8), s.size(30, 3), 12, 4
    model = _mlp(state + act, s.size(256, 8), s.size(256, 8), s.size(256, 8), state, act=nn.SiLU).to(s.device).eval().requires_grad_(False)
    dynamics = s.compile(model, mode="reduce-overhead") if compiled else model
    goal, posts = torch.tensor([2.0, 1.0, 0.5], device=s.device), torch.rand(6, 3, device=s.device)
    start, nominal = torch.zeros(state, device=s.device), torch.zeros(horizon, act, device=s.device)
    measured = [np.random.default_rng(i).standard_normal(state).astype(np.float32) * 0.1 for i in range(4)]
    turn = [0]

    @torch.no_grad()
    def plan() -> None:
        torch.set_float32_matmul_precision("highest")
        noise = 0.3 * torch.randn(horizon, plans, act, device=s.device)
        x, cost = start.expand(plans, state), torch.zeros(plans, device=s.device)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for t in range(horizon):
                u = (nominal[t] + noise[t]).clamp(-1.0, 1.0)
                x = x + 0.05 * dynamics(torch.cat([x, u], 1))
                near = (x[:, None, :3] - posts).square().sum(-1)
                cost = cost + (x[:, :3] - goal).square().sum(1) + 10.0 * torch.exp(-20.0 * near).sum(1)
                cost = cost + 0.01 * u.square().sum(1) + 0.1 * (nominal[t] * noise[t]).sum(1)
        weight = torch.softmax(-cost.float(), 0)
        better = (nominal + torch.einsum("p,tpa->ta", weight, noise)).clamp(-1.0, 1.0)
        nominal.copy_(torch.roll(better, -1, 0))

    run = capture(plan, s) if graphed else plan

    def step() -> Any:
        turn[0] += 1
        start.copy_(torch.from_numpy(measured[turn[0] % 4]))
        run()
        return nominal[-1].cpu().numpy()

    return step


# Games: chess positions from their notation, taken apart letter by letter.


PIECES = {letter: i for i, letter in enumerate("PNBRQKpnbrqk")}


class Chess(Dataset[tuple[Tensor, float]]):
    def __init__(self, s: Setup, parsed: bool) -> None:
        rng, letters = np.random.default_rng(0), "PNBRQKpnbrqk"
        self.notes = []
        for _ in range(s.size(4000, 16)):
            rows = []
            for squares in rng.integers(-20, 12, (8, 8)):
                row, gap = "", 0
                for square in squares:
                    if square < 0:
                        gap += 1
                        continue
                    row, gap = row + (str(gap) if gap else "") + letters[square], 0
                rows.append(row + (str(gap) if gap else ""))
            self.notes.append(f"{'/'.join(rows)} {'wb'[rng.integers(2)]} KQkq - {rng.integers(50)} {rng.integers(1, 90)}")
        self.planes = [self.parse(note) for note in self.notes] if parsed else None

    @staticmethod
    def parse(note: str) -> Tensor:
        board, side, castling, _, quiet, _ = note.split()
        planes = np.zeros((18, 8, 8), np.float32)
        for y, row in enumerate(board.split("/")):
            x = 0
            for letter in row:
                if letter.isdigit():
                    x += int(letter)
                else:
                    planes[PIECES[letter], y, x] = 1.0
                    x += 1
        planes[12] = side == "w"
        for i, right in enumerate("KQkq"):
            planes[13 + i] = right in castling
        planes[17] = int(quiet) / 50.0
        return torch.from_numpy(planes)

    def __len__(self) -> int:
        return len(self.notes)

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        return self.planes[index] if self.planes else self.parse(self.notes[index]), (index % 3 - 1.0)


class ChessNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(18, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
            )
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.Conv2d(width, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.head(x).squeeze(1)


def chess_planes(s: Setup, *, workers: bool = False, parsed: bool = False, last: bool = False) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    model = ChessNet(s.size(128, 8), s.size(6, 1)).to(s.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = _loaded(s, Chess(s, parsed), s.size(512, 4), workers)

    def step() -> None:
        planes, result = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            value = model(planes.to(memory_format=layout))
        F.mse_loss(value.float(), result.float()).backward()
        optimizer.step()

    return step


# Crowds: where people walk next, each scene's people pooled by themselves.


class Crowd(nn.Module):
    def __init__(self, width: int, spans: list[tuple[int, int]], together: bool, device: torch.device) -> None:
        super().__init__()
        self.enter, self.cell = nn.Linear(2, width), nn.LSTMCell(2 * width, width)
        self.relative, self.mix, self.out = nn.Linear(2, width), nn.Linear(2 * width, width), nn.Linear(width, 2)
        self.spans, self.together = spans, together
        most = max(end - begin for begin, end in spans)
        rows = [[min(begin + i, end - 1) for i in range(most)] for begin, end in spans]
        real = [[begin + i < end for i in range(most)] for begin, end in spans]
        flat = [scene * most + i for scene, (begin, end) in enumerate(spans) for i in range(end - begin)]
        self.rows, self.real, self.flat = (torch.tensor(part, device=device) for part in (rows, real, flat))

    def pool(self, hidden: Tensor, place: Tensor) -> Tensor:
        if self.together:
            h, p = hidden[self.rows], place[self.rows]
            steps = F.relu(self.relative(p[:, None] - p[:, :, None]))
            both = F.relu(self.mix(torch.cat([steps, h[:, None].expand(-1, h.shape[1], -1, -1)], -1)))
            return both.masked_fill(~self.real[:, None, :, None], 0.0).amax(2).flatten(0, 1)[self.flat]
        pooled = []
        for begin, end in self.spans:
            h, p = hidden[begin:end], place[begin:end]
            steps = F.relu(self.relative(p[None] - p[:, None]))
            pooled.append(F.relu(self.mix(torch.cat([steps, h[None].expand(end - begin, -1, -1)], -1))).amax(1))
        return torch.cat(pooled)

    def forward(self, seen: Tensor, future: int) -> Tensor:
        h = c = seen.new_zeros(seen.shape[1], self.cell.hidden_size)
        place, ahead = seen[0], []
        for t in range(len(seen) + future - 1):
            place = seen[t] if t < len(seen) else place + ahead[-1]
            h, c = self.cell(torch.cat([F.relu(self.enter(place)), self.pool(h, place)], 1), (h, c))
            if t >= len(seen) - 1:
                ahead.append(self.out(h))
        return torch.stack(ahead)


def crowd_paths(s: Setup, *, together: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    sizes = np.random.default_rng(0).integers(3, 24, s.size(8, 2)).tolist()
    ends = np.cumsum(sizes).tolist()
    spans = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    model = Crowd(s.size(64, 8), spans, together, s.device).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": False}))
    seen, walked = torch.randn(4, ends[-1], 2, device=s.device), torch.randn(2, ends[-1], 2, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            ahead = model(seen, 2)
        (ahead.float() - walked).norm(dim=-1).mean().backward()
        optimizer.step()

    return step


# A small language model under Muon, with a running mean of its weights.


def orthogonal(g: Tensor) -> Tensor:
    """Newton and Schulz's iteration, for one matrix or for many of one shape."""
    x = g.to(BF16)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    def __init__(self, matrices: list[nn.Parameter], lr: float, together: bool) -> None:
        self.matrices, self.lr, self.together = matrices, lr, together
        self.momentum = [torch.zeros_like(matrix) for matrix in matrices]
        self.by_shape: dict[Any, list[int]] = {}
        for i, matrix in enumerate(matrices):
            self.by_shape.setdefault(matrix.shape, []).append(i)

    @torch.no_grad()
    def step(self) -> None:
        for matrix, momentum in zip(self.matrices, self.momentum, strict=True):
            assert matrix.grad is not None
            momentum.mul_(0.95).add_(matrix.grad)
        if self.together:
            for shape, which in self.by_shape.items():
                for i, update in zip(which, orthogonal(torch.stack([self.momentum[i] for i in which])).unbind(), strict=True):
                    self.matrices[i].add_(update, alpha=-self.lr * max(1.0, shape[0] / shape[1]) ** 0.5)
            return
        for matrix, momentum in zip(self.matrices, self.momentum, strict=True):
            matrix.add_(orthogonal(momentum), alpha=-self.lr * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


class RootMean(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, self.gain.shape, self.gain, 1e-6)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


class MuonBlock(nn.Module):
    def __init__(self, width: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, RootMean(width, library), RootMean(width, library)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.back = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.back(F.relu(self.wide(self.between(x))).square())


def muon_words(s: Setup, *, together: bool = False, listed: bool = False, library: bool = False) -> Step:
    width, words, length = s.size(512, 16), s.size(8192, 40), s.size(512, 8)
    blocks = [MuonBlock(width, s.size(8, 2), library) for _ in range(s.size(6, 2))]
    model = nn.Sequential(nn.Embedding(words, width), *blocks, RootMean(width, library), nn.Linear(width, words, bias=False)).to(s.device)
    hidden = [parameter for block in blocks for parameter in block.parameters() if parameter.ndim == 2]
    held = {id(parameter) for parameter in hidden}
    others = torch.optim.AdamW([parameter for parameter in model.parameters() if id(parameter) not in held], lr=3e-4, fused=True)
    muon, mean = Muon(hidden, 0.02, together), [parameter.detach().clone() for parameter in model.parameters()]
    ids = torch.randint(words, (s.size(8, 2), length + 1), device=s.device)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        muon.step()
        others.step()
        with torch.no_grad():
            if listed:
                torch._foreach_lerp_(mean, list(model.parameters()), 0.001)
            else:
                for average, parameter in zip(mean, model.parameters(), strict=True):
                    average.lerp_(parameter, 0.001)

    return step


WORKLOADS = (
    written_pair(
        "transport_plans", "unfused-elementwise", "Twelve rounds of Sinkhorn's algorithm between 8192 cells and 8192 in FP32, with a test for the end in each.",
        "torch.compile of the soft minimum", transport_plans, {"compiled": True},
        alone={"sync-stall": {"checked": False}, "precision/tf32": {"tf32": True}}, gpu_bound=True,
    ),
    written_pair(
        "image_codec", "memory-layout", "Training of a codec for pictures with a hyperprior, FP32 with TF32 convolutions, NCHW; divisive norms written out.",
        "channels_last", image_codec, {"last": True},
        alone={"precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written_pair(
        "shop_towers", "unfused-norm", "Two towers on 8192 queries, all against all in FP32; softmax is written out, the share of hits read in each step.",
        "F.cross_entropy", shop_towers, {"library": True},
        alone={"precision": {"autocast": True}, "sync-stall": {"read": False}}, gpu_bound=True,
    ),
    written_pair(
        "next_track", "dtype-casts", "32 sessions in bf16 against two million tracks, whose table is FP32 and cast for each request; attention written out.",
        "the table in bf16", next_track, {"narrow": True},
        alone={"unfused-attention": {"library": True}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "jet_tagger", "unfused-attention", "Training in bf16 autocast on two batches of 256 jets, attention with a bias of all pairs written out; AdamW(foreach=False).",
        "F.scaled_dot_product_attention with the bias", jet_tagger, {"library": True},
        alone={"unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "cell_diffusion", "dtype-casts", "Two steps of a diffusion U-Net in fp16 on 16 pictures, NCHW, whose group norms go to FP32 and back.",
        "group norms in fp16", cell_diffusion, {"narrow": True},
        alone={"memory-layout": {"last": True}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "scan_matching", "unfused-elementwise", "Twelve rounds of iterative closest points, 6144 against 6144: numpy takes each 3 x 3 matrix apart, the error is read.",
        "torch.compile of the search", scan_matching, {"compiled": True},
        alone={"memcpy": {"on_gpu": True}, "sync-stall": {"checked": False}}, gpu_bound=True,
    ),
    written_pair(
        "tick_quantiles", "precision", "Training of a temporal convolutional network with weight norms, FP32 with TF32 convolutions, on windows of a book of orders.",
        "bf16 autocast", tick_quantiles, {"autocast": True},
        alone={"data-loading": {"workers": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "transit_search", "launch-gap", "A star's light folded by each of 80 periods in turn, and each period's height read.",
        "all periods at once", transit_search, {"together": True},
        alone={"sync-stall": {"read": False}, "memcpy": {"ahead": True}}, top=("launch-gap", "sync-stall"),
    ),
    written_pair(
        "board_search", "launch-gap", "A tree search of 24 positions, each by a small convolutional network in FP32; children are compared in a Python loop.",
        "torch.compile(mode='reduce-overhead')", board_search, {"compiled": True},
        alone={"host-bound": {"listed": False}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate", "sync-stall"),
    ),
    written_pair(
        "news_bandit", "launch-gap", "LinUCB over sixty articles, one after another; torch.linalg.inv checks each inverse, clicks are numpy's.",
        "one bmm over the articles", news_bandit, {"together": True},
        alone={"sync-stall": {"checked": False}, "memcpy": {"ahead": True}}, top=("launch-gap", "sync-stall"),
    ),
    written_pair(
        "atom_walkers", "graph-candidate", "Variational Monte Carlo of an atom: eight moves of 2048 walkers, second derivatives coordinate by coordinate.",
        "the step as a CUDA graph", atom_walkers, {"graphed": True},
        alone={"launch-gap": {"together": True}, "precision/tf32": {"tf32": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "sampling_planner", "graph-candidate", "A controller that draws 4096 plans of thirty moments, moment by moment through a small network in FP32.",
        "the plan as a CUDA graph", sampling_planner, {"graphed": True},
        alone={"launch-gap": {"compiled": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "chess_planes", "data-loading", "A residual network in bf16 autocast on 512 chess positions, taken apart letter by letter in the training process.",
        "num_workers=8, persistent_workers and pin_memory", chess_planes, {"workers": True},
        alone={"host-bound": {"parsed": True}, "memory-layout": {"last": True}},
    ),
    written_pair(
        "crowd_paths", "launch-gap", "Training of a recurrent network on eight crowds, pooled one after another at each of five moments; Adam(foreach=False).",
        "one padded tensor of all crowds", crowd_paths, {"together": True},
        alone={"optimizer-foreach": {"fused": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate", "optimizer-foreach"),
    ),
    written_pair(
        "muon_words", "launch-gap", "A small language model in bf16 autocast under Muon, matrix by matrix; norms written out, a running mean weight by weight.",
        "one bmm over the matrices of a shape", muon_words, {"together": True},
        alone={"optimizer-foreach": {"listed": True}, "unfused-norm": {"library": True}}, top=("launch-gap", "graph-candidate", "optimizer-foreach"),
    ),
)  # fmt: skip
