"""Programs by an author who has not read the rules: plays, castings, podcasts, drones, intercoms, antennas, mosaics, crystals, statues.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
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

BF16 = torch.bfloat16


# Plays: a retentive network learns to go on with radio plays (the parallel form: no softmax, each head forgets at its own rate).


def root_mean(x: Tensor, gain: Tensor | None, library: bool) -> Tensor:
    """RMS norm in FP32; written out unless `library`."""
    if library:
        return F.rms_norm(x, x.shape[-1:], None if gain is None else gain.to(x.dtype), 1e-6)
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return y.to(x.dtype) if gain is None else (y * gain).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def retained(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, decay: Tensor, cos: Tensor, sin: Tensor, library: bool) -> Tensor:
    """What each head still remembers, normed head by head, as much of it as the gate lets through."""
    scores = (turned(q, cos, sin) @ turned(k, cos, sin).transpose(-1, -2)) * decay
    scores = scores / scores.detach().float().abs().sum(-1, keepdim=True).clamp(1.0, 5e4).to(scores.dtype)
    seen = root_mean(scores @ v, None, library).transpose(1, 2).flatten(2)
    return F.silu(gate) * seen


class Scene(nn.Module):
    def __init__(self, width: int, heads: int, library: bool, core: Any) -> None:
        super().__init__()
        self.heads, self.library, self.core = heads, library, core
        self.qkvg, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.before, self.between = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, decay: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v, gate = self.qkvg(root_mean(x, self.before, self.library)).chunk(4, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        x = x + self.out(self.core(q, k * q.shape[-1] ** -0.5, v, gate, decay, cos, sin, self.library))
        return x + self.down(F.gelu(self.up(root_mean(x, self.between, self.library))))


class Playwright(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, length: int, library: bool, core: Any) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.scenes = nn.ModuleList(Scene(width, heads, library, core) for _ in range(layers))
        self.last, self.library = nn.Parameter(torch.ones(width)), library
        rate = torch.log1p(-torch.exp2(-5.0 - torch.arange(heads)))
        place = torch.arange(length)
        apart = (place[:, None] - place[None]).float()
        decay = torch.where(apart >= 0, torch.exp(rate[:, None, None] * apart.clamp(min=0)), 0.0)
        decay = decay / decay.sum(-1, keepdim=True).sqrt()
        angle = place[:, None] * (1.0 / 10000 ** torch.linspace(0, 1, width // heads // 2))
        self.register_buffer("decay", decay.to(BF16))
        self.register_buffer("cos", angle.cos().to(BF16))
        self.register_buffer("sin", angle.sin().to(BF16))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for scene in self.scenes:
            x = scene(x, self.decay, self.cos, self.sin)
        return self.head(root_mean(x, self.last, self.library))


def radio_plays(
    s: Setup, *, padded: bool = False, library: bool = False, compiled: bool = False, fused: bool = False, read: bool = True
) -> Step:
    """Training in bf16 autocast; the tokenizer knows 32,003 pieces."""
    words, width, heads, length, count = s.size(32_003, 101), s.size(1024, 32), s.size(8, 2), s.size(1024, 12), s.size(8, 2)
    core = s.compile(retained, dynamic=False) if compiled else retained
    with s.device:
        model = Playwright(words, width, heads, s.size(4, 1), length, library, core)
        plays = [torch.randint(words, (count, length + 1)) for _ in range(4)]
        if padded:
            more = -words % 64
            weight, bias = F.pad(model.head.weight.detach(), (0, 0, 0, more)), F.pad(model.head.bias.detach(), (0, more), value=-1e4)
            model.head = nn.Linear(1, 1)
            model.head.weight, model.head.bias = nn.Parameter(weight), nn.Parameter(bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=fused or None)
    turn, mean = counter(), torch.zeros((), device=s.device)
    log = [0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        play = plays[next(turn) % len(plays)]
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            says = model(play[:, :-1])
        loss = F.cross_entropy(says.float().flatten(0, 1), play[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if read:
            log[0] = 0.99 * log[0] + 0.01 * loss.item()
        else:
            mean.lerp_(loss.detach(), 0.01)
        return loss.detach()

    return step


# Castings: photographs of cast parts against a bank of what good parts look like (PatchCore).


class Neck(nn.Module):
    """A bottleneck of a wide residual network."""

    def __init__(self, inner: int, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        same = stride == 1 and inner == out
        self.past = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.past(x))


class Camera(nn.Module):
    """The first three stages; patches are described by what the second and the third see of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.one = nn.Sequential(Neck(width, 2 * width, 4 * width, 1), *(Neck(4 * width, 2 * width, 4 * width, 1) for _ in range(2)))
        self.two = nn.Sequential(Neck(4 * width, 4 * width, 8 * width, 2), *(Neck(8 * width, 4 * width, 8 * width, 1) for _ in range(3)))
        self.three = nn.Sequential(
            Neck(8 * width, 8 * width, 16 * width, 2), *(Neck(16 * width, 8 * width, 16 * width, 1) for _ in range(5))
        )

    def forward(self, x: Tensor) -> Tensor:
        near = self.two(self.one(self.stem(x)))
        far = F.interpolate(self.three(near), size=near.shape[-2:], mode="bilinear", align_corners=False)
        return F.avg_pool2d(torch.cat([near, far], 1), 3, 1, 1)


def strangeness(patch: Tensor, bank: Tensor) -> Tensor:
    """How far each patch is from the nearest good one."""
    square = patch.pow(2).sum(-1, keepdim=True) - 2.0 * (patch @ bank.T) + bank.pow(2).sum(-1)
    return square.clamp(min=0.0).sqrt().amin(-1)


def bell(radius: int) -> np.ndarray:
    spots = np.exp(-0.5 * (np.arange(-radius, radius + 1) / (radius / 4.0)) ** 2)
    return (spots / spots.sum()).astype(np.float32)


def blurred(maps: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A Gaussian blur, along one axis after the other."""
    radius = len(kernel) // 2
    for axis in (1, 2):
        wide = np.pad(maps, [(0, 0) if n != axis else (radius, radius) for n in range(3)], mode="reflect")
        side = maps.shape[axis]
        maps = sum(weight * wide.take(range(n, n + side), axis) for n, weight in enumerate(kernel))
    return maps


def casting_defects(
    s: Setup, *, tf32: bool = False, compiled: bool = False, last: bool = False, packed: bool = False, on_gpu: bool = False
) -> Step:
    """Scores and defect maps of sixteen photographs; convolutions take TF32, products do not."""
    count, side, spots, size, radius = s.size(16, 2), s.size(256, 32), s.size(16_384, 24), s.size(512, 8), s.size(12, 3)
    fine, kernel = s.size(128, 8), bell(radius)
    with s.device:
        model = Camera(s.size(64, 2)).eval()
        squeeze = torch.randn(24 * s.size(64, 2), size) * (24 * s.size(64, 2)) ** -0.5
        bank = torch.rand(spots, size)
        mean, spread = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
        row = torch.from_numpy(kernel).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)
    photos = [torch.randint(256, (count, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    queue = Prefetcher([(s.pin(photo),) for photo in photos], s) if packed else None
    far, turn = s.compile(strangeness, dynamic=False) if compiled else strangeness, counter()

    @torch.no_grad()
    def step() -> tuple[np.ndarray, np.ndarray]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        if queue:
            x = queue.next()[0].float().div(255.0)
        else:
            x = photos[next(turn) % len(photos)].float().div(255.0).to(s.device)
        x = (x - mean) / spread
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        seen = model(x).permute(0, 2, 3, 1)
        high, wide = seen.shape[1:3]
        strange = far(seen.reshape(-1, seen.shape[-1]) @ squeeze, bank).view(count, 1, high, wide)
        maps = F.interpolate(strange, size=(fine, fine), mode="bilinear", align_corners=False)
        if on_gpu:
            maps = F.pad(maps, (radius, radius, radius, radius), mode="reflect")
            maps = F.conv2d(F.conv2d(maps, row[None, None, :, None]), row[None, None, None])[:, 0]
            maps = maps.cpu().numpy()
        else:
            maps = blurred(maps[:, 0].cpu().numpy(), kernel)
        return maps, maps.max((1, 2))

    return step


# Podcasts: whether a listener goes on with what is offered next (a deep interest network).


class Interest(nn.Module):
    """How much each podcast that was heard says about the one on offer."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4 * size, width), nn.Linear(width, width // 2), nn.Linear(width // 2, 1)
        self.slope = nn.Parameter(torch.full((2,), 0.25))

    def forward(self, heard: Tensor, offer: Tensor, known: Tensor) -> Tensor:
        offer = offer[:, None].expand_as(heard)
        y = self.one(torch.cat([offer, heard, offer - heard, offer * heard], -1))
        gate = torch.sigmoid(y)
        y = self.two(gate * y + (1.0 - gate) * self.slope[0] * y)
        gate = torch.sigmoid(y)
        weight = self.three(gate * y + (1.0 - gate) * self.slope[1] * y)[..., 0]
        weight = torch.sigmoid(weight) * known
        return (weight[..., None] * heard).sum(1)


class Feed(nn.Module):
    def __init__(self, podcasts: int, topics: int, listeners: int, size: int, width: int) -> None:
        super().__init__()
        half = size // 2
        self.podcast, self.topic, self.listener = nn.Embedding(podcasts, half), nn.Embedding(topics, half), nn.Embedding(listeners, size)
        self.interest = Interest(size, width)
        self.say = nn.Sequential(
            nn.Linear(4 * size, 2 * width), nn.PReLU(), nn.Linear(2 * width, width), nn.PReLU(), nn.Linear(width, 1)
        )

    def forward(self, listener: Tensor, offer: Tensor, heard: Tensor, topics: Tensor) -> Tensor:
        """`offer` and `heard` are podcasts, `topics` is of all podcasts; 0 where nothing was heard."""
        told = torch.cat([self.podcast(offer), self.topic(topics[offer])], -1)
        past = torch.cat([self.podcast(heard), self.topic(topics[heard])], -1)
        mine, who = self.interest(past, told, (heard > 0).float()), self.listener(listener)
        return self.say(torch.cat([who, told, mine, mine * told], -1))[:, 0]


def podcast_feed(
    s: Setup, *, none: bool = False, fused: bool = False, tf32: bool = False, compiled: bool = False, ahead: bool = False
) -> Step:
    """Training in FP32 on 2048 offers after a hundred podcasts each, under Adam with dense gradients that are filled with zeros."""
    count, past, podcasts, listeners, topics = s.size(2048, 4), s.size(100, 5), s.size(1_500_000, 40), s.size(500_000, 20), s.size(800, 6)
    with s.device:
        model = Feed(podcasts, topics, listeners, s.size(64, 8), s.size(128, 8))
        kinds = torch.randint(topics, (podcasts,))
    if compiled:
        model.interest = s.compile(model.interest, dynamic=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused or None)
    batches = []
    for _ in range(4):
        heard = torch.randint(1, podcasts, (count, past)) * (torch.arange(past) < torch.randint(1, past + 1, (count, 1)))
        batches.append((torch.randint(listeners, (count,)), torch.randint(podcasts, (count,)), heard, torch.rand(count).round()))
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    turn, mean = counter(), torch.zeros((), device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        batch = queue.next() if queue else tuple(part.to(s.device) for part in batches[next(turn) % len(batches)])
        listener, offer, heard, went_on = batch
        optimizer.zero_grad(set_to_none=none)
        loss = F.binary_cross_entropy_with_logits(model(listener, offer, heard, kinds), went_on)
        loss.backward()
        optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        return loss.detach()

    return step


# Racing drones: four thousand of them hover towards their gates, all on the GPU, and a policy learns by PPO.


def crossed(a: Tensor, b: Tensor) -> Tensor:
    (ax, ay, az), (bx, by, bz) = a.unbind(-1), b.unbind(-1)
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], -1)


def flown(state: Tensor, action: Tensor) -> Tensor:
    """A fiftieth of a second in two parts. A state is place, speed, attitude as quaternion, turning rates and four motors."""
    place, speed, pose, rates, motors = state.split([3, 3, 4, 3, 4], -1)
    wanted = 0.5 + 0.5 * torch.tanh(action)
    for _ in range(2):
        motors = motors + 0.25 * (wanted - motors)
        thrust = 5.2 * motors.square()
        first, second, third, fourth = thrust.unbind(-1)
        push = torch.stack([first + second - third - fourth, second + third - first - fourth, 0.3 * (first + third - second - fourth)], -1)
        scalar, vector = pose[..., :1], pose[..., 1:]
        up = torch.zeros_like(place)
        up[..., 2] = thrust.sum(-1)
        twice = 2.0 * crossed(vector, up)
        lift = up + scalar * twice + crossed(vector, twice)
        speed = speed + 0.01 * (lift - 0.15 * speed * speed.abs())
        speed = torch.cat([speed[..., :2], speed[..., 2:] - 0.0981], -1)
        place = place + 0.01 * speed
        spin = torch.cat([-(vector * rates).sum(-1, keepdim=True), scalar * rates + crossed(vector, rates)], -1)
        pose = pose + 0.005 * spin
        pose = pose / pose.square().sum(-1, keepdim=True).sqrt()
        heavy = torch.cat([rates[..., :2], 1.7 * rates[..., 2:]], -1)
        rates = rates + 0.01 * (4.0 * push - crossed(rates, heavy) - 0.3 * rates)
    return torch.cat([place, speed, pose, rates, motors], -1)


class Racer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.act = nn.Sequential(nn.Linear(17, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 4))
        self.worth = nn.Sequential(nn.Linear(17, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, 1))
        self.spread = nn.Parameter(torch.full((4,), -0.5))

    def likely(self, mean: Tensor, action: Tensor) -> Tensor:
        return (-0.5 * ((action - mean) / self.spread.exp()).square() - self.spread - 0.919).sum(-1)


def hover_racers(
    s: Setup, *, compiled: bool = False, graphed: bool = False, read: bool = True, fused: bool = False, autocast: bool = False
) -> Step:
    """Twenty-four moments of all drones, then four small batches twice. Those that fell begin anew; how far the policy went is read."""
    count, moments, parts = s.size(4096, 8), s.size(24, 3), s.size(4, 2)
    with s.device:
        model = Racer(s.size(256, 8))
        begin, gate = torch.zeros(17), torch.tensor([0.0, 0.0, 2.0])
        begin[2], begin[6], begin[13:] = 2.0, 1.0, 0.69
        state = begin + 0.1 * torch.randn(count, 17)
        states, actions = torch.zeros(moments, count, 17), torch.zeros(moments, count, 4)
        old, worth, reward, alive = (torch.zeros(moments, count) for _ in range(4))
        noted = torch.zeros(2 * parts)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=fused or None)
    fly, log = s.compile(flown, dynamic=False) if compiled else flown, [0.0]
    asked = read and not graphed

    @torch.no_grad()
    def collect() -> None:
        for moment in range(moments):
            states[moment].copy_(state)
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                mean, value = model.act(state).float(), model.worth(state).float()
            action = mean + model.spread.exp() * torch.randn_like(mean)
            actions[moment].copy_(action)
            old[moment].copy_(model.likely(mean, action))
            worth[moment].copy_(value[:, 0])
            state.copy_(fly(state, action))
            away = (state[:, :3] - gate).square().sum(-1).sqrt()
            reward[moment].copy_(torch.exp(-away) - 0.01 * action.square().sum(-1) - 0.02 * state[:, 10:13].square().sum(-1))
            fell = (state[:, 2] < 0.1) | (away > 3.0) | (state[:, 7:9].abs().amax(-1) > 0.7)
            alive[moment].copy_(~fell)
            if asked:
                these = fell.nonzero()[:, 0]
                if len(these):
                    state[these] = begin + 0.1 * torch.randn(len(these), 17, device=s.device)
            else:
                state.copy_(torch.where(fell[:, None], begin + 0.1 * torch.randn(count, 17, device=s.device), state))

    def update(these: Tensor, gain: Tensor, goal: Tensor) -> Tensor:
        seen, done = states.flatten(0, 1)[these], actions.flatten(0, 1)[these]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            mean, value = model.act(seen).float(), model.worth(seen).float()
        more = model.likely(mean, done) - old.flatten()[these]
        ratio = more.exp()
        part = gain[these]
        part = (part - part.mean()) / (part.std() + 1e-8)
        chosen = torch.minimum(ratio * part, ratio.clamp(0.8, 1.2) * part).mean()
        loss = F.mse_loss(value[:, 0], goal[these]) - chosen - 0.003 * model.spread.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return ((ratio - 1.0) - more).mean().detach()

    torch.set_float32_matmul_precision("high")
    gather = capture(collect, s) if graphed else collect

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        gather()
        with torch.no_grad():
            ahead, gains = model.worth(state)[:, 0], []
            later = torch.zeros_like(ahead)
            for moment in reversed(range(moments)):
                wrong = reward[moment] + 0.99 * alive[moment] * ahead - worth[moment]
                later = wrong + 0.99 * 0.95 * alive[moment] * later
                ahead = worth[moment]
                gains.append(later)
            gain = torch.stack(gains[::-1]).flatten()
            goal = gain + worth.flatten()
        for turn in range(2):
            for part, these in enumerate(torch.randperm(moments * count, device=s.device).chunk(parts)):
                apart = update(these, gain, goal)
                if read:
                    log[0] = 0.9 * log[0] + 0.1 * apart.item()
                else:
                    noted[turn * parts + part].copy_(apart)
        return reward.mean()

    return step


# Intercom: two seconds of one call without the street's noise (a causal Demucs).


class Intercom(nn.Module):
    def __init__(self, width: int, depth: int, weightless: bool) -> None:
        super().__init__()
        norm = (lambda layer: layer) if weightless else weight_norm
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        inner = 1
        for n in range(depth):
            out = min(width * 2**n, 16 * width)
            self.down.append(
                nn.Sequential(norm(nn.Conv1d(inner, out, 8, 4)), nn.ReLU(), norm(nn.Conv1d(out, 2 * out, 1)), nn.GLU(1))
            )
            last = [] if n == 0 else [nn.ReLU()]
            self.up.insert(
                0, nn.Sequential(norm(nn.Conv1d(out, 2 * out, 1)), nn.GLU(1), norm(nn.ConvTranspose1d(out, inner, 8, 4)), *last)
            )
            inner = out
        self.memory = nn.LSTM(inner, inner, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        loud = x.std(-1, keepdim=True) + 1e-3
        y, kept = x / loud, []
        for layer in self.down:
            y = layer(y)
            kept.append(y)
        y = self.memory(y.transpose(1, 2))[0].transpose(1, 2)
        for layer in self.up:
            y = layer(y + kept.pop()[..., : y.shape[-1]])
        return y.float() * loud


def intercom_denoiser(
    s: Setup,
    *,
    folded: bool = False,
    calls: int = 1,
    graphed: bool = False,
    pinned: bool = False,
    autocast: bool = False,
    asked: bool = True,
) -> Step:
    """One call at a time in FP32 with TF32; weights are normed in each, and silence is asked for first."""
    depth = s.size(5, 2)
    length = 8
    for _ in range(depth - 1):
        length = 4 * (length - 1) + 8
    length = length + s.size(29, 2) * 4**depth
    with s.device:
        model = Intercom(s.size(64, 4), depth, False).eval()
        if folded:
            for layer in model.modules():
                if parametrize.is_parametrized(layer, "weight"):
                    parametrize.remove_parametrizations(layer, "weight")
        still = torch.zeros(calls, 1, length)
    sound = np.random.default_rng(1).integers(-20_000, 20_000, (8, calls, 1, length), dtype=np.int16)
    turn, host = counter(), s.pin(torch.zeros(calls, 1, length)) if pinned else None

    @torch.no_grad()
    def network(x: Tensor) -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return model(x)

    torch.set_float32_matmul_precision("high")
    out: list[Tensor] = []

    def static() -> None:
        out[:] = [network(still)]

    work = capture(static, s) if graphed else None

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("high")
        heard = torch.from_numpy(sound[next(turn) % len(sound)]).float().div_(32_768.0)
        if host is not None:
            heard = host.copy_(heard)
        if work:
            still.copy_(heard)
            x = still
        else:
            x = heard.to(s.device, non_blocking=pinned)
        if asked and x.abs().max() < 1e-4:
            return np.zeros((calls, length), np.int16)
        if work:
            work()
        clean = out[0] if work else network(x)
        clean = (clean[:, 0].clamp(-1.0, 1.0) * 32_767.0).to(torch.int16)
        return clean.cpu().numpy()

    return step


# Antennas: Maxwell's equations around a dipole, on Yee's grid.


def magnetic(electric: Tensor, field: Tensor, pull: float) -> None:
    x, y, z = electric.unbind(0)
    field[0, :, :-1, :-1] -= pull * ((z[:, 1:, :-1] - z[:, :-1, :-1]) - (y[:, :-1, 1:] - y[:, :-1, :-1]))
    field[1, :-1, :, :-1] -= pull * ((x[:-1, :, 1:] - x[:-1, :, :-1]) - (z[1:, :, :-1] - z[:-1, :, :-1]))
    field[2, :-1, :-1, :] -= pull * ((y[1:, :-1, :] - y[:-1, :-1, :]) - (x[:-1, 1:, :] - x[:-1, :-1, :]))


def electrified(field: Tensor, electric: Tensor, matter: Tensor, loss: Tensor, edge: Tensor, pull: float) -> None:
    x, y, z = field.unbind(0)
    push = pull / matter[1:, 1:, 1:]
    keeps = 1.0 - loss[1:, 1:, 1:]
    inner = electric[:, 1:, 1:, 1:]
    one, two = (z[1:, 1:, 1:] - z[1:, :-1, 1:]) - (y[1:, 1:, 1:] - y[1:, 1:, :-1]), (x[1:, 1:, 1:] - x[1:, 1:, :-1])
    two = two - (z[1:, 1:, 1:] - z[:-1, 1:, 1:])
    three = (y[1:, 1:, 1:] - y[:-1, 1:, 1:]) - (x[1:, 1:, 1:] - x[1:, :-1, 1:])
    for n, curl in enumerate((one, two, three)):
        inner[n].mul_(keeps).add_(push * curl)
    electric.mul_(edge[:, None, None]).mul_(edge[:, None]).mul_(edge)


def antenna_fields(
    s: Setup, *, compiled: bool = False, kept: bool = False, read: bool = True, whole: bool = False, graphed: bool = False
) -> Step:
    """Six moments; matter is kept in FP16, probes are read in each moment, and memory is given back after each step."""
    side, moments, pull = s.size(256, 12), s.size(6, 2), 0.45
    with s.device:
        electric, field = torch.zeros(3, side, side, side), torch.zeros(3, side, side, side)
        matter, loss = 1.0 + 3.0 * (torch.rand(side, side, side) > 0.9).half(), (0.01 * torch.rand(side, side, side)).half()
        away = torch.arange(side).sub(0.5 * (side - 1)).abs()
        edge = torch.exp(-0.02 * (away - 0.4 * side).clamp(min=0.0))
        spots = torch.randint(side, (3, 16))
        ticks, seen = torch.zeros(()), torch.zeros(moments, 16)
    if kept:
        matter, loss = matter.float(), loss.float()
    turn_field = s.compile(magnetic, dynamic=False) if compiled else magnetic
    turn_electric = s.compile(electrified, dynamic=False) if compiled else electrified
    middle, log = side // 2, [[0.0] * 16 for _ in range(moments)]
    asked = read and not graphed

    @torch.no_grad()
    def advance() -> None:
        for moment in range(moments):
            turn_field(electric, field, pull)
            turn_electric(field, electric, matter if kept else matter.float(), loss if kept else loss.float(), edge, pull)
            ticks.add_(1.0)
            electric[2, middle, middle, middle] += torch.sin(0.2 * ticks)
            probes = electric[2, spots[0], spots[1], spots[2]]
            if asked:
                log[moment] = probes.tolist()
            else:
                seen[moment].copy_(probes)

    work = capture(advance, s) if graphed else advance

    def step() -> Tensor:
        work()
        if graphed and read:
            log[:] = seen.tolist()
        if not whole and s.cuda:
            torch.cuda.empty_cache()
        return electric

    return step


# Mosaics: eight pictures as codes, all at once and then the unsure ones again (MaskGIT).


class Tessera(nn.Module):
    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v)
        else:
            seen = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Mosaicist(nn.Module):
    def __init__(self, codes: int, kinds: int, places: int, width: int, heads: int, layers: int, sdpa: bool) -> None:
        super().__init__()
        self.code, self.kind, self.place = nn.Embedding(codes + 1, width), nn.Embedding(kinds, width), nn.Embedding(places, width)
        self.layers = nn.ModuleList(Tessera(width, heads, sdpa) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, codes)

    def forward(self, codes: Tensor, kind: Tensor) -> Tensor:
        x = self.code(codes) + self.place.weight + self.kind(kind)[:, None]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def mosaic_tokens(
    s: Setup, *, graphed: bool = False, cast: bool = False, sdpa: bool = False, read: bool = True, compiled: bool = False
) -> Step:
    """Eight rounds with FP32 weights under bf16 autocast; it is asked in each whether anything is still hidden."""
    count, places, codes, rounds = s.size(8, 2), s.size(256, 16), s.size(1024, 16), s.size(8, 3)
    with s.device:
        model = Mosaicist(codes, s.size(1000, 5), places, s.size(768, 32), s.size(12, 2), s.size(8, 1), sdpa).eval()
        kind = torch.randint(s.size(1000, 5), (count,))
    if cast:
        model = model.to(BF16)
    network = s.compile(model, dynamic=False) if compiled else model
    kept = torch.zeros(count, places, dtype=torch.long, device=s.device)
    asked = read and not graphed

    @torch.no_grad()
    def paint() -> Tensor:
        painted = torch.full((count, places), codes, device=s.device)
        for turn in range(rounds):
            hidden = painted == codes
            if asked and not hidden.any():
                break
            with torch.autocast(s.device.type, BF16, enabled=not cast):
                logits = network(painted, kind)
            logits = logits.float()
            dice = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1.0 - 1e-6)))
            drawn = (logits + dice).argmax(-1)
            sure = torch.softmax(logits, -1).gather(-1, drawn[..., None])[..., 0].log()
            heat = 4.5 * (1.0 - (turn + 1) / rounds)
            sure = sure - heat * torch.log(-torch.log(torch.rand_like(sure).clamp(1e-9, 1.0 - 1e-6)))
            sure = sure.masked_fill(~hidden, math.inf)
            drawn = torch.where(hidden, drawn, painted)
            again = int(places * math.cos(0.5 * math.pi * (turn + 1) / rounds))
            if again > 0 and turn + 1 < rounds:
                edge = sure.sort(-1).values[:, again : again + 1]
                drawn = torch.where(sure < edge, codes, drawn)
            painted = drawn
        kept.copy_(painted)
        return kept

    torch.set_float32_matmul_precision("high")
    work = capture(paint, s) if graphed else paint

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        work()
        return kept

    return step


# Crystals: energies of crystals by messages along their atoms' nearest neighbours (as CGCNN and SchNet do).


class Crystals(Dataset[tuple[np.ndarray, np.ndarray, np.ndarray, np.float32]]):
    """Kinds of atoms, the nearest neighbours of each, and how far these are, through the cell's walls too."""

    def __init__(self, stored: int, atoms: int, near: int) -> None:
        rng = np.random.default_rng(3)
        self.near, self.kinds = near, rng.integers(0, 90, (stored, atoms))
        self.places = rng.random((stored, atoms, 3)).astype(np.float32)
        self.cells = (np.eye(3) * 9.0 + rng.normal(0.0, 0.6, (stored, 3, 3))).astype(np.float32)
        self.energies = rng.normal(0.0, 1.0, stored).astype(np.float32)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.float32]:
        places, atoms = self.places[index], self.places.shape[1]
        apart = places[:, None] - places[None]
        apart = (apart - np.round(apart)) @ self.cells[index]
        away = np.sqrt((apart**2).sum(-1))
        away[np.arange(atoms), np.arange(atoms)] = 1e3
        these = np.argsort(away, 1)[:, : self.near]
        return self.kinds[index], these, np.take_along_axis(away, these, 1), self.energies[index]


def joined(crystals: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.float32]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One large graph of all crystals; edges are pairs of atoms' numbers."""
    kinds, froms, tos, aways, energies, first = [], [], [], [], [], 0
    for kind, these, away, energy in crystals:
        atoms = len(kind)
        kinds.append(kind)
        froms.append((these + first).reshape(-1))
        tos.append(np.repeat(np.arange(first, first + atoms), these.shape[1]))
        aways.append(away.reshape(-1))
        energies.append(energy)
        first += atoms
    edges = np.stack([np.concatenate(froms), np.concatenate(tos)])
    return torch.from_numpy(np.concatenate(kinds)), torch.from_numpy(edges), torch.from_numpy(np.concatenate(aways)), torch.tensor(energies)


class Message(nn.Module):
    def __init__(self, width: int, bells: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2 * width + bells, 2 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, edges: Tensor, bells: Tensor, near: Tensor) -> Tensor:
        gate, said = self.one(torch.cat([x[edges[0]], x[edges[1]], bells], -1)).chunk(2, -1)
        said = torch.sigmoid(gate) * F.softplus(said) * near[:, None]
        told = torch.zeros_like(x).index_add(0, edges[1], said)
        return x + F.silu(self.two(self.norm(told)))


class Lattice(nn.Module):
    def __init__(self, width: int, bells: int, layers: int) -> None:
        super().__init__()
        self.kind, self.layers = nn.Embedding(90, width), nn.ModuleList(Message(width, bells) for _ in range(layers))
        self.say = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("middles", torch.linspace(0.0, 6.0, bells))

    def forward(self, kinds: Tensor, edges: Tensor, away: Tensor, crystals: int) -> Tensor:
        bells = torch.exp(-10.0 * (away[:, None] - self.middles).square())
        near = 0.5 * (torch.cos(math.pi * (away / 6.0).clamp(max=1.0)) + 1.0)
        x = self.kind(kinds)
        for layer in self.layers:
            x = layer(x, edges, bells, near)
        return self.say(x).view(crystals, -1).mean(1)


def without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def crystal_energies(
    s: Setup,
    *,
    workers: bool = False,
    read: bool = True,
    tf32: bool = False,
    compiled: bool = False,
    pinned: bool = False,
    fused: bool = False,
) -> Step:
    """Training in FP32 on 128 crystals, whose neighbours this process looks for; loss and mean error are read."""
    count, atoms, near = s.size(128, 3), s.size(48, 6), s.size(16, 3)
    data = Crystals(s.size(8192, 12), atoms, near)
    more: dict[str, Any] = {"num_workers": s.size(4, 1), "persistent_workers": True, "prefetch_factor": 4} if workers else {}
    batches = without_end(DataLoader(data, count, drop_last=True, collate_fn=joined, pin_memory=pinned and s.cuda, **more))
    with s.device:
        model = Lattice(s.size(128, 8), s.size(32, 4), s.size(4, 1))
        noted = torch.zeros(2)
    run = s.compile(model, dynamic=False) if compiled else model
    optimizer, log = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None), [0.0, 0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        kinds, edges, away, energy = (part.to(s.device, non_blocking=pinned) for part in next(batches))
        optimizer.zero_grad()
        guess = run(kinds, edges, away, count)
        loss = F.huber_loss(guess, energy)
        loss.backward()
        optimizer.step()
        wrong = (guess.detach() - energy).abs().mean()
        if read:
            log[0], log[1] = loss.item(), wrong.item()
        else:
            noted.copy_(torch.stack([loss.detach(), wrong]))
        return loss.detach()

    return step


# Statues: distances to a museum's statue, learnt from drawn points by a grid of hashes and a small network (instant neural graphics).


def hashed(points: Tensor, sides: Tensor, corners: Tensor, entries: int) -> tuple[Tensor, Tensor]:
    """At each level, which entries are at the corners of a point's cell, and how much each counts. sides: of one level or of many."""
    scaled = points * sides[..., None, None]
    low = scaled.floor()
    part = (scaled - low)[..., None, :]
    spots = low.long()[..., None, :] + corners
    x, y, z = spots.unbind(-1)
    which = (x ^ (y * 2_654_435_761) ^ (z * 805_459_861)) % entries
    weight = torch.where(corners == 1, part, 1.0 - part)
    return which, weight[..., 0] * weight[..., 1] * weight[..., 2]


def looked_up(tables: Tensor, points: Tensor, sides: Tensor, corners: Tensor) -> Tensor:
    """Level by level."""
    found = []
    for table, side in zip(tables, sides, strict=True):
        which, weight = hashed(points, side, corners, len(table))
        found.append((table[which] * weight[..., None]).sum(-2))
    return torch.cat(found, -1)


def looked_up_at_once(tables: Tensor, points: Tensor, sides: Tensor, corners: Tensor) -> Tensor:
    """The same for all levels at once."""
    levels, entries = tables.shape[:2]
    which, weight = hashed(points, sides, corners, entries)
    which = which + entries * torch.arange(levels, device=points.device)[:, None, None]
    found = (tables.flatten(0, 1)[which] * weight[..., None]).sum(-2)
    return found.transpose(0, 1).flatten(1)


def statue(points: Tensor, middles: Tensor, sizes: Tensor) -> Tensor:
    """The true distance: forty balls, melted together."""
    away = (points[:, None] - middles).square().sum(-1).sqrt() - sizes
    return -torch.logsumexp(-32.0 * away, 1) / 32.0


def museum_statue(
    s: Setup,
    *,
    drawn: bool = False,
    compiled: bool = False,
    at_once: bool = False,
    autocast: bool = False,
    fused: bool = False,
    read: bool = True,
) -> Step:
    """Training with TF32 on 131,072 points, which NumPy draws in each step; twelve levels one after another; the loss is read."""
    count, levels, entries, width = s.size(131_072, 32), s.size(12, 3), s.size(2**18, 32), s.size(64, 8)
    with s.device:
        tables = nn.Parameter(1e-2 * torch.randn(levels, entries, 2))
        sides = torch.floor(16.0 * 1.45 ** torch.arange(levels))
        corners = torch.tensor([[n & 1, n >> 1 & 1, n >> 2 & 1] for n in range(8)])
        network = nn.Sequential(nn.Linear(2 * levels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        middles, sizes = 0.25 + 0.5 * torch.rand(40, 3), 0.03 + 0.07 * torch.rand(40)
        noted = torch.zeros(())
    optimizer = torch.optim.Adam([tables, *network.parameters()], lr=1e-3, eps=1e-15, fused=fused or None)
    encode = looked_up_at_once if at_once else looked_up
    encode = s.compile(encode, dynamic=False) if compiled else encode
    rng, known, log = np.random.default_rng(5), middles.cpu().numpy(), [0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        if drawn:
            half = count // 2
            about = middles[torch.randint(40, (half,), device=s.device)] + 0.06 * torch.randn(half, 3, device=s.device)
            points = torch.cat([about.clamp_(0.0, 1.0), torch.rand(count - half, 3, device=s.device)])
        else:
            spots = rng.random((count, 3))
            about = known[rng.integers(0, 40, count // 2)]
            spots[: count // 2] = about + 0.06 * rng.standard_normal((count // 2, 3))
            points = torch.from_numpy(np.clip(spots, 0.0, 1.0).astype(np.float32)).to(s.device)
        true = statue(points, middles, sizes)
        optimizer.zero_grad()
        found = encode(tables, points, sides, corners)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = network(found)[:, 0]
        loss = ((guess.float() - true).abs() / (true.abs() + 0.01)).mean()
        loss.backward()
        optimizer.step()
        if read:
            log[0] = 0.95 * log[0] + 0.05 * loss.item()
        else:
            noted.lerp_(loss.detach(), 0.05)
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "radio_plays", "A retentive network of four layers in training, bf16 autocast, 32,003 pieces; norms written out; the loss is read.",
        "vocabulary of 32,064; F.rms_norm; torch.compile of the retention; fused AdamW; the loss is not read", radio_plays,
        {
            "gemm-alignment": {"padded": True}, "unfused-norm": {"library": True}, "unfused-elementwise": {"compiled": True},
            "optimizer-foreach": {"fused": True}, "sync-stall": {"read": False},
        }, gpu_bound=True,
    ),
    written(
        "casting_defects", "PatchCore on sixteen castings, FP32 products, TF32 convolutions, NCHW; pageable floats; NumPy blurs the maps.",
        "TF32; torch.compile of the distances; channels_last; pinned bytes ahead; the maps are blurred on the GPU", casting_defects,
        {
            "precision/tf32": {"tf32": True}, "unfused-elementwise": {"compiled": True}, "memory-layout": {"last": True},
            "memcpy": {"packed": True}, "host-bound": {"on_gpu": True},
        },
    ),
    written(
        "podcast_feed", "A deep interest network in training on 2048 offers, FP32; dense gradients filled with zeros; pageable lists.",
        "set_to_none; fused Adam; TF32; torch.compile of the interest; pinned lists on a side stream", podcast_feed,
        {
            "grad-zeroing": {"none": True}, "optimizer-foreach": {"fused": True}, "precision/tf32": {"tf32": True},
            "unfused-elementwise": {"compiled": True}, "memcpy": {"ahead": True},
        }, gpu_bound=True,
    ),
    written(
        "hover_racers", "PPO with 4096 drones simulated on the GPU, TF32: 24 moments, pointwise; the fallen are looked for in each.",
        "torch.compile of the flight; the moments as a CUDA graph; nothing is read; fused Adam; bf16 autocast", hover_racers,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"read": False},
            "optimizer-foreach": {"fused": True}, "precision/bf16": {"autocast": True},
        },
    ),
    written(
        "intercom_denoiser", "A causal Demucs on two seconds of one call, TF32; weights are normed in each; silence is asked for; pageable.",
        "weights folded once; eight calls in one; the network as a CUDA graph; pinned sound; bf16 autocast; nobody asks", intercom_denoiser,
        {
            "weight-norm": {"folded": True}, "launch-gap/requests": {"calls": 8}, "graph-candidate": {"graphed": True},
            "memcpy": {"pinned": True}, "precision/bf16": {"autocast": True}, "sync-stall": {"asked": False},
        }, shared={"launch-gap/requests": 8.0},
    ),
    written(
        "antenna_fields", "Six moments of Maxwell's equations in 256 x 256 x 256 cells; matter is FP16, probes are read, empty_cache.",
        "torch.compile of both halves; matter in FP32; probes are kept; no empty_cache; the moments as a CUDA graph", antenna_fields,
        {
            "unfused-elementwise": {"compiled": True}, "dtype-casts": {"kept": True}, "sync-stall": {"read": False},
            "allocator": {"whole": True}, "graph-candidate": {"graphed": True},
        }, gpu_bound=True,
    ),
    written(
        "mosaic_tokens", "MaskGIT, eight pictures in eight rounds, FP32 weights in bf16 autocast, attention written out; each round asks.",
        "all rounds as a CUDA graph; weights cast once; scaled_dot_product_attention; nobody asks; torch.compile of the net", mosaic_tokens,
        {
            "graph-candidate": {"graphed": True}, "dtype-casts": {"cast": True}, "unfused-attention": {"sdpa": True},
            "sync-stall": {"read": False}, "launch-gap": {"compiled": True},
        },
    ),
    written(
        "crystal_energies", "Messages in 128 crystals, training in FP32; NumPy looks for neighbours in this process; two numbers are read.",
        "four workers; nothing is read; TF32; torch.compile; pinned batches; fused AdamW", crystal_energies,
        {
            "data-loading": {"workers": True}, "sync-stall": {"read": False}, "precision/tf32": {"tf32": True},
            "unfused-elementwise": {"compiled": True}, "memcpy": {"pinned": True}, "optimizer-foreach": {"fused": True},
        },
    ),
    written(
        "museum_statue", "A grid of hashes learns from 131,072 points that NumPy draws; twelve levels one by one, TF32; the loss is read.",
        "drawn on the GPU; torch.compile of the look-up; levels at once; bf16 autocast; fused Adam; the loss is not read", museum_statue,
        {
            "host-bound": {"drawn": True}, "unfused-elementwise": {"compiled": True}, "launch-gap": {"at_once": True},
            "precision/bf16": {"autocast": True}, "optimizer-foreach": {"fused": True}, "sync-stall": {"read": False},
        },
    ),
)  # fmt: skip
