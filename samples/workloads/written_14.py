"""Programs by an author who has not read the rules, the ninth set: particles in cells, brush strokes, earthquakes, talk in a tavern, trials, tapes, speakers, plankton.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


# Structural biology: which of six particles each voxel of a cell's tomogram belongs to.


class Twice(nn.Sequential):
    def __init__(self, inner: int, outer: int) -> None:
        layers: list[nn.Module] = []
        for come in (inner, outer):
            layers += [nn.Conv3d(come, outer, 3, padding=1, bias=False), nn.BatchNorm3d(outer), nn.LeakyReLU(0.1, inplace=True)]
        super().__init__(*layers)


class Volumes(nn.Module):
    """A U-Net in three dimensions, three levels deep."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        wide = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList([Twice(1, wide[0]), Twice(wide[0], wide[1]), Twice(wide[1], wide[2])])
        self.rise = nn.ModuleList([nn.ConvTranspose3d(wide[2], wide[1], 2, 2), nn.ConvTranspose3d(wide[1], wide[0], 2, 2)])
        self.up = nn.ModuleList([Twice(2 * wide[1], wide[1]), Twice(2 * wide[0], wide[0])])
        self.last = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        passed = []
        for level, down in enumerate(self.down):
            x = down(F.max_pool3d(x, 2) if level else x)
            passed.append(x)
        passed.pop()
        for rise, up in zip(self.rise, self.up, strict=True):
            x = up(torch.cat([rise(x), passed.pop()], 1))
        return self.last(x)


def _voxel_loss(scores: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Weighted cross entropy; most voxels are nothing at all."""
    high = torch.exp(scores - scores.amax(1, keepdim=True))
    chance = high / high.sum(1, keepdim=True)
    own = F.one_hot(labels, scores.shape[1]).permute(0, 4, 1, 2, 3).to(scores.dtype) * weight.view(1, -1, 1, 1, 1)
    return -(own * torch.log(chance + 1e-8)).sum() / own.sum()


def tomogram_particles(s: Setup, *, autocast: bool = False, last: bool = False, empties: bool = True, library: bool = False) -> Step:
    """Two cubes cut out of a tomogram a step; what they leave in the allocator is given back, as the whole volume is looked at in between."""
    count, side, classes = s.size(2, 1), s.size(80, 8), 7
    layout = {"memory_format": torch.channels_last_3d} if last else {}
    model = Volumes(s.size(32, 4), classes).to(s.device, **layout)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    cubes = torch.randn(count, 1, side, side, side, device=s.device).to(**layout)  # type: ignore[call-overload]
    labels = torch.randint(classes, (count, side, side, side), device=s.device)
    weight = torch.tensor([0.1, 1.0, 1.0, 2.0, 1.0, 2.0, 1.0], device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = model(cubes)
        scores = scores.float()
        loss = F.cross_entropy(scores, labels, weight) if library else _voxel_loss(scores, labels, weight)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if empties and s.cuda:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


# Graphics: a painting made of a thousand soft strokes, laid over each other from front to back.


def _strokes(pixels: Tensor, at: Tensor, spread: Tensor, angle: Tensor, cover: Tensor) -> Tensor:
    """How much of each stroke is seen at each pixel: (pixels, strokes)."""
    away = pixels[:, None, :] - at[None, :, :]
    c, n = torch.cos(angle), torch.sin(angle)
    along = (away[..., 0] * c + away[..., 1] * n) / torch.exp(spread[:, 0])
    across = (away[..., 1] * c - away[..., 0] * n) / torch.exp(spread[:, 1])
    opaque = (torch.sigmoid(cover) * torch.exp(-0.5 * (along**2 + across**2))).clamp(max=0.99)
    clear = torch.log1p(-opaque)
    return opaque * torch.exp(torch.cumsum(clear, 1) - clear)


def splat_painting(s: Setup, *, compiled: bool = False, autocast: bool = False, log: bool = True) -> Step:
    side, count = s.size(256, 8), s.size(1024, 12)
    line = torch.linspace(0, 1, side, device=s.device)
    pixels = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
    picture = torch.rand(side * side, 3, device=s.device)
    at, spread = nn.Parameter(torch.rand(count, 2, device=s.device)), nn.Parameter(torch.full((count, 2), -3.5, device=s.device))
    angle, cover = nn.Parameter(torch.rand(count, device=s.device) * math.pi), nn.Parameter(torch.full((count,), -1.0, device=s.device))
    colour = nn.Parameter(torch.randn(count, 3, device=s.device))
    groups = [(at, 2e-4), (spread, 5e-3), (angle, 1e-2), (cover, 5e-2), (colour, 2.5e-2)]
    optimizer = torch.optim.Adam([{"params": [param], "lr": rate} for param, rate in groups], eps=1e-15)
    strokes = s.compile(_strokes) if compiled else _strokes
    losses: list[float] = []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            painted = strokes(pixels, at, spread, angle, cover) @ torch.sigmoid(colour)
        difference = painted.float() - picture
        loss = 0.8 * difference.abs().mean() + 0.2 * (difference**2).mean()
        loss.backward()
        optimizer.step()
        if log:
            losses.append(loss.item())
        return loss.detach()

    return step


# Earthquakes: when the ground begins to shake, by means over short and long windows and by how peaked a window is.


def _sums(x: Tensor, pieces: int) -> Tensor:
    """Running sums along time; of so many pieces at once, each of which then goes on where the one before it ends."""
    if pieces == 1:
        return torch.cumsum(x, -1)
    parts = torch.cumsum(x.view(*x.shape[:-1], pieces, -1), -1)
    before = F.pad(torch.cumsum(parts[..., -1], -1)[..., :-1], (1, 0))
    return (parts + before[..., None]).flatten(-2)


def _window(x: Tensor, wide: int, pieces: int) -> Tensor:
    """The mean of the last `wide` samples, of fewer at the beginning."""
    sums = _sums(x, pieces)
    return (sums - F.pad(sums[..., :-wide], (wide, 0))) / wide


def _shaken(counts: Tensor, gain: Tensor, windows: tuple[int, int, int], pieces: int) -> Tensor:
    """Where the ratio of short to long and the kurtosis are both high; in double, as sums over hours lose what is small."""
    short, long, peaked = windows
    ground = counts.double() * gain[:, None]
    ground = ground - _window(ground, long, pieces)
    power = ground * ground
    ratio = _window(power, short, pieces) / (_window(power, long, pieces) + 1e-12)
    kurtosis = _window(power * power, peaked, pieces) / (_window(power, peaked, pieces) ** 2 + 1e-12) - 3.0
    shaken = torch.sqrt(ratio.clamp(min=0.0)) * torch.log1p(kurtosis.clamp(min=0.0))
    shaken[:, :long] = 0.0
    return shaken.view(-1, 3, shaken.shape[-1]).amax(1).float()


def _trembling(draw: np.random.Generator, samples: int, long: int) -> np.ndarray:
    """Noise, and eight earthquakes that fade away."""
    ground = 300.0 * draw.standard_normal((6, samples), dtype=np.float32)
    for begin in draw.integers(long, samples - long, 8):
        ground[:, begin : begin + long] *= 1.0 + 20.0 * np.exp(-5.0 * np.arange(long, dtype=np.float32) / long)
    return ground.astype(np.int32)


def quake_trigger(s: Setup, *, pieces: int = 1, compiled: bool = False, pinned: bool = False) -> Step:
    """Four hours of two stations, three directions each, 100 counts a second; the first moments that exceed the threshold are printed by whoever calls."""
    samples, windows = s.size(1_440_000, 400), (s.size(100, 4), s.size(3000, 40), s.size(500, 10))
    draw = np.random.default_rng(0)
    hours = [torch.from_numpy(_trembling(draw, samples, windows[1])) for _ in range(2)]
    if pinned:
        hours = [s.pin(each) for each in hours]
    gain = torch.rand(6, device=s.device, dtype=torch.float64) * 1e-3
    shaken = s.compile(_shaken) if compiled else _shaken
    turn = [0]

    @torch.no_grad()
    def step() -> list[list[int]]:
        turn[0] += 1
        counts = hours[turn[0] % 2].to(s.device, non_blocking=pinned)
        over = shaken(counts, gain, windows, s.size(pieces, min(pieces, 4))) > 3.0
        begins = over[:, 1:] & ~over[:, :-1]
        return begins.nonzero()[:100].tolist()

    return step


# Games: what an innkeeper says next, word by word, by weights in FP32 and states in BF16.

Weights = dict[str, Tensor]


def _told(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def _heard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.float().softmax(-1).to(v.dtype) @ v


def _layer(x: Tensor, w: Weights, kept: Tensor, at: int, heads: int, heard: Callable[..., Tensor]) -> Tensor:
    """`kept` holds keys and values (2, players, heads, length, size) of the talk so far."""
    width = x.shape[-1]
    q, k, v = _told(F.rms_norm(x, (width,)), w["all"]).view(len(x), 3, heads, 1, -1).unbind(1)
    kept[0, :, :, at : at + 1], kept[1, :, :, at : at + 1] = k, v
    x = x + _told(heard(q, kept[0, :, :, : at + 1], kept[1, :, :, : at + 1]).reshape(len(x), width), w["out"])
    gate, up = _told(F.rms_norm(x, (width,)), w["open"]).chunk(2, -1)
    return x + _told(F.silu(gate) * up, w["close"])


def tavern_talk(s: Setup, *, narrow: bool = False, players: int = 1, sdpa: bool = False, vocabulary: int = 32_003) -> Step:
    width, heads, layers, length, before = s.size(4096, 16), s.size(32, 2), s.size(6, 2), s.size(2048, 24), s.size(1500, 8)
    words, hidden = s.size(vocabulary, 30 + vocabulary % 16), s.size(11_008, 24)
    kind = BF16 if narrow else torch.float32

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=s.device).mul_(0.02).to(kind)

    stack = [
        {"all": drawn(3 * width, width), "out": drawn(width, width), "open": drawn(2 * hidden, width), "close": drawn(width, hidden)} for _ in range(layers)
    ]
    table, head = drawn(words, width), drawn(words, width)
    kept = torch.randn(layers, 2, players, heads, length, width // heads, device=s.device, dtype=BF16)
    word, turn = torch.randint(30, (players,), device=s.device), [0]
    heard = F.scaled_dot_product_attention if sdpa else _heard

    @torch.inference_mode()
    def step() -> Tensor:
        at = before + turn[0] % (length - before)
        turn[0] += 1
        x = table[word].to(BF16)
        for w, each in zip(stack, kept, strict=True):
            x = _layer(x, w, each, at, heads, heard)
        word.copy_(_told(F.rms_norm(x, (width,)), head).argmax(-1))
        return word

    return step


# Statistics: how much a treatment helps, and how unlike the hospitals of a trial are, by Hamiltonian Monte Carlo.


def _belief(place: Tensor, facts: Tensor, where: Tensor, healed: Tensor) -> Tensor:
    """The log density of one chain's place: mean, log spread, hospitals (as multiples of the spread), slopes."""
    hospitals = where.shape[1]
    mean, spread, apart, slopes = place[0], place[1], place[2 : 2 + hospitals], place[2 + hospitals :]
    logit = facts @ slopes + where @ (mean + torch.exp(spread) * apart)
    likely = (healed * logit - F.softplus(logit)).sum()
    prior = -0.5 * ((mean / 5.0) ** 2 + spread**2 + (apart**2).sum() + ((slopes / 2.5) ** 2).sum())
    return likely + prior


_believed = vmap(_belief, in_dims=(0, None, None, None))
_slope = vmap(grad(_belief), in_dims=(0, None, None, None))


def _leap(place: Tensor, push: Tensor, length: float, facts: Tensor, where: Tensor, healed: Tensor) -> tuple[Tensor, Tensor]:
    push = push + 0.5 * length * _slope(place, facts, where, healed)
    place = place + length * push
    return place, push + 0.5 * length * _slope(place, facts, where, healed)


def trial_hospitals(s: Setup, *, compiled: bool = False, asked: bool = True, tf32: bool = False) -> Step:
    """Sixty-four chains side by side, ten leaps a draw; a draw ends early where a chain has run away."""
    chains, patients, columns, hospitals, leaps = s.size(64, 3), s.size(3000, 20), s.size(20, 3), s.size(40, 4), s.size(10, 2)
    facts = torch.randn(patients, columns, device=s.device)
    where = F.one_hot(torch.randint(hospitals, (patients,), device=s.device), hospitals).float()
    healed = torch.rand(patients, device=s.device).round()
    now = torch.zeros(chains, 2 + hospitals + columns, device=s.device)
    total = torch.zeros_like(now)
    leap = s.compile(_leap, mode="reduce-overhead") if compiled else _leap

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        place, start = now, torch.randn_like(now)
        push = start
        for _ in range(leaps):
            place, push = leap(place, push, 0.01, facts, where, healed)
            if compiled:
                place, push = place.clone(), push.clone()
            if asked and not torch.isfinite(place).all():
                break
        before = _believed(now, facts, where, healed) - 0.5 * (start * start).sum(-1)
        after = _believed(place, facts, where, healed) - 0.5 * (push * push).sum(-1)
        taken = torch.log(torch.rand(chains, device=s.device)) < after - before
        now.copy_(torch.where(taken[:, None], place, now))
        total.add_(now)
        return taken

    return step


# Machines that learn to copy: a neural Turing machine with a tape, one head that reads and one that writes.


class Head(nn.Module):
    """Where on the tape to be: by likeness, then by shifts from where it was, then sharper."""

    def __init__(self, width: int, cell: int) -> None:
        super().__init__()
        self.key, self.rest = nn.Linear(width, cell), nn.Linear(width, 6)

    def forward(self, control: Tensor, tape: Tensor, was: Tensor) -> Tensor:
        rest = self.rest(control)
        likeness = F.cosine_similarity(torch.tanh(self.key(control))[:, None], tape, dim=-1)
        by_content = torch.softmax(F.softplus(rest[:, :1]) * likeness, -1)
        gate = torch.sigmoid(rest[:, 1:2])
        mixed = gate * by_content + (1 - gate) * was
        shifts = torch.softmax(rest[:, 2:5], -1)
        moved = shifts[:, :1] * mixed.roll(-1, -1) + shifts[:, 1:2] * mixed + shifts[:, 2:] * mixed.roll(1, -1)
        sharp = (moved + 1e-8) ** (1 + F.softplus(rest[:, 5:]))
        return sharp / sharp.sum(-1, keepdim=True)


class Tape(nn.Module):
    def __init__(self, bits: int, width: int, cell: int) -> None:
        super().__init__()
        self.control = nn.LSTMCell(bits + 1 + cell, width)
        self.reads, self.writes = Head(width, cell), Head(width, cell)
        self.erase, self.add, self.says = nn.Linear(width, cell), nn.Linear(width, cell), nn.Linear(width + cell, bits)

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, c, tape, read_at, write_at, read = state
        h, c = self.control(torch.cat([x, read], -1), (h, c))
        write_at = self.writes(h, tape, write_at)
        erase, add = torch.sigmoid(self.erase(h)), torch.tanh(self.add(h))
        tape = tape * (1 - write_at[..., None] * erase[:, None]) + write_at[..., None] * add[:, None]
        read_at = self.reads(h, tape, read_at)
        read = torch.einsum("bn,bnc->bc", read_at, tape)
        return self.says(torch.cat([h, read], -1)), (h, c, tape, read_at, write_at, read)


def copy_tape(s: Setup, *, compiled: bool = False, graphed: bool = False, autocast: bool = False) -> Step:
    """Sequences of 20 vectors, new in each step, to be said again after a mark."""
    count, long, bits, width, cells, cell = s.size(32, 2), s.size(20, 3), s.size(8, 4), s.size(100, 8), s.size(128, 6), s.size(20, 5)
    machine = Tape(bits, width, cell).to(s.device)
    blank = torch.full((cells, cell), 1e-6, device=s.device)
    first = F.one_hot(torch.tensor(0), cells).float().to(s.device)
    optimizer = torch.optim.RMSprop(machine.parameters(), lr=1e-4, alpha=0.95, momentum=0.9, capturable=graphed and s.cuda)
    moment = s.compile(machine) if compiled else machine
    mark = torch.cat([torch.zeros(count, bits, device=s.device), torch.ones(count, 1, device=s.device)], -1)
    silence = torch.zeros(count, bits + 1, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        sequence = (torch.rand(long, count, bits, device=s.device) < 0.5).float()
        heads = first.expand(count, -1)
        empty = torch.zeros(count, width, device=s.device)
        state: tuple[Tensor, ...] = (empty, empty, blank.expand(count, -1, -1), heads, heads, torch.zeros(count, cell, device=s.device))
        optimizer.zero_grad()
        said = []
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for x in (*F.pad(sequence, (0, 1)), mark):
                _, state = moment(x, state)
            for _ in range(long):
                word, state = moment(silence, state)
                said.append(word)
        loss = F.binary_cross_entropy_with_logits(torch.stack(said).float(), sequence)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_value_(machine.parameters(), 10.0)
        optimizer.step()
        return loss.detach()

    return capture(step, s) if graphed else step


# Voices: is whoever calls the bank who they say they are, by three seconds of their speech.


def _bank(bands: int, size: int, rate: int) -> np.ndarray:
    """Triangles on the mel scale."""
    mel = np.linspace(0.0, 2595.0 * np.log10(1.0 + rate / 2 / 700.0), bands + 2)
    corners = 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    tones = np.linspace(0.0, rate / 2, size // 2 + 1)
    bank = np.zeros((bands, len(tones)), dtype=np.float32)
    for band in range(bands):
        rise = (tones - corners[band]) / (corners[band + 1] - corners[band])
        fall = (corners[band + 2] - tones) / (corners[band + 2] - corners[band + 1])
        bank[band] = np.maximum(0.0, np.minimum(rise, fall))
    return bank


def _spectrum(wave: np.ndarray, size: int, hop: int, bands: int) -> np.ndarray:
    """Log mel energies, frame by frame, without their mean: (bands, frames)."""
    bank = _bank(bands, size, 16_000)
    frames = []
    for start in range(0, len(wave) - size + 1, hop):
        frame = wave[start : start + size]
        frame = np.append(frame[0], frame[1:] - 0.97 * frame[:-1]) * np.hamming(size)
        frames.append(np.log(bank @ np.abs(np.fft.rfft(frame)) ** 2 + 1e-6))
    mels = np.stack(frames, 1)
    return (mels - mels.mean(1, keepdims=True)).astype(np.float32)


def _spectrum_ready(wave: np.ndarray, bank: np.ndarray, bell: np.ndarray, hop: int) -> np.ndarray:
    """The same for all frames at once, with triangles and bell made beforehand."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, len(bell))[::hop]
    frames = np.concatenate([frames[:, :1], frames[:, 1:] - 0.97 * frames[:, :-1]], 1) * bell
    mels = np.log(bank @ (np.abs(np.fft.rfft(frames)) ** 2).T.astype(np.float32) + 1e-6)
    return (mels - mels.mean(1, keepdims=True)).astype(np.float32)


class Res2(nn.Module):
    """ECAPA's block: groups of channels one after another, each hearing the one before, then channels weighed by all of time."""

    def __init__(self, width: int, groups: int, apart: int) -> None:
        super().__init__()
        part = width // groups
        self.enter, self.leave = self._unit(width, width, 1, 1), self._unit(width, width, 1, 1)
        self.parts = nn.ModuleList(self._unit(part, part, 3, apart) for _ in range(groups - 1))
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Conv1d(width, width // 4, 1), nn.ReLU(), nn.Conv1d(width // 4, width, 1), nn.Sigmoid())

    @staticmethod
    def _unit(inner: int, outer: int, taps: int, apart: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv1d(inner, outer, taps, dilation=apart, padding=taps // 2 * apart), nn.ReLU(), nn.BatchNorm1d(outer))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.enter(x).chunk(len(self.parts) + 1, 1)
        heard = [first]
        for part, conv in zip(rest, self.parts, strict=True):
            heard.append(conv(part + heard[-1] if len(heard) > 1 else part))
        y = self.leave(torch.cat(heard, 1))
        return x + y * self.weigh(y)


class Ecapa(nn.Module):
    def __init__(self, bands: int, width: int, groups: int, size: int) -> None:
        super().__init__()
        self.enter = Res2._unit(bands, width, 5, 1)
        self.blocks = nn.ModuleList(Res2(width, groups, apart) for apart in (2, 3, 4))
        self.mix = nn.Conv1d(3 * width, 3 * width, 1)
        self.look = nn.Sequential(nn.Conv1d(9 * width, 128, 1), nn.ReLU(), nn.BatchNorm1d(128), nn.Tanh(), nn.Conv1d(128, 3 * width, 1), nn.Softmax(-1))
        self.last = nn.Sequential(nn.BatchNorm1d(6 * width), nn.Linear(6 * width, size))

    def forward(self, mels: Tensor) -> Tensor:
        x, seen = self.enter(mels), []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        x = F.relu(self.mix(torch.cat(seen, 1)))
        whole = torch.cat([x, x.mean(-1, keepdim=True).expand_as(x), x.std(-1, keepdim=True).expand_as(x)], 1)
        weight = self.look(whole)
        mean = (weight * x).sum(-1)
        spread = torch.sqrt(((weight * x * x).sum(-1) - mean * mean).clamp(min=1e-4))
        return F.normalize(self.last(torch.cat([mean, spread], -1)), dim=-1)


class SpeakerService:
    """Answers with how alike a caller's voice is to the one on record."""

    def __init__(self, s: Setup, ready: bool, compiled: bool, autocast: bool) -> None:
        self.s, self.ready, self.autocast = s, ready, autocast
        self.size, self.hop, self.bands = s.size(400, 32), s.size(160, 16), s.size(80, 6)
        model = Ecapa(self.bands, s.size(512, 16), s.size(8, 4), s.size(192, 8)).to(s.device).eval()
        self.model = s.compile(model, mode="reduce-overhead") if compiled else model
        self.known = F.normalize(torch.randn(s.size(100_000, 20), s.size(192, 8), device=s.device), dim=-1)
        self.bank, self.bell = _bank(self.bands, self.size, 16_000), np.hamming(self.size)

    def features(self, wave: np.ndarray) -> np.ndarray:
        if self.ready:
            return _spectrum_ready(wave, self.bank, self.bell, self.hop)
        return _spectrum(wave, self.size, self.hop, self.bands)

    @torch.inference_mode()
    def __call__(self, waves: list[np.ndarray], names: list[int]) -> list[float]:
        mels = torch.from_numpy(np.stack([self.features(wave) for wave in waves])).to(self.s.device)
        with torch.autocast(self.s.device.type, BF16, enabled=self.autocast):
            voices = self.model(mels)
        return (voices.float() * self.known[names]).sum(-1).tolist()


def speaker_check(s: Setup, *, ready: bool = False, compiled: bool = False, autocast: bool = False, callers: int = 1) -> Step:
    service = SpeakerService(s, ready, compiled, autocast)
    arrived = np.random.default_rng(0).standard_normal((8, s.size(48_000, 400))).astype(np.float32)
    turn = [0]

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high")
        turn[0] += 1
        these = [(turn[0] + each) % 8 for each in range(callers)]
        return service([arrived[each] for each in these], these)

    return step


# Plankton: which of 103 kinds floats past a camera under a ship.


def _drift(draw: np.random.Generator, side: int) -> bytes:
    """A creature as a camera keeps it: a few round shadows on bright water, compressed."""
    down, right = np.mgrid[0:side, 0:side].astype(np.float32) / side
    picture = np.full((side, side), 220.0, dtype=np.float32)
    for _ in range(6):
        y, x, r = draw.random(3)
        picture -= 60.0 * np.exp(-((down - y) ** 2 + (right - x) ** 2) / (0.003 + 0.02 * r))
    picture += draw.integers(-3, 4, (side, side))
    return zlib.compress(picture.clip(0, 255).astype(np.uint8).tobytes(), 1)


class Water(Dataset[tuple[np.ndarray, int]]):
    def __init__(self, kept: int, side: int, smaller: int) -> None:
        draw = np.random.default_rng(0)
        self.side, self.smaller = side, smaller
        self.bottles = [_drift(draw, side) for _ in range(kept)]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        draw = np.random.default_rng(index)
        shadow = np.frombuffer(zlib.decompress(self.bottles[index % len(self.bottles)]), dtype=np.uint8).reshape(self.side, self.side)
        times = self.side // self.smaller
        small = shadow.reshape(self.smaller, times, self.smaller, times).mean((1, 3), dtype=np.float32) / 255.0
        small = np.rot90(small, int(draw.integers(4)))
        if draw.random() < 0.5:
            small = small[:, ::-1]
        small = (small - small.mean()) * (0.8 + 0.4 * draw.random()) / (small.std() + 1e-3)
        small = small + draw.normal(0.0, 0.05, small.shape)
        return np.ascontiguousarray(small[None], dtype=np.float32), index % 103


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        thin = outer // 4
        self.body = nn.Sequential(
            nn.Conv2d(inner, thin, 1, bias=False), nn.BatchNorm2d(thin), nn.ReLU(inplace=True),
            nn.Conv2d(thin, thin, 3, stride, 1, bias=False), nn.BatchNorm2d(thin), nn.ReLU(inplace=True),
            nn.Conv2d(thin, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        same = inner == outer and stride == 1
        self.skip: nn.Module = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def plankton_camera(s: Setup, *, workers: bool = False, scaled: bool = True, last: bool = False) -> Step:
    count, width = s.size(64, 3), s.size(64, 4)
    stages = [(width, 4 * width, 1)] + [(4 * width * 2**level, 8 * width * 2**level, 2) for level in range(3)]
    blocks = [Bottleneck(*((inner, outer, stride) if not turn else (outer, outer, 1))) for inner, outer, stride in stages for turn in range(s.size(3, 1))]
    model = nn.Sequential(nn.Conv2d(1, width, 5, 2, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32 * width, 103)).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    kind = torch.float16 if scaled and s.cuda else BF16
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches = iter(DataLoader(Water(s.size(64, 3), s.size(384, 64), s.size(128, 16)), batch_size=count, **options))

    def step() -> Tensor:
        pictures, names = (part.to(s.device, non_blocking=workers) for part in next(batches))
        if last:
            pictures = pictures.to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, kind):
            loss = F.cross_entropy(model(pictures), names, label_smoothing=0.1)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "tomogram_particles", "A U-Net in three dimensions on two cubes of 80, training in FP32 with TF32 convolutions; cross entropy written out, empty_cache() in each step.",
        "bf16 autocast; channels_last_3d; no empty_cache(); F.cross_entropy", tomogram_particles,
        {"precision": {"autocast": True}, "memory-layout": {"last": True}, "allocator": {"empties": False}, "unfused-norm": {"library": True}}, gpu_bound=True,
    ),
    written(
        "splat_painting", "1024 soft strokes over 256 x 256 pixels, all pairs written out and laid over each other by running sums, training in FP32; the loss is read.",
        "torch.compile of the strokes; bf16 autocast; the loss not read", splat_painting,
        {"unfused-elementwise": {"compiled": True}, "precision": {"autocast": True}, "sync-stall": {"log": False}}, gpu_bound=True,
    ),
    written(
        "quake_trigger", "Four hours of six seismograms, int32 from pageable memory: five running sums of 1,440,000 float64 each, ratios and kurtosis between them.",
        "running sums of 1200 pieces at once; torch.compile of the trigger; pinned memory and non_blocking", quake_trigger,
        {"small-grid": {"pieces": 1200}, "unfused-elementwise": {"compiled": True}, "memcpy": {"pinned": True}}, gpu_bound=True,
    ),
    written(
        "tavern_talk", "One word of one player's talk a step in bf16, by a decoder whose FP32 weights are cast in each product; attention to 1500 words written out.",
        "weights kept in bf16; eight players a step; F.scaled_dot_product_attention; a vocabulary of 32,008 instead of 32,003", tavern_talk,
        {
            "dtype-casts": {"narrow": True}, "low-arithmetic-intensity": {"players": 8}, "unfused-attention": {"sdpa": True},
            "gemm-alignment": {"vocabulary": 32_008},
        },
        shared={"low-arithmetic-intensity": 8.0}, gpu_bound=True,
    ),
    written(
        "trial_hospitals", "Hamiltonian Monte Carlo in FP32: ten leaps of 64 chains by vmap(grad), each asked whether all are finite.",
        "torch.compile(mode='reduce-overhead') of a leap; nobody asks; TF32 products", trial_hospitals,
        {"launch-gap": {"compiled": True}, "sync-stall": {"asked": False}, "precision/tf32": {"tf32": True}},
    ),
    written(
        "copy_tape", "A neural Turing machine learns to copy 20 vectors, moment by moment: 41 moments forward and backward with TF32 products, RMSprop.",
        "torch.compile of a moment; the step as a CUDA graph; bf16 autocast", copy_tape,
        {"launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True}},
    ),
    written(
        "speaker_check", "ECAPA-TDNN on three seconds of one caller a call, FP32 with TF32; numpy makes mel energies frame by frame, and their triangles in each call.",
        "triangles made once and all frames at once; torch.compile(mode='reduce-overhead'); bf16 autocast; eight callers together", speaker_check,
        {"host-bound": {"ready": True}, "launch-gap": {"compiled": True}, "precision": {"autocast": True}, "low-arithmetic-intensity": {"callers": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "plankton_camera", "A residual network on 64 pictures, fp16 with a GradScaler, NCHW; a loader without workers decompresses, shrinks and turns them.",
        "num_workers=8, persistent_workers and pin_memory; bf16 without a scaler; channels_last", plankton_camera,
        {"data-loading": {"workers": True}, "amp-scaler-sync": {"scaled": False}, "memory-layout": {"last": True}},
    ),
)  # fmt: skip
