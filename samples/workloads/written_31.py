"""Programs by an author who has not read the rules: scanned forests, a robot that plans, voices in a courtroom.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Forests: which point of a laser scan is trunk, branch, leaf or ground (DGCNN).


def nearest(x: Tensor, k: int) -> Tensor:
    """The k nearest of each point, x being (clouds, points, features)."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x = x.detach().float()
        inner = 2.0 * torch.matmul(x, x.transpose(2, 1))
        square = (x**2).sum(2, keepdim=True)
        return (inner - square - square.transpose(2, 1)).topk(k, dim=-1).indices


class EdgeConv(nn.Module):
    def __init__(self, inner: int, widths: tuple[int, ...], k: int, layout: torch.memory_format) -> None:
        super().__init__()
        self.k, self.layout = k, layout
        layers: list[nn.Module] = []
        last = 2 * inner
        for width in widths:
            layers += [nn.Conv2d(last, width, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
            last = width
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        clouds, points, width = x.shape
        index = nearest(x, self.k) + torch.arange(clouds, device=x.device)[:, None, None] * points
        near = x.reshape(clouds * points, width)[index.view(-1)].view(clouds, points, self.k, width)
        own = x[:, :, None].expand(-1, -1, self.k, -1)
        edges = torch.cat([near - own, own], 3).permute(0, 3, 1, 2).contiguous(memory_format=self.layout)
        return self.body(edges).max(dim=-1).values.transpose(1, 2)


class PointLayer(nn.Module):
    def __init__(self, inner: int, out: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inner, out, bias=False), nn.BatchNorm1d(out)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.linear(x)), 0.2)


class ForestNet(nn.Module):
    def __init__(self, width: int, whole: int, classes: int, k: int, layout: torch.memory_format) -> None:
        super().__init__()
        self.edges = nn.ModuleList(
            [EdgeConv(3, (width, width), k, layout), EdgeConv(width, (width, width), k, layout), EdgeConv(width, (width,), k, layout)]
        )
        self.whole = PointLayer(3 * width, whole)
        self.one, self.two, self.drop = PointLayer(whole + 3 * width, whole // 2), PointLayer(whole // 2, whole // 4), nn.Dropout(0.5)
        self.head = nn.Linear(whole // 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        clouds, points, _ = x.shape
        found = []
        for layer in self.edges:
            x = layer(x)
            found.append(x)
        local = torch.cat(found, 2)
        whole = self.whole(local.flatten(0, 1)).view(clouds, points, -1).max(dim=1, keepdim=True).values
        x = torch.cat([whole.expand(-1, points, -1), local], 2).flatten(0, 1)
        return self.head(self.drop(self.two(self.one(x)))).float()


def forest_lidar(
    s: Setup,
    *,
    tf32: bool = False,
    autocast: bool = False,
    channels_last: bool = False,
    compiled: bool = False,
    read: bool = True,
    fused: bool = False,
) -> Step:
    """DGCNN in training, FP32, on 16 plots of 2048 points that NumPy turns and shakes; loss and accuracy are read each step."""
    clouds, points, classes, k = s.size(16, 2), s.size(2048, 24), 5, s.size(20, 4)
    rng = np.random.default_rng(310)
    plots = rng.standard_normal((64, points, 3)).astype(np.float32) * np.array([1.0, 1.0, 2.5], dtype=np.float32)
    kinds = np.clip((plots[..., 2] + 4.0) * 0.6, 0, classes - 1).astype(np.int64)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with s.device:
        model = ForestNet(s.size(64, 8), s.size(1024, 32), classes, k, layout).to(memory_format=layout)
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer, log = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=fused or None), [0.0, 0.0]

    def batch() -> tuple[Tensor, Tensor]:
        picked = rng.integers(0, len(plots), clouds)
        turn = rng.random(clouds) * 2.0 * np.pi
        matrix = np.zeros((clouds, 3, 3), dtype=np.float32)
        matrix[:, 0, 0], matrix[:, 1, 1], matrix[:, 0, 1], matrix[:, 1, 0] = np.cos(turn), np.cos(turn), -np.sin(turn), np.sin(turn)
        matrix[:, 2, 2] = 1.0
        cloud = plots[picked] @ matrix
        cloud += np.clip(0.01 * rng.standard_normal(cloud.shape, dtype=np.float32), -0.05, 0.05)
        return torch.from_numpy(cloud), torch.from_numpy(kinds[picked])

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cloud, kind = (part.to(s.device) for part in batch())
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(cloud)
        target = kind.view(-1)
        smooth = torch.zeros_like(logits).scatter(1, target[:, None], 1.0) * 0.8 + (1.0 - 0.8) / classes
        loss = -(smooth * F.log_softmax(logits, dim=1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (logits.argmax(1) == target).float().mean()
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + right.item()
        else:
            noted.add_(torch.stack([loss.detach(), right]))
        return loss.detach()

    return step


# A robot: plans its next move in a learnt space by sampling (MPPI of TD-MPC2).


class OwnNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


class Simplex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x.view(*x.shape[:-1], -1, 8), -1).flatten(-2)


def tower(inner: int, width: int, out: int, library: bool, simplex: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for last in (inner, width):
        layers += [nn.Linear(last, width), OwnNorm(width, library), nn.Mish()]
    layers.append(nn.Linear(width, out))
    return nn.Sequential(*layers, OwnNorm(out, library), Simplex()) if simplex else nn.Sequential(*layers)


class Imagined(nn.Module):
    """What the robot has learnt: an encoder, dynamics, rewards, a policy and five critics."""

    def __init__(self, seen: int, moves: int, width: int, bins: int, critics: int, library: bool) -> None:
        super().__init__()
        self.encoder = tower(seen, width, width, library, simplex=True)
        self.dynamics = tower(width + moves, width, width, library, simplex=True)
        self.reward, self.policy = tower(width + moves, width, bins, library), tower(width, width, moves, library)
        self.critics = nn.ModuleList(tower(width + moves, width, bins, library) for _ in range(critics))
        self.register_buffer("bins", torch.linspace(-10.0, 10.0, bins))

    def number(self, logits: Tensor) -> Tensor:
        x = (torch.softmax(logits, -1) * self.bins).sum(-1)
        return torch.sign(x) * (torch.exp(x.abs()) - 1.0)

    def act(self, z: Tensor) -> Tensor:
        return torch.tanh(self.policy(z))

    def worth(self, z: Tensor, moves: Tensor) -> Tensor:
        total, discount = torch.zeros_like(z[..., 0]), 1.0
        for n in range(moves.shape[2]):
            both = torch.cat([z, moves[:, :, n]], -1)
            total = total + discount * self.number(self.reward(both))
            z = self.dynamics(both)
            discount *= 0.99
        both = torch.cat([z, self.act(z)], -1)
        return total + discount * torch.stack([self.number(critic(both)) for critic in self.critics]).mean(0)

    def forward(self, z: Tensor, mean: Tensor, std: Tensor, noise: Tensor, own: Tensor, elites: int) -> tuple[Tensor, ...]:
        """One round: draw, imagine, keep the best. Moves are (robots, samples, moments, joints)."""
        drawn = (mean[:, None] + std[:, None] * noise).clamp(-1.0, 1.0)
        moves = torch.cat([own, drawn], 1)
        value = torch.nan_to_num(self.worth(z[:, None].expand(-1, moves.shape[1], -1), moves))
        best = value.topk(elites, dim=1)
        kept = moves.gather(1, best.indices[:, :, None, None].expand(-1, -1, *moves.shape[2:]))
        score = torch.exp(0.5 * (best.values - best.values[:, :1]))
        score = score / (score.sum(1, keepdim=True) + 1e-9)
        mean = (score[:, :, None, None] * kept).sum(1)
        std = ((score[:, :, None, None] * (kept - mean[:, None]) ** 2).sum(1) + 1e-9).sqrt().clamp(0.05, 2.0)
        return mean, std, kept, score, best.values.mean(1)


def pantry_robot(
    s: Setup,
    *,
    robots: int = 1,
    compiled: bool = False,
    graphed: bool = False,
    library: bool = False,
    tf32: bool = False,
    packed: bool = False,
) -> Step:
    """TD-MPC2 plans one move of one arm, FP32: six rounds of 512 drawn futures of three moments; move, worth and spread are read."""
    seen, joints, width, moments = s.size(48, 6), s.size(8, 3), s.size(512, 16), s.size(3, 2)
    samples, owned, elites, rounds = s.size(512, 12), s.size(24, 2), s.size(64, 4), s.size(6, 2)
    rng = np.random.default_rng(311)
    states = [torch.from_numpy(rng.standard_normal((robots, seen), dtype=np.float32)) for _ in range(8)]
    with s.device:
        model = Imagined(seen, joints, width, s.size(101, 7), s.size(5, 2), library).eval()
        state, start = torch.zeros(robots, seen), torch.zeros(robots, moments, joints)
        move, worth, spread = torch.zeros(robots, joints), torch.zeros(robots), torch.zeros(robots)
    refine = s.compile(model, dynamic=False) if compiled else model
    turn, log = counter(), [0.0, 0.0]

    def plan() -> None:
        z = model.encoder(state)
        mean, std = torch.cat([start[:, 1:], torch.zeros_like(start[:, :1])], 1), torch.full_like(start, 2.0)
        dream, own = z[:, None].expand(-1, owned, -1), []
        for _ in range(moments):
            own.append((model.act(dream) + 0.1 * torch.randn(robots, owned, joints, device=s.device)).clamp(-1.0, 1.0))
            dream = model.dynamics(torch.cat([dream, own[-1]], -1))
        led = torch.stack(own, 2)
        for _ in range(rounds):
            noise = torch.randn(robots, samples - owned, moments, joints, device=s.device)
            mean, std, kept, score, value = refine(z, mean, std, noise, led, elites)
        gumbel = -torch.log(-torch.log(torch.rand_like(score).clamp(1e-9, 1.0 - 1e-6)))
        chosen = (torch.log(score + 1e-9) + gumbel).argmax(1)
        start.copy_(mean)
        move.copy_(kept[torch.arange(robots, device=s.device), chosen, 0])
        worth.copy_(value)
        spread.copy_(std.mean((1, 2)))

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    with torch.no_grad():
        work = capture(plan, s) if graphed else plan

    @torch.no_grad()
    def step() -> list[list[float]]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        state.copy_(states[next(turn) % len(states)])
        work()
        if packed:
            rows = torch.cat([move, worth[:, None], spread[:, None]], 1).tolist()
            moves, value, wide = [row[:-2] for row in rows], sum(row[-2] for row in rows) / robots, sum(row[-1] for row in rows) / robots
            failed = any(math.isnan(joint) for joints_of in moves for joint in joints_of)
        else:
            failed, value, wide = bool(torch.isnan(move).any()), worth.mean().item(), spread.mean().item()
            moves = move.tolist()
        if failed:
            raise FloatingPointError("the plan is no number")
        log[0], log[1] = log[0] + value, log[1] + wide
        return moves

    return step


# A courtroom: two who speak at once are told apart (SepFormer: attention within and among chunks).


class Attend(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.one(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) * (width // self.heads) ** -0.5
            y = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.relu(self.up(self.two(x))))


class WholeNorm(nn.Module):
    """Norm over all that belongs to a clip: (clips, width, chunks, chunk)."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.bias, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.group_norm(x, 1, self.gain, self.bias, 1e-6)
        x = x.float()
        mean = x.mean((1, 2, 3), keepdim=True)
        var = ((x - mean) ** 2).mean((1, 2, 3), keepdim=True)
        return self.gain[:, None, None] * (x - mean) / torch.sqrt(var + 1e-6) + self.bias[:, None, None]


class TwoPaths(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, longest: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.within, self.among = Attend(width, heads, inner, sdpa), Attend(width, heads, inner, sdpa)
        self.one, self.two = WholeNorm(width, library), WholeNorm(width, library)
        angle = torch.arange(longest)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
        self.register_buffer("place", torch.cat([angle.sin(), angle.cos()], 1))

    def forward(self, x: Tensor) -> Tensor:
        clips, width, chunks, chunk = x.shape
        y = x.permute(0, 2, 3, 1).reshape(clips * chunks, chunk, width)
        y = self.within(y + self.place[:chunk]).view(clips, chunks, chunk, width)
        x = x + self.one(y.permute(0, 3, 1, 2))
        y = x.permute(0, 3, 2, 1).reshape(clips * chunk, chunks, width)
        y = self.among(y + self.place[:chunks]).view(clips, chunk, chunks, width)
        return x + self.two(y.permute(0, 3, 2, 1))


class Separator(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, blocks: int, chunk: int, people: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.chunk, self.people = chunk, people
        self.encoder, self.decoder = nn.Conv1d(1, width, 16, 8, bias=False), nn.ConvTranspose1d(width, 1, 16, 8, bias=False)
        self.norm, self.enter = nn.GroupNorm(1, width), nn.Conv1d(width, width, 1)
        self.blocks = nn.Sequential(*(TwoPaths(width, heads, inner, 512, sdpa, library) for _ in range(blocks)))
        self.spread, self.prelu = nn.Conv2d(width, people * width, 1), nn.PReLU()
        self.tanh, self.gate, self.leave = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1, bias=False)

    def forward(self, sound: Tensor) -> Tensor:
        coded = F.relu(self.encoder(sound[:, None]))
        clips, width, frames = coded.shape
        hop = self.chunk // 2
        x = self.enter(self.norm(coded))
        more = -(frames - self.chunk) % hop
        x = F.pad(x, (hop, more + hop)).unfold(2, self.chunk, hop)
        x = self.spread(self.prelu(self.blocks(x)))
        chunks = x.shape[2]
        x = x.reshape(clips * self.people, width, chunks, self.chunk)
        left, right = x[..., :hop], x[..., hop:]
        whole = F.pad(left, (0, 0, 0, 1)) + F.pad(right, (0, 0, 1, 0))
        x = whole.flatten(2)[..., hop : hop + frames]
        mask = F.relu(self.leave(torch.tanh(self.tanh(x)) * torch.sigmoid(self.gate(x))))
        heard = mask.view(clips, self.people, width, frames) * coded[:, None]
        return self.decoder(heard.flatten(0, 1)).view(clips, self.people, -1).float()


def ratio(guess: Tensor, truth: Tensor) -> Tensor:
    """SI-SNR in decibels over the last dimension."""
    guess, truth = guess - guess.mean(-1, keepdim=True), truth - truth.mean(-1, keepdim=True)
    along = (guess * truth).sum(-1, keepdim=True) * truth / ((truth**2).sum(-1, keepdim=True) + 1e-8)
    noise = guess - along
    return 10.0 * torch.log10((along**2).sum(-1) / ((noise**2).sum(-1) + 1e-8) + 1e-8)


def courtroom_voices(
    s: Setup,
    *,
    fused: bool = False,
    sdpa: bool = False,
    compiled: bool = False,
    library: bool = False,
    pinned: bool = False,
) -> Step:
    """SepFormer in training on eight mixtures of two seconds, fp16 autocast with a GradScaler, clipped gradients, attention written out."""
    clips, length, chunk = s.size(8, 2), s.size(16_000, 400), s.size(100, 10)
    half = torch.float16 if s.cuda else BF16
    rng = np.random.default_rng(312)
    time = np.arange(length, dtype=np.float32) / 8000.0
    batches = []
    for _ in range(2):
        pitch = rng.uniform(90.0, 280.0, (clips, 2, 1)).astype(np.float32)
        voice = sum(np.sin(2.0 * np.pi * n * pitch * time) / n for n in range(1, 6)) * (np.sin(7.0 * pitch * time / 50.0) > -0.3)
        voice = voice + 0.01 * rng.standard_normal(voice.shape)
        batches.append(torch.from_numpy(voice.astype(np.float32)))
    if pinned:
        batches = [s.pin(batch) for batch in batches]
    with s.device:
        model = Separator(s.size(256, 16), s.size(8, 2), s.size(1024, 32), s.size(4, 1), chunk, 2, sdpa, library)
        noted = torch.zeros(())
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-4, fused=fused or None)
    scaler, turn = torch.amp.GradScaler(s.device.type, init_scale=1024.0, enabled=s.cuda), counter()

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        voices = batches[next(turn) % len(batches)].to(s.device, non_blocking=pinned)
        with torch.autocast(s.device.type, half):
            guess = network(voices.sum(1))
        truth = voices[..., : guess.shape[-1]]
        straight, crossed = ratio(guess, truth).mean(1), ratio(guess, truth.flip(1)).mean(1)
        loss = -torch.maximum(straight, crossed).clamp(max=30.0).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        noted.add_(loss.detach())
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "forest_lidar", "DGCNN in training on 16 plots of 2048 points, FP32, NCHW edges; NumPy turns the plots, two numbers are read.",
        "TF32; bf16 autocast; channels_last; torch.compile of the network; nothing is read; fused AdamW", forest_lidar,
        {
            "precision": {"tf32": True}, "precision/bf16": {"autocast": True}, "memory-layout": {"channels_last": True},
            "unfused-elementwise": {"compiled": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"fused": True},
        },
    ),
    written(
        "pantry_robot", "TD-MPC2 plans one move of one arm, FP32: six rounds of 512 futures, layer norms written out, four reads.",
        "torch.compile of a round; CUDA graph of the plan; F.layer_norm; TF32; eight arms at once; one read", pantry_robot,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "unfused-norm": {"library": True},
            "precision": {"tf32": True}, "low-arithmetic-intensity": {"robots": 8}, "sync-stall": {"packed": True},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "courtroom_voices", "SepFormer in training on eight mixtures of two seconds, fp16 autocast, GradScaler; attention and norms written out.",
        "fused Adam; scaled_dot_product_attention; torch.compile of the network; F.group_norm; pinned voices", courtroom_voices,
        {
            "amp-scaler-sync": {"fused": True}, "unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True},
            "unfused-norm": {"library": True}, "memcpy": {"pinned": True},
        },
    ),
)  # fmt: skip
