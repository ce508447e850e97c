"""Deep learning in its authors' own code: songs to queue, a game that is dreamt ahead, bells out of noise, a notary's next words.

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


# Karaoke: which song a guest queues next (HSTU, trained by a sampled softmax).


class BucketedBias(nn.Module):
    """What is added to a score for the time and the places between two songs."""

    def __init__(self, longest: int, buckets: int) -> None:
        super().__init__()
        self.longest, self.buckets = longest, buckets
        self.ts_w = nn.Parameter(torch.empty(buckets + 1).normal_(mean=0, std=0.02))
        self.pos_w = nn.Parameter(torch.empty(2 * longest - 1).normal_(mean=0, std=0.02))

    def forward(self, timestamps: Tensor) -> Tensor:
        n = self.longest
        t = F.pad(self.pos_w, [0, n]).repeat(n)
        t = t[:-n].reshape(1, n, 3 * n - 2)
        r = (2 * n - 1) // 2
        ext = torch.cat([timestamps, timestamps[:, n - 1 : n]], dim=1)
        apart = torch.log(torch.abs(ext[:, 1:, None] - ext[:, None, :-1]).clamp(min=1).float()) / 0.301
        bucketed = torch.clamp(apart.long(), min=0, max=self.buckets).detach()
        rel_ts = torch.index_select(self.ts_w, dim=0, index=bucketed.view(-1)).view(-1, n, n)
        return t[:, :, r:-r] + rel_ts


class SequentialTransductionUnit(nn.Module):
    def __init__(self, width: int, heads: int, head: int, longest: int, buckets: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.head, self.dropout = heads, head, dropout
        self.uvqk = nn.Parameter(torch.empty(width, 4 * heads * head).normal_(mean=0, std=0.02))
        self.rab, self.o = BucketedBias(longest, buckets), nn.Linear(heads * head, width)

    def forward(self, x: Tensor, timestamps: Tensor, causal: Tensor) -> Tensor:
        b, n, width = x.shape
        mixed = F.silu(torch.mm(F.layer_norm(x, (width,), eps=1e-6).view(b * n, width), self.uvqk))
        u, v, q, k = (part.view(b, n, self.heads, self.head) for part in mixed.chunk(4, dim=1))
        qk = torch.einsum("bnhd,bmhd->bhnm", q, k)
        qk = qk + self.rab(timestamps)[:, None]
        qk = F.silu(qk) / n
        qk = qk * causal[None, None]
        attended = torch.einsum("bhnm,bmhd->bnhd", qk, v).reshape(b, n, -1)
        gated = u.reshape(b, n, -1) * F.layer_norm(attended, (attended.shape[-1],), eps=1e-6)
        return self.o(F.dropout(gated, p=self.dropout, training=self.training)) + x


class Hstu(nn.Module):
    def __init__(self, songs: int, width: int, heads: int, layers: int, longest: int, buckets: int) -> None:
        super().__init__()
        self.songs, self.places = nn.Embedding(songs + 1, width, padding_idx=0), nn.Embedding(longest, width)
        nn.init.trunc_normal_(self.songs.weight, std=0.02)
        nn.init.trunc_normal_(self.places.weight, std=width**-0.5)
        self.layers = nn.ModuleList(SequentialTransductionUnit(width, heads, width // heads, longest, buckets, 0.2) for _ in range(layers))
        self.register_buffer("causal", torch.tril(torch.ones(longest, longest)))
        self.scale = width**0.5

    def forward(self, ids: Tensor, timestamps: Tensor) -> Tensor:
        mask = (ids != 0).unsqueeze(-1).float()
        x = self.songs(ids) * self.scale + self.places(torch.arange(ids.shape[1], device=ids.device))[None]
        x = F.dropout(x, p=0.2, training=self.training) * mask
        for layer in self.layers:
            x = layer(x, timestamps, self.causal) * mask
        return F.normalize(x.float(), dim=-1, eps=1e-6)


def karaoke_queue(
    s: Setup,
    *,
    compiled: bool = False,
    prepared: bool = False,
    read: bool = True,
    pinned: bool = False,
    fused: bool = False,
    dropped: bool = False,
) -> Step:
    """HSTU in training on 64 guests of 200 songs, bf16 autocast; Python pads the lists, a boolean mask picks what counts, two reads."""
    guests, longest, songs, wrong = s.size(64, 3), s.size(200, 12), s.size(60_000, 50), s.size(64, 4)
    rng = np.random.default_rng(330)
    histories: list[tuple[list[int], list[int]]] = []
    for _ in range(s.size(2048, 8)):
        length = int(rng.integers(longest // 3, longest + 20))
        sung = rng.integers(1, songs + 1, length).tolist()
        histories.append((sung, (1_600_000_000 + np.cumsum(rng.exponential(20_000.0, length)).astype(np.int64)).tolist()))

    def padded(sung: list[int], when: list[int]) -> tuple[np.ndarray, np.ndarray]:
        ids, times = np.zeros(longest + 1, dtype=np.int64), np.zeros(longest + 1, dtype=np.int64)
        kept = min(len(sung), longest + 1)
        ids[:kept], times[:kept] = sung[-kept:], when[-kept:]
        times[kept:] = when[-1]
        return ids, times

    if prepared:
        rows = [padded(*history) for history in histories]
        table = torch.from_numpy(np.stack([np.stack([ids for ids, _ in rows]), np.stack([times for _, times in rows])], 1))
    staged = s.pin(torch.zeros(guests, 2, longest + 1, dtype=torch.long)) if pinned else None
    with s.device:
        model = Hstu(songs, s.size(128, 16), s.size(4, 2), s.size(4, 2), longest, s.size(128, 16)).train()
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=fused or None)
    log = [0.0, 0.0]

    def batch() -> Tensor:
        picked = rng.integers(0, len(histories), guests)
        if prepared:
            return table[torch.from_numpy(picked)]
        rows = [padded(*histories[guest]) for guest in picked]
        return torch.from_numpy(np.stack([np.stack(row) for row in rows]))

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        host = batch()
        if staged is not None:
            staged.copy_(host)
            host = staged
        ids, times = host.to(s.device, non_blocking=pinned).unbind(1)
        with torch.autocast(s.device.type, BF16):
            found = network(ids[:, :-1].contiguous(), times[:, :-1].contiguous())
        wanted = ids[:, 1:]
        valid = wanted != 0
        if read:
            found, wanted = found[valid], wanted[valid]
        else:
            found, wanted = found.flatten(0, 1), wanted.flatten()
        negative = torch.randint(1, songs + 1, (wanted.shape[0], wrong), device=s.device)
        right = F.normalize(model.songs(wanted), dim=-1, eps=1e-6)
        others = F.normalize(model.songs(negative), dim=-1, eps=1e-6)
        good = (found * right).sum(-1, keepdim=True) / 0.05
        bad = (found[:, None] * others).sum(-1) / 0.05
        bad = torch.where(negative == wanted[:, None], torch.full_like(bad, -5e4), bad)
        each = -F.log_softmax(torch.cat([good, bad], dim=1), dim=1)[:, 0]
        hit = (good[:, 0] > bad.amax(1)).float()
        if read:
            loss, hits = each.mean(), hit.mean()
        else:
            weight = valid.flatten().float()
            loss, hits = (each * weight).sum() / weight.sum(), (hit * weight).sum() / weight.sum()
        optimizer.zero_grad(set_to_none=dropped)
        loss.backward()
        optimizer.step()
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + hits.item()
        else:
            noted.add_(torch.stack([loss.detach(), hits.detach()]))
        return loss.detach()

    return step


# Nine men's morris: a model of the game is learnt from kept games (MuZero with EfficientZero's consistency).


def conv3x3(inner: int, out: int) -> nn.Conv2d:
    return nn.Conv2d(inner, out, kernel_size=3, stride=1, padding=1, bias=False)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels, channels), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv3x3(channels, channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + x)


class Represent(nn.Module):
    def __init__(self, planes: int, channels: int, blocks: int) -> None:
        super().__init__()
        self.conv, self.bn = conv3x3(planes, channels), nn.BatchNorm2d(channels)
        self.resblocks = nn.ModuleList(ResidualBlock(channels) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x)))
        for block in self.resblocks:
            x = block(x)
        return x


class Head(nn.Module):
    def __init__(self, channels: int, squeezed: int, cells: int, hidden: int, out: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(channels, squeezed, 1), nn.BatchNorm2d(squeezed)
        self.fc = nn.Sequential(nn.Linear(squeezed * cells, hidden), nn.ELU(), nn.Linear(hidden, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn(self.conv(x))).flatten(1)).float()


class Predict(nn.Module):
    def __init__(self, channels: int, cells: int, moves: int, bins: int) -> None:
        super().__init__()
        self.resblock = ResidualBlock(channels)
        self.value, self.policy = Head(channels, 4, cells, 64, bins), Head(channels, 4, cells, 64, moves)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.resblock(x)
        return self.value(x), self.policy(x)


class Dynamics(nn.Module):
    def __init__(self, channels: int, blocks: int, cells: int, bins: int) -> None:
        super().__init__()
        self.conv, self.bn = conv3x3(channels + 1, channels), nn.BatchNorm2d(channels)
        self.resblocks = nn.ModuleList(ResidualBlock(channels) for _ in range(blocks))
        self.reward = Head(channels, 4, cells, 64, bins)

    def forward(self, state: Tensor, plane: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.bn(self.conv(torch.cat([state, plane], 1))) + state)
        for block in self.resblocks:
            x = block(x)
        return x, self.reward(x)


class MuZeroNetwork(nn.Module):
    def __init__(self, planes: int, side: int, channels: int, blocks: int, moves: int, support: int, hidden: int) -> None:
        super().__init__()
        cells, bins = side * side, 2 * support + 1
        self.represent, self.dynamics = Represent(planes, channels, blocks), Dynamics(channels, max(blocks // 2, 1), cells, bins)
        self.predict = Predict(channels, cells, moves, bins)
        self.projection = nn.Sequential(nn.Linear(channels * cells, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.projector = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.BatchNorm1d(hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, hidden))


def squashed(state: Tensor, where: bool) -> Tensor:
    """Each channel between 0 and 1."""
    flat = state.float().flatten(2)
    low, high = flat.min(2, keepdim=True)[0].unsqueeze(-1), flat.max(2, keepdim=True)[0].unsqueeze(-1)
    scale = high - low
    if where:
        scale = torch.where(scale < 1e-5, scale + 1e-5, scale)
    else:
        scale[scale < 1e-5] += 1e-5
    return (state - low) / scale


def scalar_to_support(x: Tensor, support: int) -> Tensor:
    x = torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + 0.001 * x
    x = torch.clamp(x, -support, support)
    floor = x.floor()
    prob = x - floor
    logits = torch.zeros(x.shape[0], x.shape[1], 2 * support + 1, device=x.device)
    logits.scatter_(2, (floor + support).long().unsqueeze(-1), (1 - prob).unsqueeze(-1))
    above = floor + support + 1
    prob = prob.masked_fill(2 * support < above, 0.0)
    above = above.masked_fill(2 * support < above, 0.0)
    return logits.scatter_add_(2, above.long().unsqueeze(-1), prob.unsqueeze(-1))


def support_to_scalar(logits: Tensor, support: int) -> Tensor:
    bins = torch.arange(-support, support + 1, device=logits.device).float()
    x = (torch.softmax(logits, dim=1) * bins).sum(1)
    return torch.sign(x) * (((torch.sqrt(1 + 4 * 0.001 * (torch.abs(x) + 1 + 0.001)) - 1) / (2 * 0.001)) ** 2 - 1)


class Games:
    """Kept games, end to end; priorities of all their moments lie in one row."""

    def __init__(self, games: int, moments: int, planes: int, side: int, moves: int, unroll: int, td: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.games, self.moments, self.unroll, self.td, self.moves = games, moments, unroll, td, moves
        self.seen = (self.rng.random((games, moments + unroll + 1, planes, side, side), dtype=np.float32) > 0.7).astype(np.float32)
        self.done = self.rng.integers(0, moves, (games, moments + unroll + 1))
        self.rewards = [[float(x) for x in row] for row in self.rng.integers(-1, 2, (games, moments))]
        self.roots = [[float(x) for x in row] for row in self.rng.standard_normal((games, moments))]
        visits = self.rng.random((games, moments, moves), dtype=np.float32)
        self.visits = visits / visits.sum(2, keepdims=True)
        self.priorities = np.ones((games, moments))
        self.discount = 0.997

    def value(self, game: int, index: int) -> float:
        rewards, roots, ahead = self.rewards[game], self.roots[game], index + self.td
        value = roots[ahead] * self.discount**self.td if ahead < self.moments else 0.0
        for n, reward in enumerate(rewards[index : ahead + 1]):
            value += reward * self.discount**n
        return value

    def target(self, game: int, index: int) -> tuple[list[float], list[float], list[np.ndarray]]:
        values, rewards, policies = [], [], []
        for now in range(index, index + self.unroll + 1):
            if now < self.moments:
                values.append(self.value(game, now))
                rewards.append(self.rewards[game][now])
                policies.append(self.visits[game][now])
            else:
                values.append(0.0)
                rewards.append(0.0)
                policies.append(np.full(self.moves, 1.0 / self.moves, dtype=np.float32))
        return values, rewards, policies

    def prepare(self) -> None:
        """Targets of all moments, once."""
        whole = [self.target(game, index) for game in range(self.games) for index in range(self.moments)]
        self.values = np.array([one[0] for one in whole], dtype=np.float32)
        self.gains = np.array([one[1] for one in whole], dtype=np.float32)
        self.policies = np.array([one[2] for one in whole], dtype=np.float32)

    def batch(self, size: int, prepared: bool) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        if prepared:
            chance = self.priorities.ravel() / self.priorities.sum()
            flat = self.rng.choice(chance.size, size, p=chance)
            game, index = flat // self.moments, flat % self.moments
            values, gains, policies, chances = self.values[flat], self.gains[flat], self.policies[flat], chance[flat]
        else:
            of_games = self.priorities.sum(1) / self.priorities.sum()
            picks, targets, odds = [], [], []
            for _ in range(size):
                one = int(self.rng.choice(self.games, p=of_games))
                within = self.priorities[one] / self.priorities[one].sum()
                at = int(self.rng.choice(self.moments, p=within))
                picks.append((one, at))
                targets.append(self.target(one, at))
                odds.append(of_games[one] * within[at])
            game, index = (np.array(part) for part in zip(*picks, strict=True))
            values, gains, policies = (np.array(part, dtype=np.float32) for part in zip(*targets, strict=True))
            chances = np.array(odds)
        weight = 1.0 / (chances * self.priorities.size)
        after = index[:, None] + np.arange(self.unroll + 1)
        seen, done = self.seen[game[:, None], after], self.done[game[:, None], after[:, :-1]]
        return np.stack([game, index], 1), (seen, done, values, gains, policies, (weight / weight.max()).astype(np.float32))

    def update(self, picks: np.ndarray, errors: np.ndarray, prepared: bool) -> None:
        if prepared:
            for n in range(self.unroll, -1, -1):
                kept = picks[:, 1] + n < self.moments
                self.priorities[picks[kept, 0], picks[kept, 1] + n] = errors[kept, n] + 1e-3
            return
        for (game, index), row in zip(picks.tolist(), errors, strict=True):
            last = min(index + len(row), self.moments)
            self.priorities[game][index:last] = row[: last - index] + 1e-3


def morris_muzero(
    s: Setup,
    *,
    compiled: bool = False,
    graphed: bool = False,
    prepared: bool = False,
    later: bool = False,
    autocast: bool = False,
    channels_last: bool = False,
    fused: bool = False,
) -> Step:
    """MuZero in training on 256 moments unrolled five times, FP32 with TF32 convolutions: Python makes targets one by one, errors are read at each."""
    size, unroll, support, planes, side = s.size(256, 6), s.size(5, 2), s.size(30, 4), s.size(16, 4), s.size(7, 4)
    channels, moves, moments = s.size(64, 8), s.size(120, 10), s.size(80, 12)
    games = Games(s.size(64, 4), moments, planes, side, moves, unroll, s.size(10, 3), 331)
    if prepared:
        games.prepare()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with s.device:
        model = MuZeroNetwork(planes, side, channels, s.size(4, 1), moves, support, s.size(512, 16)).train().to(memory_format=layout)
        told, errors = torch.zeros(4), torch.zeros(size, unroll + 1)
    represent, dynamics, predict = (s.compile(part, dynamic=False) if compiled else part for part in (model.represent, model.dynamics, model.predict))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=fused or None)
    where, read_within = graphed or later, not (graphed or later)
    log, turn = [0.0] * 4, counter()
    landing = [(s.pin(torch.zeros(size, unroll + 1)), torch.cuda.Event() if s.cuda else None) for _ in range(2)]
    waiting: list[tuple[np.ndarray, int]] = []

    def encode(seen: Tensor) -> Tensor:
        return squashed(represent(seen.contiguous(memory_format=layout)), where)

    def entropy(logits: Tensor, target: Tensor) -> Tensor:
        return -(target * F.log_softmax(logits, dim=1)).sum(1)

    def learn(parts: list[Tensor]) -> np.ndarray | None:
        seen, done, values, gains, policies, weight = parts
        wanted, gained = scalar_to_support(values, support), scalar_to_support(gains, support)
        own: list[np.ndarray] = []
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            state = encode(seen[:, 0])
            value, policy = predict(state)
            guesses: list[tuple[Tensor, Tensor | None, Tensor, Tensor | None]] = [(value, None, policy, None)]
            for n in range(unroll):
                plane = (done[:, n, None, None, None].float() / moves).expand(-1, 1, side, side)
                state, reward = dynamics(state, plane)
                state = squashed(state, where)
                value, policy = predict(state)
                with torch.no_grad():
                    truth = model.projection(encode(seen[:, n + 1]).flatten(1))
                guess = model.projector(model.projection(state.flatten(1)))
                alike = -F.cosine_similarity(guess.float(), truth.float(), dim=1, eps=1e-5)
                guesses.append((value, reward, policy, alike))
                state = state * 0.5 + state.detach() * 0.5
        value_loss, reward_loss, policy_loss, alike_loss = (torch.zeros(size, device=s.device) for _ in range(4))
        for n, (value, reward, policy, alike) in enumerate(guesses):
            losses = [entropy(value, wanted[:, n]), entropy(policy, policies[:, n])]
            if reward is not None and alike is not None:
                losses += [entropy(reward, gained[:, n - 1]), alike]
                for loss in losses:
                    loss.register_hook(lambda grad: grad / unroll)
                reward_loss = reward_loss + losses[2]
                alike_loss = alike_loss + losses[3]
            value_loss, policy_loss = value_loss + losses[0], policy_loss + losses[1]
            with torch.no_grad():
                wrong = (support_to_scalar(value, support) - values[:, n]).abs() ** 0.5
            if read_within:
                own.append(wrong.cpu().numpy())
            else:
                errors[:, n].copy_(wrong)
        loss = ((0.25 * value_loss + reward_loss + policy_loss + 2.0 * alike_loss) * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        told.copy_(torch.stack([loss.detach(), value_loss.detach().mean(), reward_loss.detach().mean(), policy_loss.detach().mean()]))
        return np.stack(own, 1) if own else None

    torch.set_float32_matmul_precision("highest")
    still: list[Tensor] = []
    if graphed:
        still = [torch.from_numpy(part).to(s.device) for part in games.batch(size, prepared)[1]]
        work = capture(lambda: learn(still), s)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        picks, host = games.batch(size, prepared)
        if graphed:
            for there, part in zip(still, host, strict=True):
                there.copy_(torch.from_numpy(part))
            work()
            games.update(picks, errors.cpu().numpy(), prepared)
        else:
            found = learn([torch.from_numpy(part).to(s.device) for part in host])
            if found is not None:
                games.update(picks, found, prepared)
            else:
                place = next(turn) % 2
                room, event = landing[place]
                room.copy_(errors, non_blocking=True)
                if event is not None:
                    event.record()
                waiting.append((picks, place))
                if len(waiting) > 1:
                    old, place = waiting.pop(0)
                    room, event = landing[place]
                    if event is not None:
                        event.synchronize()
                    games.update(old, room.numpy(), prepared)
        if not later:
            for n in range(4):
                log[n] += told[n].item()
        return told

    return step


# A carillon: a second of bells out of noise, led by a spectrogram (DiffWave).


class DiffusionEmbedding(nn.Module):
    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        angle = torch.arange(steps)[:, None] * 10.0 ** (torch.arange(64)[None] * 4.0 / 63.0)
        self.register_buffer("embedding", torch.cat([torch.sin(angle), torch.cos(angle)], dim=1), persistent=False)
        self.projection1, self.projection2 = nn.Linear(128, width), nn.Linear(width, width)

    def forward(self, t: Tensor) -> Tensor:
        low, high = torch.floor(t).long(), torch.ceil(t).long()
        x = self.embedding[low] + (self.embedding[high] - self.embedding[low]) * (t - low)[:, None]
        return F.silu(self.projection2(F.silu(self.projection1(x))))


class SpectrogramUpsampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(1, 1, (3, 32), stride=(1, 16), padding=(1, 8))
        self.conv2 = nn.ConvTranspose2d(1, 1, (3, 32), stride=(1, 16), padding=(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x[:, None]), 0.4)
        return F.leaky_relu(self.conv2(x), 0.4)[:, 0]


class GatedBlock(nn.Module):
    def __init__(self, mels: int, channels: int, dilation: int, width: int) -> None:
        super().__init__()
        self.dilated_conv = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.diffusion_projection = nn.Linear(width, channels)
        self.conditioner_projection = nn.Conv1d(mels, 2 * channels, 1)
        self.output_projection = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x: Tensor, conditioner: Tensor, diffusion_step: Tensor) -> tuple[Tensor, Tensor]:
        y = x + self.diffusion_projection(diffusion_step).unsqueeze(-1)
        y = self.dilated_conv(y) + self.conditioner_projection(conditioner)
        gate, filtered = torch.chunk(y, 2, dim=1)
        y = torch.sigmoid(gate) * torch.tanh(filtered)
        residual, skip = torch.chunk(self.output_projection(y), 2, dim=1)
        return (x + residual) / math.sqrt(2.0), skip


class DiffWave(nn.Module):
    def __init__(self, mels: int, channels: int, layers: int, cycle: int, steps: int, width: int) -> None:
        super().__init__()
        self.input_projection, self.diffusion_embedding = nn.Conv1d(1, channels, 1), DiffusionEmbedding(steps, width)
        self.upsampler = SpectrogramUpsampler()
        self.residual_layers = nn.ModuleList(GatedBlock(mels, channels, 2 ** (n % cycle), width) for n in range(layers))
        self.skip_projection, self.output_projection = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, 1, 1)

    def forward(self, audio: Tensor, t: Tensor, spectrogram: Tensor) -> Tensor:
        x = F.relu(self.input_projection(audio[:, None]))
        diffusion_step, spectrogram = self.diffusion_embedding(t), self.upsampler(spectrogram)
        skip = None
        for layer in self.residual_layers:
            x, connection = layer(x, spectrogram, diffusion_step)
            skip = connection if skip is None else skip + connection
        x = F.relu(self.skip_projection(skip / math.sqrt(len(self.residual_layers))))
        return self.output_projection(x)[:, 0].float()


def carillon_waves(
    s: Setup,
    *,
    clips: int = 1,
    compiled: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    asked: bool = True,
    made: bool = False,
) -> Step:
    """DiffWave makes one clip of 22,016 samples in six steps, FP32 with TF32 convolutions: noise and moments come from the host, each step is asked for NaN."""
    mels, frames, steps = s.size(80, 6), s.size(86, 2), 50
    length = 256 * frames
    rng = np.random.default_rng(332)
    scores = [torch.from_numpy(rng.random((clips, mels, frames), dtype=np.float32)) for _ in range(8)]
    with s.device:
        model = DiffWave(mels, s.size(64, 8), s.size(16, 2), s.size(8, 2), steps, s.size(512, 16)).eval()
        score, sounded = torch.zeros(clips, mels, frames), torch.zeros(clips, length)
    network = s.compile(model, dynamic=False) if compiled else model
    training = np.linspace(1e-4, 0.05, steps)
    fast = np.array([0.0001, 0.001, 0.01, 0.05, 0.2, 0.5])
    kept, alpha = np.cumprod(1.0 - training), np.cumprod(1.0 - fast)
    moments: list[float] = []
    for level in alpha:
        after = int(np.searchsorted(-(kept**0.5), -(level**0.5)).clip(1, steps - 1))
        share = (kept[after - 1] ** 0.5 - level**0.5) / (kept[after - 1] ** 0.5 - kept[after] ** 0.5)
        moments.append(float(np.clip(after - 1 + share, 0.0, steps - 1.0)))
    on_device = made or graphed
    known = [torch.tensor([t], dtype=torch.float32, device=s.device) for t in moments] if on_device else []
    seeded, turn = torch.Generator().manual_seed(332), counter()

    def noise() -> Tensor:
        if on_device:
            return torch.randn(clips, length, device=s.device)
        return torch.randn(clips, length, generator=seeded).to(s.device)

    def denoise(mel: Tensor) -> Tensor:
        audio = noise()
        for n in range(len(fast) - 1, -1, -1):
            c1, c2 = 1.0 / (1.0 - fast[n]) ** 0.5, fast[n] / (1.0 - alpha[n]) ** 0.5
            t = known[n] if on_device else torch.tensor([moments[n]], dtype=torch.float32).to(s.device)
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                guess = network(audio, t, mel)
            audio = float(c1) * (audio - float(c2) * guess)
            if n > 0:
                sigma = ((1.0 - alpha[n - 1]) / (1.0 - alpha[n]) * fast[n]) ** 0.5
                audio = audio + float(sigma) * noise()
            audio = torch.clamp(audio, -1.0, 1.0)
            if asked and not graphed and torch.isnan(audio).any():
                raise FloatingPointError("a step gave no sound")
        return audio

    def static() -> None:
        sounded.copy_(denoise(score))

    torch.set_float32_matmul_precision("high")
    with torch.no_grad():
        work = capture(static, s) if graphed else None

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("high")
        host = scores[next(turn) % len(scores)]
        if work is not None:
            score.copy_(host)
            work()
            audio = sounded
        else:
            audio = denoise(host.to(s.device))
        if asked:
            peak = audio.abs().max().item()
            return (audio / max(peak, 1e-5)).cpu().numpy()
        heard = (audio / audio.abs().max().clamp(min=1e-5)).cpu().numpy()
        if np.isnan(heard).any():
            raise FloatingPointError("a step gave no sound")
        return heard

    return step


# A notary: the next words of a deed (a small DeepSeek from scratch: latent attention and experts).


class RootNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.type_as(x)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x is (requests, words, heads, width)."""
    one, two = x.float().chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1).type_as(x)


class LatentAttention(nn.Module):
    def __init__(self, width: int, heads: int, ranks: tuple[int, int], parts: tuple[int, int, int], kept: tuple[int, int], library: bool, sdpa: bool) -> None:
        super().__init__()
        (q_rank, kv_rank), (nope, rope, own) = ranks, parts
        self.heads, self.parts, self.kv_rank, self.sdpa = heads, parts, kv_rank, sdpa
        self.wq_a, self.q_norm = nn.Linear(width, q_rank, bias=False), RootNorm(q_rank, library)
        self.wq_b = nn.Linear(q_rank, heads * (nope + rope), bias=False)
        self.wkv_a, self.kv_norm = nn.Linear(width, kv_rank + rope, bias=False), RootNorm(kv_rank, library)
        self.wkv_b, self.wo = nn.Linear(kv_rank, heads * (nope + own), bias=False), nn.Linear(heads * own, width, bias=False)
        self.register_buffer("kv_cache", torch.randn(*kept, kv_rank), persistent=False)
        self.register_buffer("pe_cache", torch.randn(*kept, rope), persistent=False)
        self.scale = (nope + rope) ** -0.5

    def forward(self, x: Tensor, place: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        b, n, _ = x.shape
        nope, rope, own = self.parts
        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, n, self.heads, nope + rope)
        q_nope, q_pe = q.split([nope, rope], dim=-1)
        q = torch.cat([q_nope, rotated(q_pe, cos, sin)], dim=-1)
        kv, k_pe = self.wkv_a(x).split([self.kv_rank, rope], dim=-1)
        self.kv_cache.index_copy_(1, place, self.kv_norm(kv))
        self.pe_cache.index_copy_(1, place, rotated(k_pe[:, :, None], cos, sin)[:, :, 0])
        wide = self.wkv_b(self.kv_cache).view(b, -1, self.heads, nope + own)
        k_nope, v = wide.split([nope, own], dim=-1)
        k = torch.cat([k_nope, self.pe_cache[:, :, None].expand(-1, -1, self.heads, -1)], dim=-1)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=seen, scale=self.scale)
            return self.wo(y.transpose(1, 2).reshape(b, n, -1))
        scores = torch.einsum("bshd,bthd->bhst", q, k) * self.scale
        scores = scores.masked_fill(~seen, float("-inf"))
        scores = scores.softmax(dim=-1, dtype=torch.float32).type_as(x)
        return self.wo(torch.einsum("bhst,bthd->bshd", scores, v).reshape(b, n, -1))


class Swiglu(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A few experts a word and one that all share. `way`: those that the host reads, by places in the choice, or all at once."""

    def __init__(self, width: int, inner: int, experts: int, chosen: int, way: str) -> None:
        super().__init__()
        self.experts, self.chosen, self.way = experts, chosen, way
        self.gate, self.shared = nn.Linear(width, experts, bias=False), Swiglu(width, inner)
        self.w1, self.w3 = (nn.Parameter(torch.randn(experts, inner, width) * width**-0.5) for _ in range(2))
        self.w2 = nn.Parameter(torch.randn(experts, width, inner) * inner**-0.5)

    def expert(self, n: int, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.w1[n])) * F.linear(x, self.w3[n]), self.w2[n])

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.flatten(0, 1)
        scores = self.gate(x).softmax(dim=-1, dtype=torch.float32)
        weights, indices = scores.topk(self.chosen, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).type_as(x)
        if self.way == "read":
            y = torch.zeros_like(x)
            counts = torch.bincount(indices.flatten(), minlength=self.experts).tolist()
            for n in range(self.experts):
                if counts[n] == 0:
                    continue
                row, top = torch.where(indices == n)
                y[row] += self.expert(n, x[row]) * weights[row, top, None]
        elif self.way == "places":
            y = torch.zeros_like(x)
            for top in range(self.chosen):
                own = indices[:, top]
                hidden = F.silu(torch.bmm(self.w1[own], x[:, :, None])) * torch.bmm(self.w3[own], x[:, :, None])
                y = y + torch.bmm(self.w2[own], hidden)[:, :, 0] * weights[:, top, None]
        else:
            factor = torch.zeros_like(scores, dtype=x.dtype).scatter(1, indices, weights)
            hidden = F.silu(torch.matmul(x, self.w1.transpose(1, 2))) * torch.matmul(x, self.w3.transpose(1, 2))
            y = (torch.matmul(hidden, self.w2.transpose(1, 2)) * factor.t()[:, :, None]).sum(0)
        return (y + self.shared(x)).view(shape)


class DeedBlock(nn.Module):
    def __init__(self, width: int, attention: LatentAttention, feed: nn.Module, library: bool) -> None:
        super().__init__()
        self.attn, self.ffn = attention, feed
        self.attn_norm, self.ffn_norm = RootNorm(width, library), RootNorm(width, library)

    def forward(self, x: Tensor, place: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), place, cos, sin, seen)
        return x + self.ffn(self.ffn_norm(x))


class NanoSeek(nn.Module):
    def __init__(self, s: Setup, words: int, requests: int, longest: int, way: str, library: bool, sdpa: bool) -> None:
        super().__init__()
        width, heads, rope = s.size(1024, 32), s.size(16, 2), s.size(32, 4)
        ranks, parts = (s.size(384, 12), s.size(512, 16)), (s.size(64, 8), rope, s.size(64, 8))
        self.embed, self.norm, self.head = nn.Embedding(words, width), RootNorm(width, library), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList()
        for n in range(s.size(6, 2)):
            attention = LatentAttention(width, heads, ranks, parts, (requests, longest), library, sdpa)
            feed = Experts(width, s.size(512, 16), s.size(16, 4), s.size(4, 2), way) if n else Swiglu(width, s.size(2816, 48))
            self.layers.append(DeedBlock(width, attention, feed, library))
        angle = torch.arange(longest)[:, None] / 10_000.0 ** (torch.arange(0, rope, 2) / rope)
        self.turns = (angle.cos(), angle.sin())
        self.order = torch.arange(longest)

    def forward(self, said: Tensor, place: Tensor) -> Tensor:
        cos, sin = (table[place][:, None] for table in self.turns)
        seen = (self.order <= place)[None, None, None]
        x = self.embed(said)[:, None]
        for layer in self.layers:
            x = layer(x, place, cos, sin, seen)
        return self.head(self.norm(x))[:, -1]


def notary_drafts(
    s: Setup,
    *,
    requests: int = 1,
    together: bool = False,
    graphed: bool = False,
    asked: bool = True,
    library: bool = False,
    sdpa: bool = False,
) -> Step:
    """A small DeepSeek in bf16 says six words after 512: chosen experts one by one, norms and attention written out, each word is read."""
    words, start, said_each, end = s.size(32_000, 64), s.size(512, 8), s.size(6, 2), 1
    longest = start + s.size(16, 8)
    rng = np.random.default_rng(333)
    firsts = [torch.from_numpy(rng.integers(2, words, requests)) for _ in range(8)]
    way = "once" if together or graphed else "read" if asked else "places"
    with s.device:
        model = NanoSeek(s, words, requests, longest, way, library, sdpa).to(BF16).eval()
        said, place = torch.full((requests,), 2), torch.full((1,), start)
    network, turn = s.compile(model, dynamic=False) if together else model, counter()

    def word() -> None:
        said.copy_(network(said, place).argmax(-1))
        place.add_(1)

    with torch.no_grad():
        work = capture(word, s) if graphed else word

    @torch.no_grad()
    def step() -> list[list[int]]:
        said.copy_(firsts[next(turn) % len(firsts)])
        place.fill_(start)
        if not asked:
            kept = []
            for _ in range(said_each):
                work()
                kept.append(said.clone())
            return torch.stack(kept, 1).tolist()
        texts: list[list[int]] = [[] for _ in range(requests)]
        for _ in range(said_each):
            work()
            heard = said.tolist()
            for text, one in zip(texts, heard, strict=True):
                text.append(one)
            if all(one == end for one in heard):
                break
        return texts

    return step


WORKLOADS = (
    written(
        "karaoke_queue", "HSTU in training on 64 guests of 200 songs, bf16 autocast: Python pads lists, a boolean mask, zeroed gradients, two reads.",
        "torch.compile of the network; lists padded once; a mask of fixed shape and no reads; pinned batches; fused AdamW; gradients dropped", karaoke_queue,
        {
            "unfused-elementwise": {"compiled": True}, "host-bound": {"prepared": True}, "sync-stall": {"read": False},
            "memcpy": {"pinned": True}, "optimizer-foreach": {"fused": True}, "grad-zeroing": {"dropped": True},
        },
    ),
    written(
        "morris_muzero",
        "MuZero in training on 256 moments unrolled five times, FP32 with TF32 convolutions, NCHW: targets in Python, errors and losses are read.",
        "torch.compile of its networks; CUDA graph of the update; targets made once; errors read a step later; bf16 autocast; channels_last; fused SGD",
        morris_muzero,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "host-bound": {"prepared": True}, "sync-stall": {"later": True},
            "precision": {"autocast": True}, "memory-layout": {"channels_last": True}, "optimizer-foreach": {"fused": True},
        },
    ),
    written(
        "carillon_waves", "DiffWave makes a clip of one second in six steps, FP32 with TF32 convolutions: noise drawn on the host, each step asked for NaN.",
        "torch.compile of the network; CUDA graph of the six steps; bf16 autocast; nothing asked between; noise made on the GPU; eight clips at once",
        carillon_waves,
        {
            "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True},
            "sync-stall": {"asked": False}, "memcpy": {"made": True}, "low-arithmetic-intensity": {"clips": 8},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "notary_drafts", "A small DeepSeek in bf16 says six words after 512: experts one by one by what the host reads, norms and attention written out.",
        "experts at once and torch.compile; that as a CUDA graph of a word; no reads within; F.rms_norm; scaled_dot_product_attention; eight requests",
        notary_drafts,
        {
            "launch-gap": {"together": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"asked": False}, "unfused-norm": {"library": True},
            "unfused-attention": {"sdpa": True}, "low-arithmetic-intensity": {"requests": 8},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
