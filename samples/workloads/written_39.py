"""Programs in their authors' own code: a pinball player that learns from a replay, a GAN that draws orchids, an LSTM that learns limericks.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import count as counter
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Pinball: a dueling double DQN on stacks of four frames.


class DuelingQ(nn.Module):
    def __init__(self, side: int, channels: int, hidden: int, actions: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, channels, 8, 4), nn.ReLU(), nn.Conv2d(channels, 2 * channels, 4, 2), nn.ReLU(),
            nn.Conv2d(2 * channels, 2 * channels, 3, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        last = ((side - 8) // 4 + 1 - 4) // 2 + 1 - 2
        self.value = nn.Sequential(nn.Linear(2 * channels * last * last, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.advantage = nn.Sequential(nn.Linear(2 * channels * last * last, hidden), nn.ReLU(), nn.Linear(hidden, actions))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


def pinball_player(
    s: Setup,
    *,
    indexed: bool = False,
    ahead: bool = False,
    small: bool = False,
    read: bool = True,
    together: bool = False,
    autocast: bool = False,
    compiled: bool = False,
    graphed: bool = False,
) -> Step:
    """Updates of a dueling double DQN from a replay: 256 transitions are made floats on the host and copied; three numbers are logged."""
    rows, kept, side, actions, channels = s.size(256, 4), s.size(4096, 32), s.size(84, 36), s.size(18, 4), s.size(32, 4)
    rng, tau, gamma = np.random.default_rng(391), 0.005, 0.99
    frames = rng.integers(0, 256, (kept + 1, 4, side, side), dtype=np.uint8)
    acts, rewards = rng.integers(0, actions, kept), np.sign(rng.normal(0.0, 1.0, kept)).astype(np.float32)
    ends = (rng.random(kept) < 0.01).astype(np.float32)
    memory = [(frames[n], int(acts[n]), float(rewards[n]), frames[n + 1], float(ends[n])) for n in range(kept)]
    table = torch.from_numpy(acts), torch.from_numpy(rewards), torch.from_numpy(ends)
    with s.device:
        online, target = (DuelingQ(side, channels, s.size(512, 16), actions) for _ in range(2))
        noted = torch.zeros(3)
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    parameters, followers = list(online.parameters()), list(target.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-4, eps=1.5e-4, capturable=graphed and s.cuda)
    values, future = (s.compile(net, dynamic=False) for net in (online, target)) if compiled else (online, target)
    chance, log = random.Random(392), []
    stream = torch.cuda.Stream() if ahead and s.cuda else None
    rooms = [[s.pin(torch.empty(rows, 4, side, side)) for _ in range(2)] for _ in range(2)] if ahead else []
    flip, waiting = counter(), []

    def floats(images: Tensor, room: Tensor | None) -> Tensor:
        if small:
            return images
        return torch.div(images.float(), 255.0, out=room)

    def draw(room: list[Tensor] | None = None) -> list[Tensor]:
        first, second = room or (None, None)
        if indexed:
            which = torch.tensor(chance.sample(range(kept), rows))
            now, after = torch.from_numpy(frames[which.numpy()]), torch.from_numpy(frames[which.numpy() + 1])
            did, won, ended = (part[which] for part in table)
            return [floats(now, first), did, won, floats(after, second), ended]
        befores, dids, wons, afters, endeds = zip(*chance.sample(memory, rows), strict=True)
        states, later = floats(torch.tensor(np.array(befores)), first), floats(torch.tensor(np.array(afters)), second)
        return [states, torch.tensor(dids), torch.tensor(wons), later, torch.tensor(endeds)]

    def send_ahead() -> list[Tensor]:
        room = rooms[next(flip) % 2]
        batch = [s.pin(part) if n in (1, 2, 4) else part for n, part in enumerate(draw(room))]
        with torch.cuda.stream(stream):
            return [part.to(s.device, non_blocking=True) for part in batch]

    def batch_of_step() -> list[Tensor]:
        if not ahead:
            return [part.to(s.device) for part in draw()]
        batch = waiting.pop() if waiting else send_ahead()
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)
            for part in batch:
                part.record_stream(torch.cuda.current_stream())
        waiting.append(send_ahead())
        return batch

    def learn(states: Tensor, did: Tensor, won: Tensor, later: Tensor, ended: Tensor) -> Tensor:
        if small:
            states, later = states.float() / 255.0, later.float() / 255.0
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            q = values(states)
            with torch.no_grad():
                best = values(later).argmax(1, keepdim=True)
                ahead_of = future(later).gather(1, best)[:, 0]
        q = q.float().gather(1, did[:, None])[:, 0]
        loss = F.smooth_l1_loss(q, won + gamma * (1.0 - ended) * ahead_of.float())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        with torch.no_grad():
            if together:
                torch._foreach_lerp_(followers, parameters, tau)
            else:
                for follower, parameter in zip(followers, parameters, strict=True):
                    follower.copy_(tau * parameter + (1.0 - tau) * follower)
        if read and not graphed:
            log.append({"loss": loss.item(), "q": q.mean().item(), "norm": norm.item()})
            del log[:-100]
        else:
            noted.add_(torch.stack([loss.detach(), q.detach().mean(), norm]))
        return loss.detach()

    if not graphed:
        return lambda: learn(*batch_of_step())
    still = batch_of_step()
    work = capture(lambda: learn(*still), s)

    def step() -> Tensor:
        for place, value in zip(still, draw(), strict=True):
            place.copy_(value)
        work()
        return noted

    return step


# Orchids: a residual GAN with spectral norm and hinge losses at 64 x 64.


class Orchids(Dataset[Tensor]):
    def __init__(self, count: int, side: int, margin: int) -> None:
        self.side, self.margin = side, margin
        self.images = np.random.default_rng(393).integers(0, 256, (count, side + margin, side + margin, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> Tensor:
        top, left = random.randrange(self.margin + 1), random.randrange(self.margin + 1)
        image = self.images[at][top : top + self.side, left : left + self.side]
        if random.random() < 0.5:
            image = image[:, ::-1]
        x = torch.from_numpy(image.transpose(2, 0, 1).copy()).float() / 255.0
        return (x - 0.5) / 0.5


class SNConv2d(nn.Conv2d):
    u: Tensor

    def __init__(self, inner: int, outer: int, size: int) -> None:
        super().__init__(inner, outer, size, padding=size // 2)
        self.register_buffer("u", F.normalize(torch.randn(outer), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.flatten(1)
        with torch.no_grad():
            v = F.normalize(torch.mv(flat.t(), self.u), dim=0)
            u = F.normalize(torch.mv(flat, v), dim=0)
            self.u.copy_(u)
        sigma = (u * torch.mv(flat, v)).sum()
        return F.conv2d(x, self.weight / sigma, self.bias, padding=self.padding)


class UpBlock(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(outer)
        self.conv1, self.conv2 = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.interpolate(F.relu(self.norm1(x)), scale_factor=2.0))
        return self.conv2(F.relu(self.norm2(y))) + self.skip(F.interpolate(x, scale_factor=2.0))


class DownBlock(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv1, self.conv2, self.skip = SNConv2d(inner, outer, 3), SNConv2d(outer, outer, 3), SNConv2d(inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.conv1(F.relu(x))))
        return F.avg_pool2d(y, 2) + F.avg_pool2d(self.skip(x), 2)


class Painter(nn.Module):
    def __init__(self, latent: int, widths: list[int], last: bool) -> None:
        super().__init__()
        self.inlet, self.last = nn.Linear(latent, widths[0] * 16), last
        self.blocks = nn.ModuleList(UpBlock(a, b) for a, b in pairwise(widths))
        self.norm, self.out = nn.BatchNorm2d(widths[-1]), nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.inlet(z).unflatten(1, (-1, 4, 4))
        if self.last:
            x = x.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        return torch.tanh(self.out(F.relu(self.norm(x))))


class Critic(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.inlet = SNConv2d(3, widths[0], 3)
        self.blocks = nn.ModuleList(DownBlock(a, b) for a, b in pairwise(widths))
        self.out = nn.Linear(widths[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.out(F.relu(x).sum((2, 3)))[:, 0]


def orchid_painter(
    s: Setup,
    *,
    workers: int = 0,
    autocast: bool = False,
    last: bool = False,
    compiled: bool = False,
    together: bool = False,
    fused: bool = False,
    read: bool = True,
    graphed: bool = False,
) -> Step:
    """A step of critic and generator on 64 images of 64 x 64, FP32: images one by one in the loop's process, EMA by name, four reads."""
    rows, latent, decay = s.size(64, 4), s.size(128, 8), 0.999
    widths = [s.size(512, 8), s.size(256, 8), *([s.size(256, 8), s.size(128, 8), s.size(64, 8)] if not s.tiny else [])]
    side = 4 * 2 ** (len(widths) - 1)
    with s.device:
        painter, average, critic = Painter(latent, widths, last), Painter(latent, widths, last), Critic(widths[::-1])
        noted = torch.zeros(4)
    if last:
        for net in (painter, average, critic):
            net.to(memory_format=torch.channels_last)
    average.load_state_dict(painter.state_dict())
    average.requires_grad_(False)
    how = {"lr": 2e-4, "betas": (0.0, 0.9), "capturable": graphed and s.cuda, **({"fused": True} if fused else {})}
    optimizer_d, optimizer_g = torch.optim.Adam(critic.parameters(), **how), torch.optim.Adam(painter.parameters(), **how)
    paint, judge = (s.compile(net, dynamic=False) for net in (painter, critic)) if compiled else (painter, critic)
    hands = min(workers, s.size(8, 1))
    more = {"num_workers": hands, "pin_memory": s.cuda, "persistent_workers": True} if hands else {}
    loader = DataLoader(Orchids(rows * s.size(100, 6), side, s.size(8, 2)), rows, shuffle=True, drop_last=True, **more)
    log: list[tuple[float, ...]] = []

    def endless() -> Iterator[Tensor]:
        while True:
            yield from loader

    images = endless()
    live, slow = painter.state_dict(), average.state_dict()
    moving = [name for name, value in slow.items() if value.is_floating_point()]
    counted = [name for name, value in slow.items() if not value.is_floating_point()]

    @torch.no_grad()
    def follow() -> None:
        if together:
            torch._foreach_lerp_([slow[name] for name in moving], [live[name] for name in moving], 1.0 - decay)
            torch._foreach_copy_([slow[name] for name in counted], [live[name] for name in counted])
            return
        current, smooth = painter.state_dict(), average.state_dict()
        for name, value in smooth.items():
            if value.is_floating_point():
                value.copy_(decay * value + (1.0 - decay) * current[name])
            else:
                value.copy_(current[name])

    def learn(real: Tensor, z: Tensor) -> None:
        optimizer_d.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            fake = paint(z)
            on_real, on_fake = judge(real).float(), judge(fake.detach()).float()
        loss_d = F.relu(1.0 - on_real).mean() + F.relu(1.0 + on_fake).mean()
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            opinion = judge(fake).float()
        loss_g = -opinion.mean()
        loss_g.backward()
        optimizer_g.step()
        follow()
        if read and not graphed:
            log.append((loss_d.item(), loss_g.item(), on_real.mean().item(), on_fake.mean().item()))
            del log[:-100]
        else:
            noted.add_(torch.stack([part.detach() for part in (loss_d, loss_g, on_real.mean(), on_fake.mean())]))

    def ready() -> tuple[Tensor, Tensor]:
        real = next(images).to(s.device, non_blocking=hands > 0)
        if last:
            real = real.contiguous(memory_format=torch.channels_last)
        return real, torch.randn(rows, latent, device=s.device)

    if not graphed:
        return lambda: learn(*ready())
    still = ready()
    work = capture(lambda: learn(*still), s)

    def step() -> Tensor:
        for place, value in zip(still, ready(), strict=True):
            place.copy_(value)
        work()
        return noted

    return step


# Limericks: the next word by an LSTM on lines of many lengths.


class LockedDropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.empty(x.shape[0], 1, x.shape[2], dtype=x.dtype, device=x.device).bernoulli_(1.0 - self.p) / (1.0 - self.p)
        return x * mask


class WordLSTM(nn.Module):
    def __init__(self, words: int, padded: int, size: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=0)
        self.lstm = nn.LSTM(size, hidden, num_layers=2, batch_first=True, dropout=0.3)
        self.before, self.after, self.decoder = LockedDropout(0.4), LockedDropout(0.4), nn.Linear(hidden, padded)
        with torch.no_grad():
            self.decoder.bias[words:] = -1e4

    def forward(self, said: Tensor, lengths: Tensor) -> Tensor:
        x = self.before(self.words(said))
        packed, _ = self.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        y, _ = pad_packed_sequence(packed, batch_first=True, total_length=said.shape[1])
        return self.decoder(self.after(y))


def log_likelihood(logits: Tensor, truth: Tensor) -> Tensor:
    return F.log_softmax(logits.float(), -1).gather(-1, truth[..., None])[..., 0]


def limerick_lines(
    s: Setup,
    *,
    autocast: bool = False,
    aligned: bool = False,
    op: bool = False,
    compiled: bool = False,
    masked: bool = False,
    empty: bool = True,
    fused: bool = False,
    pinned: bool = False,
) -> Step:
    """Training of a word LSTM on 128 packed lines, FP32: 33278 words, a boolean mask in the loss, the cache emptied, perplexity read."""
    rows, most, words = s.size(128, 4), s.size(64, 10), s.size(33278, 54)
    rng = np.random.default_rng(394)
    batches = []
    for _ in range(6):
        lengths = np.clip(rng.lognormal(math.log(most / 2), 0.4, rows).astype(int), 4, most)
        batches.append([torch.from_numpy(np.minimum(rng.zipf(1.2, n + 1), words - 1)) for n in lengths])
    with s.device:
        model = WordLSTM(words, -(-words // 64) * 64 if aligned else words, s.size(512, 8), s.size(1024, 8))
        noted = torch.zeros(2)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3, **({"fused": True} if fused else {}))
    likelihood = s.compile(log_likelihood, dynamic=True) if compiled else log_likelihood
    turn, history = counter(), []

    def collate(lines: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        lengths = torch.tensor([len(line) - 1 for line in lines])
        said = pad_sequence([line[:-1] for line in lines], batch_first=True)
        truth = pad_sequence([line[1:] for line in lines], batch_first=True)
        return said, truth, lengths

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        said, truth, lengths = collate(batches[next(turn) % len(batches)])
        if pinned:
            said, truth = (s.pin(part).to(s.device, non_blocking=True) for part in (said, truth))
        else:
            said, truth = said.to(s.device), truth.to(s.device)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(said, lengths)
        keep = truth != 0
        if masked:
            loss = -(likelihood(logits, truth) * keep).sum() / keep.sum()
        elif op:
            loss = F.cross_entropy(logits[keep].float(), truth[keep])
        else:
            loss = -likelihood(logits[keep], truth[keep]).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()
        if masked:
            noted.add_(torch.stack([loss.detach(), norm]))
        else:
            history.append((math.exp(min(loss.item(), 20.0)), norm.item()))
            del history[:-100]
        del logits
        if empty and s.cuda:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "pinball_player",
        "Updates of a dueling double DQN: 256 transitions are stacked, made floats on the host and copied; three numbers are read.",
        "the replay as tensors, taken by one index; pinned floats copied ahead; bytes copied and scaled on the GPU; no reads; "
        "the target network by foreach; bf16 autocast; torch.compile of both networks; CUDA graph of the update",
        pinball_player,
        {
            "host-bound": {"indexed": True}, "memcpy": {"ahead": True}, "memcpy/bytes": {"small": True}, "sync-stall": {"read": False},
            "optimizer-foreach": {"together": True}, "precision": {"autocast": True}, "launch-gap": {"compiled": True},
            "graph-candidate": {"graphed": True},
        },
    ),
    written(
        "orchid_painter",
        "A residual GAN with spectral norm by hand, 64 images, FP32: images one by one in the loop's process, EMA by name, four reads.",
        "eight workers and pinned memory; bf16 autocast; channels_last; torch.compile of both networks; EMA by foreach; fused Adam; "
        "no reads; CUDA graph of a step",
        orchid_painter,
        {
            "data-loading": {"workers": 8}, "precision": {"autocast": True}, "memory-layout": {"last": True},
            "launch-gap": {"compiled": True}, "optimizer-foreach": {"together": True}, "optimizer-foreach/fused": {"fused": True},
            "sync-stall": {"read": False},
            "graph-candidate": {"graphed": True},
        },
    ),
    written(
        "limerick_lines",
        "A word LSTM in training on 128 packed lines, FP32: 33278 words, a boolean mask in the loss, empty_cache(), perplexity read.",
        "bf16 autocast; 33280 words; F.cross_entropy; torch.compile of the loss; a mask of fixed shape and no reads; "
        "no empty_cache; fused Adam; pinned words",
        limerick_lines,
        {
            "precision": {"autocast": True}, "gemm-alignment": {"aligned": True}, "unfused-elementwise": {"op": True},
            "unfused-elementwise/compiled": {"compiled": True}, "sync-stall": {"masked": True}, "allocator": {"empty": False},
            "optimizer-foreach": {"fused": True}, "memcpy": {"pinned": True},
        },
    ),
)  # fmt: skip
