"""Programs written to test predictions, set G: games, fluids, scans, sound, ranking, few-shot learning, Bayesian networks, control, serving.

Each timed fix is what the advice of its rule says and nothing else; global switches are set in the step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


class Ahead:
    """Batches drawn on the host, pinned, and copied on a stream of their own one batch ahead."""

    def __init__(self, draw: Callable[[], tuple[Tensor, ...]], s: Setup) -> None:
        self.draw, self.setup = draw, s
        self.stream = torch.cuda.Stream() if s.cuda else None
        self.batch = self._copy()

    def _copy(self) -> tuple[Tensor, ...]:
        host = [self.setup.pin(part) for part in self.draw()]
        with torch.cuda.stream(self.stream):
            return tuple(part.to(self.setup.device, non_blocking=True) for part in host)

    def next(self) -> tuple[Tensor, ...]:
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for part in self.batch:
                part.record_stream(current)
        return self.batch

    def refill(self) -> None:
        self.batch = self._copy()


# Fluids: the lattice Boltzmann method on nine velocities.

VELOCITIES = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
OPPOSITE = (0, 3, 4, 1, 2, 7, 8, 5, 6)


def collide(f: Tensor, weights: Tensor, ex: Tensor, ey: Tensor) -> Tensor:
    rho = f.sum(0)
    ux, uy = (f * ex).sum(0) / rho, (f * ey).sum(0) / rho
    along = 3.0 * (ex * ux + ey * uy)
    rest = weights * rho * (1.0 + along + 0.5 * along**2 - 1.5 * (ux**2 + uy**2))
    return f - 1.7 * (f - rest)


def lattice_fluid(s: Setup, *, compiled: bool = False, graphed: bool = False) -> Step:
    high, wide, moments = s.size(1024, 8), s.size(2048, 12), s.size(12, 2)
    ex, ey = (torch.tensor([v[axis] for v in VELOCITIES], dtype=torch.float32, device=s.device)[:, None, None] for axis in (0, 1))
    weights = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, device=s.device)[:, None, None]
    back = torch.tensor(OPPOSITE, device=s.device)
    start = weights * (1.0 + 0.01 * torch.rand(high, wide, device=s.device))
    y, x = torch.meshgrid(torch.arange(high, device=s.device), torch.arange(wide, device=s.device), indexing="ij")
    solid = (y - high // 2) ** 2 + (x - wide // 4) ** 2 < (high // 8) ** 2
    meet = s.compile(collide) if compiled else collide

    @torch.no_grad()
    def step() -> Tensor:
        f = start
        for _ in range(moments):
            f = torch.stack([torch.roll(f[i], (vy, vx), (0, 1)) for i, (vx, vy) in enumerate(VELOCITIES)])
            bounced = f[back]
            f = torch.where(solid, bounced, meet(f, weights, ex, ey))
        return f

    return capture(step, s) if graphed else step


# Statistical physics: Metropolis on a chequered lattice of spins.


def flip(spins: Tensor, noise: Tensor, turn: Tensor, beta: float) -> Tensor:
    """`spins` may be int8: they are made floats for the energy, and put back."""
    s = spins.float()
    around = torch.roll(s, 1, 0) + torch.roll(s, -1, 0) + torch.roll(s, 1, 1) + torch.roll(s, -1, 1)
    chance = torch.exp(-2.0 * beta * s * around)
    return torch.where(turn & (noise < chance), -s, s).to(spins.dtype)


def ising_sweeps(s: Setup, *, graphed: bool = False, compiled: bool = False, floats: bool = False) -> Step:
    side, sweeps = s.size(512, 8), s.size(40, 2)
    spins = (torch.rand(side, side, device=s.device) < 0.5).to(torch.float32 if floats else torch.int8) * 2 - 1
    even = (torch.arange(side, device=s.device)[:, None] + torch.arange(side, device=s.device)) % 2 == 0
    turns, one = (even, ~even), s.compile(flip) if compiled else flip

    @torch.no_grad()
    def step() -> Tensor:
        now = spins
        for _ in range(sweeps):
            for turn in turns:
                now = one(now, torch.rand(side, side, device=s.device), turn, 0.44)
        spins.copy_(now)
        return now.float().mean()

    return capture(step, s) if graphed else step


# Meta-learning: MAML on sine waves, task by task.


def functional_mlp(x: Tensor, weights: list[Tensor]) -> Tensor:
    for i in range(0, len(weights), 2):
        x = F.linear(x, weights[i], weights[i + 1])
        x = F.relu(x) if i + 2 < len(weights) else x
    return x


def maml_waves(s: Setup, *, graphed: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    tasks, shots, width = s.size(3, 2), s.size(10, 3), s.size(40, 8)
    net = _mlp(1, width, width, 1).to(s.device)
    how: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=graphed and s.cuda, **how)
    x = torch.rand(tasks, 2, shots, 1, device=s.device) * 10.0 - 5.0
    y = torch.sin(x + torch.rand(tasks, 1, 1, 1, device=s.device))

    def step() -> None:
        optimizer.zero_grad()
        total: Tensor | float = 0.0
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for task in range(tasks):
                fast: list[Tensor] = list(net.parameters())
                for _ in range(3):
                    loss = F.mse_loss(functional_mlp(x[task, 0], fast), y[task, 0])
                    slopes = torch.autograd.grad(loss, fast, create_graph=True)
                    fast = [weight - 0.01 * slope for weight, slope in zip(fast, slopes, strict=True)]
                total = total + F.mse_loss(functional_mlp(x[task, 1], fast), y[task, 1])
        assert isinstance(total, Tensor)
        (total / tasks).backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Few-shot learning: prototypes of letters.


def prototype_episodes(s: Setup, *, masks: bool = True, last: bool = False, fused: bool = False) -> Step:
    way, shot, query, dim = s.size(20, 3), s.size(5, 2), s.size(5, 2), s.size(64, 4)
    blocks = [nn.Sequential(nn.Conv2d(i, dim, 3, padding=1), nn.BatchNorm2d(dim), nn.ReLU(), nn.MaxPool2d(2)) for i in (1, dim, dim, dim)]
    layout = torch.channels_last if last else torch.contiguous_format
    encoder = nn.Sequential(*blocks, nn.Flatten()).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": False}))
    images = torch.rand(way * (shot + query), 1, 28, 28, device=s.device).to(memory_format=layout)
    labels = torch.arange(way, device=s.device).repeat(shot)[torch.randperm(way * shot, device=s.device)]
    wanted = torch.arange(way, device=s.device).repeat(query)

    def step() -> object:
        optimizer.zero_grad()
        support, asked = encoder(images).split([way * shot, way * query])
        if masks:
            prototypes = torch.stack([support[labels == c].mean(0) for c in range(way)])
        else:
            prototypes = (labels == torch.arange(way, device=s.device)[:, None]).float() @ support / shot
        logits = -(asked[:, None] - prototypes).square().sum(-1)
        F.cross_entropy(logits, wanted).backward()
        optimizer.step()
        right = (logits.argmax(1) == wanted).float().mean()
        return right.item() if masks else right

    return step


# A Wasserstein GAN whose critic's slope is held at one.


def wgan_penalty(s: Setup, *, autocast: bool = False, last: bool = False, fused: bool = False) -> Step:
    c, batch, noise = s.size(128, 4), s.size(192, 2), s.size(128, 4)
    up: list[nn.Module] = [nn.ConvTranspose2d(noise, 8 * c, 4), nn.BatchNorm2d(8 * c), nn.ReLU()]
    down: list[nn.Module] = [nn.Conv2d(3, c, 4, 2, 1), nn.LeakyReLU(0.2)]
    for k in (1, 2, 4):
        up += [nn.ConvTranspose2d(16 * c // (2 * k), 8 * c // (2 * k), 4, 2, 1), nn.BatchNorm2d(8 * c // (2 * k)), nn.ReLU()]
        down += [nn.Conv2d(k * c, 2 * k * c, 4, 2, 1), nn.LeakyReLU(0.2)]
    layout = torch.channels_last if last else torch.contiguous_format
    painter = nn.Sequential(*up, nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh()).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    critic = nn.Sequential(*down, nn.Conv2d(8 * c, 1, 4)).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    paints, judges = (torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=fused or None) for net in (painter, critic))
    real = torch.rand(batch, 3, 64, 64, device=s.device).to(memory_format=layout)

    def step() -> None:
        amp = partial(torch.autocast, s.device.type, BF16, enabled=autocast)
        judges.zero_grad()
        with amp():
            with torch.no_grad():
                fake = painter(torch.randn(batch, noise, 1, 1, device=s.device)).float()
            gap = critic(fake).float().mean() - critic(real).float().mean()
            share = torch.rand(batch, 1, 1, 1, device=s.device)
            between = (share * real + (1.0 - share) * fake).requires_grad_()
            score = critic(between).float().sum()
        slope = torch.autograd.grad(score, between, create_graph=True)[0]
        (gap + 10.0 * (slope.flatten(1).norm(2, 1) - 1.0).square().mean()).backward()
        judges.step()
        paints.zero_grad()
        with amp():
            loss = -critic(painter(torch.randn(batch, noise, 1, 1, device=s.device))).float().mean()
        loss.backward()
        paints.step()

    return step


# Point clouds: laser scans that numpy turns, crops and thins out.


class Scans(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __init__(self, points: int, kept: int, many: int) -> None:
        dice = np.random.default_rng(0)
        self.scans = [dice.normal(0.0, 15.0, (points, 4)).astype(np.float32) for _ in range(8)]
        self.kept, self.many = kept, many

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        dice, scan = np.random.default_rng(at), self.scans[at % len(self.scans)].copy()
        angle = dice.uniform(0.0, 2.0 * np.pi)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], dtype=np.float32)
        scan[:, :2] = scan[:, :2] @ turn.T
        scan[:, :3] += dice.normal(0.0, 0.02, (len(scan), 3)).astype(np.float32)
        scan = scan[np.linalg.norm(scan[:, :2], axis=1) < 40.0]
        cells = np.floor(scan[:, :3] / 0.2).astype(np.int64) + 1024
        _, first = np.unique((cells[:, 0] << 24) + (cells[:, 1] << 12) + cells[:, 2], return_index=True)
        chosen = dice.choice(first, self.kept, replace=len(first) < self.kept)
        return torch.from_numpy(scan[chosen]), at % 10


class PointNet(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in pairwise((4, dim, dim, 2 * dim, 8 * dim)):
            layers += [nn.Conv1d(inner, outer, 1), nn.BatchNorm1d(outer), nn.ReLU()]
        self.points, self.head = nn.Sequential(*layers), _mlp(8 * dim, 4 * dim, 10)

    def forward(self, scan: Tensor) -> Tensor:
        return self.head(self.points(scan.mT).amax(-1))


def lidar_scans(s: Setup, *, workers: int = 0, ahead: bool = False, autocast: bool = False) -> Step:
    data = Scans(s.size(15_000, 100), s.size(2048, 16), s.size(4096, 8))

    def loaded() -> Iterator[tuple[Tensor, Tensor]]:
        here = workers if s.cuda else 0
        loader = torch.utils.data.DataLoader(
            data, s.size(16, 2), shuffle=True, num_workers=here, pin_memory=here > 0, persistent_workers=here > 0, drop_last=True,
            multiprocessing_context="fork" if here else None,
        )  # fmt: skip
        while True:
            yield from loader

    batches = loaded()
    copied = Ahead(lambda: next(batches), s) if ahead else None
    model = PointNet(s.size(128, 4)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        scan, kind = copied.next() if copied else (part.to(s.device, non_blocking=workers > 0) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(scan)
        F.cross_entropy(logits.float(), kind).backward()
        optimizer.step()
        if copied:
            copied.refill()

    return step


# Ranking: LambdaRank over all pairs of each query's documents.


def lambda_loss(score: Tensor, gain: Tensor, discount: Tensor, ideal: Tensor) -> Tensor:
    apart = score[:, :, None] - score[:, None, :]
    change = (gain[:, :, None] - gain[:, None, :]).abs() * (discount[:, :, None] - discount[:, None, :]).abs() / ideal[:, None, None]
    better = gain[:, :, None] > gain[:, None, :]
    cost = torch.log(1.0 + torch.exp(-apart.clamp(-50.0, 50.0))) * change
    return torch.where(better, cost, torch.zeros_like(cost)).sum((1, 2)).mean()


def lambda_lists(s: Setup, *, compiled: bool = False, log: bool = True, fused: bool = False) -> Step:
    queries, documents, features = s.size(1024, 2), s.size(160, 5), s.size(136, 6)
    model = _mlp(features, s.size(256, 8), s.size(64, 8), 1).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused or None)
    x = torch.randn(queries, documents, features, device=s.device)
    gain = 2.0 ** torch.randint(5, (queries, documents), device=s.device).float() - 1.0
    falls = 1.0 / torch.log2(torch.arange(documents, device=s.device) + 2.0)
    ideal = (gain.sort(1, descending=True).values * falls).sum(1)
    lost = s.compile(lambda_loss) if compiled else lambda_loss

    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        score = model(x).squeeze(-1)
        with torch.no_grad():
            discount = falls[score.argsort(1, descending=True).argsort(1)]
            ndcg = ((gain * discount).sum(1) / ideal).mean()
        loss = lost(score, gain, discount, ideal)
        loss.backward()
        optimizer.step()
        return (loss.item(), ndcg.item()) if log else (loss, ndcg)

    return step


# Serving: a feed put in order for one reader, with features hashed in Python.

CROSSED = ("reader", "age", "hour", "day", "city", "device", "language", "referrer")


class FeedBlock(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2, self.qkv, self.out = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed = _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class FeedRanker(nn.Module):
    def __init__(self, items: int, buckets: int, dim: int, depth: int, sdpa: bool) -> None:
        super().__init__()
        self.items, self.crosses, self.places = nn.Embedding(items, dim), nn.Embedding(buckets, dim // 4), nn.Parameter(torch.zeros(50, dim))
        self.blocks = nn.Sequential(*(FeedBlock(dim, 4, sdpa) for _ in range(depth)))
        self.head = _mlp(2 * dim + len(CROSSED) * (dim // 4), dim, 1)

    def forward(self, history: Tensor, candidates: Tensor, crosses: Tensor) -> Tensor:
        seen = self.blocks(self.items(history)[None] + self.places[: len(history)])[0, -1]
        parts = [seen.expand(len(candidates), -1), self.items(candidates), self.crosses(crosses).flatten(1)]
        return self.head(torch.cat(parts, 1)).squeeze(1)


def feed_server(s: Setup, *, compiled: bool = False, prepared: bool = False, sdpa: bool = False) -> Step:
    items, buckets, many = s.size(50_000, 60), s.size(100_000, 50), s.size(200, 12)
    model = FeedRanker(items, buckets, s.size(128, 16), s.size(4, 1), sdpa).to(s.device).eval()
    ranker = s.compile(model, mode="reduce-overhead") if compiled else model
    dice = np.random.default_rng(0)
    asked = [(reader, dice.integers(items, size=50).tolist(), dice.integers(items, size=many).tolist()) for reader in range(16)]

    def crossed(reader: int, candidates: list[int]) -> list[list[int]]:
        told = [f"{column}={reader % (7 + i)}" for i, column in enumerate(CROSSED)]
        return [[zlib.crc32(f"{fact}|post={post}".encode()) % buckets for fact in told] for post in candidates]

    ready, turns = [torch.tensor(crossed(reader, candidates)) for reader, _, candidates in asked], count()

    @torch.no_grad()
    def step() -> list[int]:
        turn = next(turns) % len(asked)
        reader, history, candidates = asked[turn]
        crosses = ready[turn] if prepared else torch.tensor(crossed(reader, candidates))
        score = ranker(torch.tensor(history).to(s.device), torch.tensor(candidates).to(s.device), crosses.to(s.device))
        return [candidates[i] for i in score.topk(10).indices.tolist()]

    return step


# Bayesian networks: weights drawn anew in each step.


def drawn_weight(mean: Tensor, rho: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A weight and what it adds to the divergence from a mixture of two normal distributions."""
    sigma = torch.log(1.0 + torch.exp(rho))
    weight = mean + sigma * noise
    posterior = -torch.log(sigma) - 0.5 * ((weight - mean) / sigma) ** 2
    wide, narrow = torch.exp(-0.5 * weight**2), torch.exp(-0.5 * (weight / 0.1) ** 2) / 0.1
    prior = torch.log(0.5 * wide + 0.5 * narrow)
    return weight, (posterior - prior).sum()


def bayes_by_backprop(s: Setup, *, compiled: bool = False, tf32: bool = False, fused: bool = False) -> Step:
    widths = (s.size(1024, 6), s.size(4096, 8), s.size(4096, 8), 10)
    means = nn.ParameterList(0.02 * torch.randn(outer, inner) for inner, outer in pairwise(widths)).to(s.device)
    rhos = nn.ParameterList(torch.full((outer, inner), -4.0) for inner, outer in pairwise(widths)).to(s.device)
    optimizer = torch.optim.Adam([*means, *rhos], lr=1e-4, fused=fused or None)
    x, y = torch.randn(s.size(1024, 4), widths[0], device=s.device), torch.randint(10, (s.size(1024, 4),), device=s.device)
    draw = s.compile(drawn_weight) if compiled else drawn_weight

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad()
        h, apart = x, torch.zeros((), device=s.device)
        for layer, (mean, rho) in enumerate(zip(means, rhos, strict=True)):
            weight, divergence = draw(mean, rho, torch.randn_like(mean))
            h, apart = F.linear(F.relu(h) if layer else h, weight), apart + divergence
        (F.cross_entropy(h, y) + apart / 60_000).backward()
        optimizer.step()

    return step


# Control: a quadratic programme for each of many drones, by ADMM.


def admm_round(x: Tensor, z: Tensor, y: Tensor, q: Tensor, inverse: Tensor, a: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    right = 1e-3 * x - q + torch.bmm(a.mT, (0.1 * z - y)[..., None]).squeeze(-1)
    x = torch.bmm(inverse, right[..., None]).squeeze(-1)
    ax = torch.bmm(a, x[..., None]).squeeze(-1)
    ahead = torch.minimum(torch.maximum(ax + y / 0.1, low), high)
    return x, ahead, y + 0.1 * (ax - ahead), ax


def drone_control(s: Setup, *, checked: bool = True, compiled: bool = False, on_gpu: bool = False) -> Step:
    many, n, m, rounds = s.size(256, 2), s.size(48, 4), s.size(96, 6), s.size(60, 3)
    root, a = torch.randn(many, n, n, device=s.device), torch.randn(many, m, n, device=s.device) / n**0.5
    inverse = torch.linalg.inv(root @ root.mT / n + 1e-3 * torch.eye(n, device=s.device) + 0.1 * a.mT @ a)
    q, where = torch.randn(many, n, device=s.device), s.device if on_gpu else torch.device("cpu")
    one = s.compile(admm_round) if compiled else admm_round

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        low, high = (torch.full((many, m), bound, device=where).to(s.device) for bound in (-0.5, 0.5))
        x, z, y = (torch.zeros(many, size, device=where).to(s.device) for size in (n, m, m))
        for _ in range(rounds):
            before = z
            x, z, y, ax = one(x, z, y, q, inverse, a, low, high)
            if checked:
                primal, dual = (ax - z).abs().max(), 0.1 * torch.bmm(a.mT, (z - before)[..., None]).abs().max()
                if max(primal.item(), dual.item()) < 1e-9:
                    break
        return x

    return step


# Distillation of a convolutional network's features.


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


class Pyramid(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        widths = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(inner, outer, stride), *(Residual(outer, outer, 1) for _ in range(depth - 1))) for inner, outer, stride in widths
        )
        self.head = nn.Linear(4 * width, 100)

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found, self.head(x.mean((2, 3)))


def feature_distillation(s: Setup, *, last: bool = False, log: bool = True, fused: bool = False) -> Step:
    layout, width, depth = torch.channels_last if last else torch.contiguous_format, s.size(64, 4), s.size(2, 1)
    teacher = Pyramid(2 * width, depth).to(s.device, memory_format=layout).eval().requires_grad_(False)  # type: ignore[call-overload]
    student = Pyramid(width, depth).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    widen = nn.ModuleList(nn.Conv2d(k * width, 2 * k * width, 1) for k in (1, 2, 4)).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD([*student.parameters(), *widen.parameters()], lr=0.01, momentum=0.9, weight_decay=5e-4, fused=fused or None)
    images = torch.rand(s.size(384, 2), 3, 32, 32, device=s.device).to(memory_format=layout)
    labels = torch.randint(100, (len(images),), device=s.device)

    def step() -> object:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            with torch.no_grad():
                theirs, taught = teacher(images)
            ours, said = student(images)
            features = sum((F.mse_loss(conv(mine), true) for conv, mine, true in zip(widen, ours, theirs, strict=True)), torch.zeros((), device=s.device))
        soft = F.kl_div(F.log_softmax(said.float() / 4.0, 1), F.log_softmax(taught.float() / 4.0, 1), log_target=True, reduction="batchmean") * 16.0
        hard = F.cross_entropy(said.float(), labels)
        (hard + 0.9 * soft + 10.0 * features).backward()
        optimizer.step()
        return [part.item() for part in (hard, soft, features)] if log else (hard, soft, features)

    return step


# Imaging: an unrolled reconstruction of slices from several coils.


def centred(transform: Callable[..., Tensor], x: Tensor) -> Tensor:
    return torch.fft.fftshift(transform(torch.fft.ifftshift(x, (-2, -1)), norm="ortho"), (-2, -1))


def to_coils(image: Tensor, coils: Tensor) -> Tensor:
    return coils * image[:, None]


def from_coils(each: Tensor, coils: Tensor) -> Tensor:
    return (coils.conj() * each).sum(1)


class Denoiser(nn.Module):
    def __init__(self, dim: int, last: bool) -> None:
        super().__init__()
        self.last = last
        layers: list[nn.Module] = []
        for inner, outer in pairwise((2, dim, dim, dim)):
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.InstanceNorm2d(outer), nn.LeakyReLU(0.2)]
        self.net = nn.Sequential(*layers, nn.Conv2d(dim, 2, 1))

    def forward(self, image: Tensor) -> Tensor:
        x = torch.view_as_real(image).permute(0, 3, 1, 2)
        y = self.net(x if self.last else x.contiguous()).float()
        return torch.view_as_complex(y.permute(0, 2, 3, 1).contiguous())


def unrolled_mri(s: Setup, *, autocast: bool = False, last: bool = False, compiled: bool = False) -> Step:
    slices, coils, side, dim = s.size(4, 1), s.size(16, 2), s.size(320, 16), s.size(64, 4)
    nets = nn.ModuleList(Denoiser(dim, last) for _ in range(s.size(5, 2))).to(s.device, memory_format=torch.channels_last if last else None)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(nets.parameters(), lr=3e-4)
    maps = torch.randn(slices, coils, side, side, dtype=torch.complex64, device=s.device)
    maps = maps / maps.abs().square().sum(1, keepdim=True).sqrt()
    true = torch.randn(slices, side, side, dtype=torch.complex64, device=s.device)
    lines = (torch.arange(side, device=s.device) % 4 == 0).float()
    spread, joined = (s.compile(to_coils), s.compile(from_coils)) if compiled else (to_coils, from_coils)
    with torch.no_grad():
        measured = lines * centred(torch.fft.fft2, to_coils(true, maps))
        first = from_coils(centred(torch.fft.ifft2, measured), maps)

    def step() -> None:
        optimizer.zero_grad()
        image = first
        for net in nets:
            missed = lines * centred(torch.fft.fft2, spread(image, maps)) - measured
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                cleaned = net(image)
            image = image - joined(centred(torch.fft.ifft2, missed), maps) - cleaned
        (image - true).abs().mean().backward()
        optimizer.step()

    return step


# A perceiver: a few latents read many pixels.


class WideNorm(nn.LayerNorm):
    """Works in the type of its weight, whatever the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Reads(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm_q, self.norm_kv, self.norm = WideNorm(dim), WideNorm(dim), WideNorm(dim)
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.feed = _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor, pixels: Tensor | None = None) -> Tensor:
        seen = self.norm_q(x) if pixels is None else self.norm_kv(pixels)
        parts = (self.q(self.norm_q(x)), *self.kv(seen).chunk(2, -1))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(torch.matmul(q, k.mT) * q.shape[-1] ** -0.5, -1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm(x))


def perceiver_pixels(s: Setup, *, sdpa: bool = False, narrow: bool = False, fused: bool = False) -> Step:
    dim, heads, batch, pixels = s.size(512, 16), s.size(8, 2), s.size(6, 2), s.size(16384, 20)
    readers, thinkers = (nn.ModuleList(Reads(dim, heads, sdpa) for _ in range(many)).to(s.device, BF16) for many in (2, s.size(4, 2)))
    for module in (*readers.modules(), *thinkers.modules()):
        if isinstance(module, WideNorm) and not narrow:
            module.float()
    latents = nn.Parameter(torch.randn(s.size(512, 4), dim, device=s.device, dtype=BF16))
    optimizer = torch.optim.AdamW([latents, *readers.parameters(), *thinkers.parameters()], lr=1e-4, fused=fused or None)
    picture = torch.randn(batch, pixels, dim, device=s.device, dtype=BF16)

    def step() -> None:
        optimizer.zero_grad()
        x = latents.expand(batch, -1, -1)
        for turn, reader in enumerate(readers):
            x = reader(x, picture)
            for thinker in thinkers[2 * turn : 2 * turn + 2]:  # type: ignore[union-attr]
                x = thinker(x)
        x.float().square().mean().backward()
        optimizer.step()

    return step


# A world model: frames attend within themselves, then along time.


class RootNorm(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(dim)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Looks(nn.Module):
    def __init__(self, dim: int, heads: int, causal: bool, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.sdpa = heads, causal, sdpa
        self.norm, self.norm_q, self.norm_k = RootNorm(dim, library), RootNorm(dim // heads, library), RootNorm(dim // heads, library)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        q, k = self.norm_q(q), self.norm_k(k)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            if self.causal:
                later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            y = torch.softmax(scores.float(), -1).to(v.dtype) @ v
        return self.out(y.transpose(-3, -2).flatten(-2))


class FrameBlock(nn.Module):
    def __init__(self, dim: int, heads: int, library: bool, sdpa: bool) -> None:
        super().__init__()
        self.space, self.time = Looks(dim, heads, False, library, sdpa), Looks(dim, heads, True, library, sdpa)
        self.norm, self.feed = RootNorm(dim, library), _mlp(dim, 4 * dim, dim, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.space(x)
        x = x + self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norm(x))


def world_model_frames(s: Setup, *, library: bool = False, sdpa: bool = False, graphed: bool = False) -> Step:
    dim, heads = s.size(1024, 16), s.size(16, 2)
    model = nn.Sequential(*(FrameBlock(dim, heads, library, sdpa) for _ in range(s.size(6, 1)))).to(s.device, BF16).eval()
    x = torch.randn(s.size(3, 1), s.size(16, 3), s.size(256, 4), dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return capture(step, s) if graphed else step


# Cameras on a road: frames come as bytes from a decoder.


def traffic_cameras(s: Setup, *, ahead: bool = False, last: bool = False, log: bool = True) -> Step:
    shape = (s.size(16, 2), 3, s.size(720, 32), s.size(1280, 32))
    frames = [torch.randint(256, shape, dtype=torch.uint8) for _ in range(2)]
    layers: list[nn.Module] = []
    for inner, outer, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += [nn.Conv2d(inner, outer, 3, stride, 1), nn.BatchNorm2d(outer), nn.SiLU()]
    layout = torch.channels_last if last else torch.contiguous_format
    model = nn.Sequential(*layers, nn.Conv2d(256, 8, 1)).to(s.device, BF16, memory_format=layout).eval()  # type: ignore[call-overload]
    copied, turns = Prefetcher([(s.pin(frame),) for frame in frames], s) if ahead else None, count()
    mean, std = (torch.tensor(values, device=s.device)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    @torch.no_grad()
    def step() -> object:
        frame = copied.next()[0] if copied else frames[next(turns) % 2].to(s.device)
        x = ((frame.float() / 255.0 - mean) / std).to(BF16, memory_format=layout)
        heat = model(x).sigmoid()
        cars = (heat > 0.5).sum()
        return cars.item() if log else cars

    return step


# Word vectors by negative sampling.


def word_vectors(s: Setup, *, drawn: bool = False, ahead: bool = False, fused: bool = False) -> Step:
    words, dim, batch, wrong = s.size(50_000, 40), s.size(200, 8), s.size(4096, 4), s.size(10, 2)
    middle, around = nn.Embedding(words, dim).to(s.device), nn.Embedding(words, dim).to(s.device)
    how: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam([*middle.parameters(), *around.parameters()], lr=1e-3, **how)
    dice = np.random.default_rng(0)
    often = (1.0 / np.arange(1, words + 1)) ** 0.75
    often /= often.sum()
    text = dice.choice(words, size=s.size(500_000, 100), p=often)

    def draw() -> tuple[Tensor, ...]:
        at = dice.integers(5, len(text) - 5, size=batch)
        near = text[at + dice.integers(1, 5, size=batch) * dice.choice([-1, 1], size=batch)]
        return tuple(torch.from_numpy(part) for part in (text[at], near, dice.choice(words, size=(batch, wrong), p=often)))

    ready, turns = [draw() for _ in range(8)], count()
    copied = Ahead(draw, s) if ahead else None

    def step() -> None:
        if copied:
            word, near, far = copied.next()
        else:
            word, near, far = (part.to(s.device) for part in (ready[next(turns) % 8] if drawn else draw()))
        optimizer.zero_grad()
        x = middle(word)
        right = F.logsigmoid((x * around(near)).sum(-1))
        unlike = F.logsigmoid(-(around(far) @ x[:, :, None]).squeeze(-1)).sum(-1)
        (-(right + unlike)).mean().backward()
        optimizer.step()
        if copied:
            copied.refill()

    return step


# Pictures in a painter's style.


class OwnInstanceNorm(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.scale, self.shift, self.library = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.instance_norm(x, weight=self.scale.to(x.dtype), bias=self.shift.to(x.dtype), eps=1e-3)
        mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), unbiased=False, keepdim=True)
        return self.scale[:, None, None] * ((x - mean) / (variance + 1e-3).sqrt()) + self.shift[:, None, None]


class StyleBlock(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(*_styled(dim, dim, 3, 1, library), nn.ReLU(), *_styled(dim, dim, 3, 1, library))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


def _styled(inner: int, outer: int, kernel: int, stride: int, library: bool) -> list[nn.Module]:
    return [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inner, outer, kernel, stride), OwnInstanceNorm(outer, library)]


def style_pictures(s: Setup, *, library: bool = False, last: bool = False, autocast: bool = False) -> Step:
    c, side, layout = s.size(32, 4), s.size(512, 32), torch.channels_last if last else torch.contiguous_format
    layers: list[nn.Module] = []
    for inner, outer, kernel, stride in ((3, c, 9, 1), (c, 2 * c, 3, 2), (2 * c, 4 * c, 3, 2)):
        layers += [*_styled(inner, outer, kernel, stride, library), nn.ReLU()]
    layers += [StyleBlock(4 * c, library) for _ in range(s.size(5, 1))]
    for inner, outer in ((4 * c, 2 * c), (2 * c, c)):
        layers += [nn.Upsample(scale_factor=2), *_styled(inner, outer, 3, 1, library), nn.ReLU()]
    model = nn.Sequential(*layers, nn.ReflectionPad2d(4), nn.Conv2d(c, 3, 9)).to(s.device, memory_format=layout).eval()  # type: ignore[call-overload]
    pictures = torch.rand(s.size(8, 1), 3, side, side, device=s.device).to(memory_format=layout)

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return (model(pictures).float().clamp(0.0, 1.0) * 255.0).to(torch.uint8)

    return step


# Time series: a linear forecast of its own for each channel.


class ChannelForecast(nn.Module):
    def __init__(self, channels: int, past: int, future: int, together: bool) -> None:
        super().__init__()
        self.together, self.smooth = together, nn.AvgPool1d(25, 1, 12, count_include_pad=False)
        if together:
            self.weight = nn.Parameter(torch.randn(2, channels, past, future) / past)
            self.bias = nn.Parameter(torch.zeros(2, channels, 1, future))
        else:
            self.trends, self.seasons = (nn.ModuleList(nn.Linear(past, future) for _ in range(channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """x is rows x channels x past."""
        trend = self.smooth(x)
        if self.together:
            both = torch.stack([trend, x - trend]).transpose(1, 2)
            each = torch.baddbmm(self.bias.flatten(0, 1), both.flatten(0, 1), self.weight.flatten(0, 1))
            return each.view(2, x.shape[1], len(x), -1).sum(0).transpose(0, 1)
        season = x - trend
        each = [low(trend[:, i]) + high(season[:, i]) for i, (low, high) in enumerate(zip(self.trends, self.seasons, strict=True))]
        return torch.stack(each, 1)


def channel_forecast(s: Setup, *, together: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    channels, past, future = s.size(32, 3), s.size(336, 30), s.size(96, 4)
    model = ChannelForecast(channels, past, future, together).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": False}))
    x, y = (torch.randn(s.size(128, 2), channels, length, device=s.device) for length in (past, future))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return step


# Games: Q-learning from frames that numpy keeps.


def replay_frames(s: Setup, *, on_gpu: bool = False, ahead: bool = False, fused: bool = False) -> Step:
    kept, batch, moves = s.size(12_000, 40), s.size(512, 2), 6
    dice = np.random.default_rng(0)
    frames: NDArray[np.uint8] = dice.integers(256, size=(kept, 84, 84), dtype=np.uint8)
    acted, earned = dice.integers(moves, size=kept), dice.choice([-1.0, 0.0, 1.0], size=kept).astype(np.float32)
    reach = np.arange(5)

    def draw() -> tuple[Tensor, ...]:
        at = dice.integers(0, kept - 5, size=batch)
        return tuple(torch.from_numpy(part) for part in (frames[at[:, None] + reach], acted[at + 3], earned[at + 3]))

    stored = [torch.from_numpy(part).to(s.device) for part in (frames, acted, earned)] if on_gpu else []
    steps_on = torch.arange(5, device=s.device)

    def draw_there() -> tuple[Tensor, ...]:
        at = torch.randint(kept - 5, (batch, 1), device=s.device)
        return stored[0][at + steps_on], stored[1][at[:, 0] + 3], stored[2][at[:, 0] + 3]

    def network() -> nn.Sequential:
        convs = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*convs, nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, moves)).to(s.device)

    online, target = network(), network().requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=fused or None)
    copied = Ahead(draw, s) if ahead else None

    def step() -> None:
        if copied:
            seen, act, reward = copied.next()
        else:
            seen, act, reward = draw_there() if on_gpu else (part.to(s.device) for part in draw())
        now, later = seen[:, :4].float() / 255.0, seen[:, 1:].float() / 255.0
        with torch.no_grad():
            best = online(later).argmax(1, keepdim=True)
            aim = reward + 0.99 * target(later).gather(1, best).squeeze(1)
        optimizer.zero_grad()
        F.smooth_l1_loss(online(now).gather(1, act[:, None]).squeeze(1), aim).backward()
        optimizer.step()
        if copied:
            copied.refill()

    return step


# Sound: drums taken out of a mix.


class Excerpts(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, mix: Tensor, drums: Tensor, length: int) -> None:
        self.mix, self.drums, self.length = mix, drums, length

    def __len__(self) -> int:
        return (self.mix.shape[1] - self.length) // 1024

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        part = slice(1024 * at, 1024 * at + self.length)
        return self.mix[:, part], self.drums[:, part]


class WaveUNet(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(nn.Conv1d(inner, outer, 15, padding=7) for inner, outer in pairwise((2, *widths)))
        self.middle = nn.Conv1d(widths[-1], widths[-1], 15, padding=7)
        above = (*widths[1:], widths[-1])
        self.ups = nn.ModuleList(nn.Conv1d(lower + skip, skip, 5, padding=2) for lower, skip in reversed(list(zip(above, widths, strict=True))))
        self.out = nn.Conv1d(widths[0] + 2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        sound, kept = x, []
        for down in self.downs:
            x = F.leaky_relu(down(x), 0.2)
            kept.append(x)
            x = x[:, :, ::2]
        x = F.leaky_relu(self.middle(x), 0.2)
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2.0, mode="linear")
            x = F.leaky_relu(up(torch.cat([x, kept.pop()], 1)), 0.2)
        return torch.tanh(self.out(torch.cat([x, sound], 1)))


def drum_stems(s: Setup, *, autocast: bool = False, workers: int = 0, ahead: bool = False) -> Step:
    length, widths = s.size(32768, 64), (64, 128, 192, 256, 320, 384) if not s.tiny else (4, 6)
    mix, drums = (torch.rand(2, s.size(3_000_000, 8000)) - 0.5 for _ in range(2))

    def loaded() -> Iterator[tuple[Tensor, Tensor]]:
        here = workers if s.cuda else 0
        loader = torch.utils.data.DataLoader(
            Excerpts(mix, drums, length), s.size(16, 2), shuffle=True, num_workers=here, pin_memory=here > 0, persistent_workers=here > 0, drop_last=True,
            multiprocessing_context="fork" if here else None,
        )  # fmt: skip
        while True:
            yield from loader

    batches = loaded()
    copied = Ahead(lambda: next(batches), s) if ahead else None
    model = WaveUNet(widths).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        sound, wanted = copied.next() if copied else (part.to(s.device, non_blocking=workers > 0) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            found = model(sound)
        F.l1_loss(found.float(), wanted).backward()
        optimizer.step()
        if copied:
            copied.refill()

    return step


WORKLOADS = (
    written_pair(
        "lattice_fluid", "unfused-elementwise", "Twelve moments of a fluid by the lattice Boltzmann method on 1024 x 2048 cells around a pillar.",
        "torch.compile of the collision", lattice_fluid, {"compiled": True},
        alone={"graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "ising_sweeps", "graph-candidate", "Forty sweeps of Metropolis over 512 x 512 spins, which are int8 and made floats for each half.",
        "the step as a CUDA graph", ising_sweeps, {"graphed": True},
        alone={"unfused-elementwise": {"compiled": True}, "dtype-casts": {"floats": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "maml_waves", "graph-candidate", "MAML on sine waves: three tasks with three inner steps each, through second derivatives, under Adam(foreach=False).",
        "the step as a CUDA graph", maml_waves, {"graphed": True},
        alone={"optimizer-foreach": {"fused": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "prototype_episodes", "sync-stall", "Prototypes of twenty letters by a boolean mask each, and the share of right answers read, under Adam(foreach=False).",
        "a product with the masks, and no reading", prototype_episodes, {"masks": False},
        alone={"memory-layout": {"last": True}, "optimizer-foreach": {"fused": True}}, top=("sync-stall", "launch-gap"),
    ),
    written_pair(
        "wgan_penalty", "precision", "A Wasserstein GAN with gradient penalty on 192 pictures of 64 x 64, FP32 convolutions that take TF32, NCHW.",
        "bf16 autocast", wgan_penalty, {"autocast": True}, alone={"memory-layout": {"last": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "lidar_scans", "data-loading", "A PointNet on laser scans that numpy turns, crops and thins out in the training process.",
        "num_workers=8, persistent_workers and pin_memory", lidar_scans, {"workers": 8},
        alone={"memcpy": {"ahead": True}, "precision": {"autocast": True}},
    ),
    written_pair(
        "lambda_lists", "unfused-elementwise", "LambdaRank over all pairs of 160 documents of 1024 queries; loss and NDCG are read in each step.",
        "torch.compile of the loss", lambda_lists, {"compiled": True},
        alone={"sync-stall": {"log": False}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "feed_server", "launch-gap", "A small transformer puts 200 posts in order for one reader a call; Python hashes eight features of each post.",
        "torch.compile(mode='reduce-overhead')", feed_server, {"compiled": True},
        alone={"host-bound": {"prepared": True}, "unfused-attention": {"sdpa": True}}, top=("launch-gap", "host-bound", "graph-candidate"),
    ),
    written_pair(
        "bayes_by_backprop", "unfused-elementwise", "Bayes by backprop in FP32 without TF32: 21 million weights drawn in each step, and their divergence written out.",
        "torch.compile of the drawing", bayes_by_backprop, {"compiled": True},
        alone={"precision/tf32": {"tf32": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "drone_control", "sync-stall", "Sixty rounds of ADMM for 256 quadratic programmes, with two readings a round to stop early; bounds are made on the host.",
        "no test for the end", drone_control, {"checked": False},
        alone={"launch-gap": {"compiled": True}, "memcpy": {"on_gpu": True}}, top=("sync-stall", "launch-gap"),
    ),
    written_pair(
        "feature_distillation", "memory-layout", "Distillation of a residual network's features in bf16 autocast, NCHW; three losses are read in each step.",
        "channels_last", feature_distillation, {"last": True}, alone={"sync-stall": {"log": False}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "unrolled_mri", "precision", "Training of five unrolled rounds that rebuild slices from 16 coils: FFTs, complex products, and small FP32 networks.",
        "bf16 autocast of the networks", unrolled_mri, {"autocast": True},
        alone={"memory-layout": {"last": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written_pair(
        "perceiver_pixels", "unfused-attention", "bf16 training of 512 latents that attend to 16,384 pixels, attention written out, layer norms in FP32.",
        "F.scaled_dot_product_attention", perceiver_pixels, {"sdpa": True},
        alone={"dtype-casts": {"narrow": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "world_model_frames", "unfused-norm", "bf16 inference on frames that attend in space and along time; RMSNorm, of queries and keys too, and attention written out.",
        "F.rms_norm", world_model_frames, {"library": True}, alone={"unfused-attention": {"sdpa": True}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "traffic_cameras", "memcpy", "A detector in bf16, NCHW, on sixteen frames of 720 x 1280 in bytes from pageable memory; the cars are counted in each step.",
        "pinned batches, copied ahead on a stream of their own", traffic_cameras, {"ahead": True},
        alone={"memory-layout": {"last": True}, "sync-stall": {"log": False}}, top=("memcpy", "memory-layout"),
    ),
    written_pair(
        "word_vectors", "host-bound", "Word vectors by negative sampling; numpy draws 40,960 wrong words by their frequency in each step; Adam(foreach=False).",
        "draw the words beforehand", word_vectors, {"drawn": True}, alone={"memcpy": {"ahead": True}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "style_pictures", "unfused-norm", "Eight pictures of 512 x 512 put in a painter's style, FP32 with TF32 convolutions, NCHW; instance norm written out.",
        "F.instance_norm", style_pictures, {"library": True}, alone={"memory-layout": {"last": True}, "precision": {"autocast": True}}, gpu_bound=True,
    ),
    written_pair(
        "channel_forecast", "launch-gap", "Training of two linear layers for each of 32 channels of a series, one after another, under Adam(foreach=False).",
        "one baddbmm over channels", channel_forecast, {"together": True},
        alone={"optimizer-foreach": {"fused": True}, "precision": {"autocast": True}}, top=("launch-gap", "optimizer-foreach"),
    ),
    written_pair(
        "replay_frames", "host-bound", "Double Q-learning on 512 transitions that numpy gathers from a memory of frames in each step.",
        "the memory on the GPU", replay_frames, {"on_gpu": True}, alone={"memcpy": {"ahead": True}, "optimizer-foreach": {"fused": True}},
        top=("host-bound", "memcpy"),
    ),
    written_pair(
        "drum_stems", "precision", "Training of a Wave-U-Net in FP32 with TF32 convolutions on excerpts cut in memory by a loader without workers.",
        "bf16 autocast", drum_stems, {"autocast": True}, alone={"data-loading": {"workers": 8}, "memcpy": {"ahead": True}}, gpu_bound=True,
    ),
)  # fmt: skip
