"""Programs by an author who has not read the rules, the tenth set: codes, handwriting, colliding stars, a search engine, beams, orchards, grippers.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


# Telecommunications: belief propagation over a code's graph, each of whose edges learns how far it is to be believed.


def _tanner(bits: int, checks: int, row: int) -> tuple[Tensor, Tensor, Tensor]:
    """Edges that meet at a bit, edges that meet at a check (an edge does not meet itself), and at which bit an edge ends."""
    draw = np.random.default_rng(0)
    at_bit = np.concatenate([draw.permutation(bits)[:row] for _ in range(checks)])
    at_check = np.repeat(np.arange(checks), row)
    others = ~np.eye(len(at_bit), dtype=bool)
    tables = ((at_bit[:, None] == at_bit) & others, (at_check[:, None] == at_check) & others, at_bit[:, None] == np.arange(bits))
    same_bit, same_check, ends = (torch.from_numpy(table.astype(np.float32)) for table in tables)
    return same_bit, same_check, ends


def _believe(said: Tensor, prior: Tensor, weight: Tensor, same_bit: Tensor, same_check: Tensor) -> Tensor:
    """Bits tell checks what they believe, checks tell bits what follows from it."""
    heard = prior + said @ (weight * same_bit)
    half = torch.tanh(0.5 * heard.clamp(-15.0, 15.0))
    size = torch.log(half.abs().clamp(min=1e-6)) @ same_check
    flips = torch.remainder((half < 0).float() @ same_check, 2.0)
    product = ((1.0 - 2.0 * flips) * torch.exp(size)).clamp(-1.0 + 1e-6, 1.0 - 1e-6)
    return torch.log1p(product) - torch.log1p(-product)


class Decoder(nn.Module):
    same_bit: Tensor
    same_check: Tensor
    ends: Tensor

    def __init__(self, code: tuple[Tensor, Tensor, Tensor], rounds: int, believe: Callable[..., Tensor]) -> None:
        super().__init__()
        for name, part in zip(("same_bit", "same_check", "ends"), code, strict=True):
            self.register_buffer(name, part)
        edges, bits = self.ends.shape
        self.weights = nn.ParameterList(torch.ones(edges, edges) for _ in range(rounds))
        self.first, self.last = nn.Parameter(torch.ones(bits)), nn.Parameter(torch.ones(edges, bits))
        self.believe = believe

    def forward(self, ratio: Tensor) -> Tensor:
        prior, out = (ratio * self.first) @ self.ends.T, []
        said = torch.zeros_like(prior)
        for weight in self.weights:
            said = self.believe(said, prior, weight, self.same_bit, self.same_check)
            out.append(ratio + said @ (self.last * self.ends))
        return torch.stack(out)


def code_decoder(s: Setup, *, compiled: bool = False, tf32: bool = False, graphed: bool = False) -> Step:
    """The word of zeros stands for all; how loud the noise is differs from word to word."""
    words, bits, checks, row = s.size(16_384, 8), s.size(63, 9), s.size(27, 4), s.size(14, 4)
    model = Decoder(_tanner(bits, checks, row), s.size(5, 2), s.compile(_believe) if compiled else _believe).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=graphed and s.cuda)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        decibels = 1.0 + 5.0 * torch.rand(words, 1, device=s.device)
        spread = torch.sqrt(0.5 / (10.0 ** (decibels / 10.0) * (1.0 - checks / bits)))
        heard = 1.0 + spread * torch.randn(words, bits, device=s.device)
        optimizer.zero_grad()
        loss = F.softplus(-model(2.0 * heard / spread**2)).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return capture(step, s) if graphed else step


# Handwriting: a line of text in somebody's hand, stroke after stroke.


class Hand(nn.Module):
    """Three recurrent layers, the first of which moves a soft window over the letters; the pen's move is drawn from a mixture."""

    def __init__(self, letters: int, width: int, bells: int, mixtures: int) -> None:
        super().__init__()
        self.letters, self.width, self.bells, self.mixtures = letters, width, bells, mixtures
        self.layers = nn.ModuleList(nn.LSTMCell(3 + letters + (width if layer else 0), width) for layer in range(3))
        self.window, self.head = nn.Linear(width, 3 * bells), nn.Linear(3 * width, 6 * mixtures + 1)

    def start(self, lines: int) -> tuple[Tensor, ...]:
        def zeros(size: int) -> Tensor:
            return self.window.weight.new_zeros(lines, size)

        return (zeros(3), zeros(self.letters), zeros(self.bells), *(zeros(self.width) for _ in range(6)))

    def look(self, h: Tensor, place: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        height, breadth, move = torch.exp(self.window(h).float()).chunk(3, -1)
        place = place + move / 25.0
        at = torch.arange(text.shape[1], device=text.device)
        share = (height[..., None] * torch.exp(-breadth[..., None] * (place[..., None] - at) ** 2)).sum(1)
        return torch.einsum("nl,nla->na", share, text), place

    def draw(self, seen: Tensor) -> Tensor:
        *parts, lift = self.head(seen).float().split([self.mixtures] * 6 + [1], -1)
        which = (1.5 * parts[0] - torch.log(-torch.log(torch.rand_like(parts[0])))).argmax(-1, keepdim=True)
        x, y, wide, tall, tilt = (part.gather(1, which) for part in parts[1:])
        tilt, (one, other) = torch.tanh(tilt), torch.randn(2, len(x), 1, device=x.device)
        x = x + torch.exp(wide - 0.5) * one
        y = y + torch.exp(tall - 0.5) * (tilt * one + torch.sqrt(1.0 - tilt**2) * other)
        return torch.cat([x, y, (torch.rand_like(lift) < torch.sigmoid(lift)).float()], -1)

    def forward(self, text: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        stroke, seen, place, *old = state
        h, c = self.layers[0](torch.cat([stroke, seen], -1), (old[0], old[1]))
        seen, place = self.look(h, place, text)
        states, above = [h, c], [h]
        for layer in (1, 2):
            h, c = self.layers[layer](torch.cat([stroke, seen, above[-1]], -1), (old[2 * layer], old[2 * layer + 1]))
            states, above = [*states, h, c], [*above, h]
        return (self.draw(torch.cat(above, -1)), seen, place, *states)


def handwriting(s: Setup, *, compiled: bool = False, asked: bool = True, autocast: bool = False, lines: int = 1) -> Step:
    """At most so many strokes; the hand stops once its window has left the text."""
    strokes, length, letters = s.size(96, 4), s.size(48, 5), s.size(60, 6)
    model = Hand(letters, s.size(400, 8), s.size(10, 2), s.size(20, 3)).to(s.device).eval()
    move = s.compile(model, mode="reduce-overhead") if compiled else model
    text = F.one_hot(torch.randint(letters, (lines, length)), letters).float().to(s.device)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        state, written = model.start(lines), []
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for _ in range(strokes):
                state = move(text, state)
                if compiled:
                    state = tuple(part.clone() for part in state)  # the next replay writes where they lie
                written.append(state[0])
                if asked and (state[2].mean(1) > length + 1).all().item():
                    break
        return torch.stack(written, 1)

    return step


# Schools: marks for the essays of one class after another.

SYLLABLES = tuple(a + b + c for a in ("b", "d", "k", "l", "m", "n", "r", "s", "t", "v") for b in ("a", "e", "i", "o", "u") for c in ("", "n", "s", "r", "l"))


class Pieces:
    """Cuts words into the longest pieces that the vocabulary has."""

    def __init__(self, draw: np.random.Generator, whole: int) -> None:
        words = ("".join(draw.choice(SYLLABLES, draw.integers(1, 4))) for _ in range(whole))
        pieces = [*SYLLABLES, *("##" + syllable for syllable in SYLLABLES), *words]
        self.number = {piece: index + 3 for index, piece in enumerate(dict.fromkeys(pieces))}

    def __len__(self) -> int:
        return len(self.number) + 3

    def of_word(self, word: str) -> list[int]:
        found, start = list[int](), 0
        while start < len(word):
            end = len(word)
            while end > start:
                number = self.number.get(("##" if start else "") + word[start:end], 0)
                if number:
                    break
                end -= 1
            else:
                return [2]
            found.append(number)
            start = end
        return found

    def of_text(self, text: str, longest: int) -> list[int]:
        numbers = [1]
        for word in text.lower().replace(",", " , ").replace(".", " . ").split():
            numbers += self.of_word(word)
        return numbers[:longest]


# Gravitational waves: a minute of strain against a bank of chirps.


def _chirps(count: int, bins: int, device: torch.device) -> Tensor:
    """Each of length one; a heavier pair of stars sweeps faster."""
    f = torch.linspace(0.0, 1.0, bins, device=device).clamp(min=0.01)
    mass = torch.linspace(1.0, 6.0, count, device=device)[:, None]
    chirps = torch.polar((f ** (-7.0 / 6.0)).expand(count, -1).contiguous(), 40.0 * (mass * f) ** (-5.0 / 3.0) - 9.0 * mass * f)
    return chirps / torch.linalg.vector_norm(chirps, dim=-1, keepdim=True)


def _whitened(strain: Tensor, piece: int) -> Tensor:
    """The strain by frequency, over what the detector's noise is there (Welch's method)."""
    window = torch.hann_window(piece, device=strain.device)
    power = torch.fft.rfft(strain.unfold(0, piece, piece // 2) * window).abs().square().mean(0) / window.square().sum()
    power = F.interpolate(power[None, None], size=len(strain) // 2 + 1, mode="linear", align_corners=True)[0, 0]
    return torch.fft.rfft(strain) / torch.sqrt(power * len(strain))


def _loudness(data: Tensor, chirp: Tensor) -> Tensor:
    """How loud a chirp is, if it ended at each moment."""
    product = data * chirp.conj()
    length = 2 * (data.shape[-1] - 1)
    return math.sqrt(2.0) * length * torch.fft.ifft(F.pad(product, (0, length - product.shape[-1]))).abs()


def _unlike(data: Tensor, chirp: Tensor, moment: int, bands: int = 16) -> float:
    """Whether each band of frequencies has its share of it (chi squared)."""
    product = data * chirp.conj()
    angle = 2.0 * math.pi * moment * torch.arange(len(product), device=data.device) / (2 * (len(product) - 1))
    shares = torch.stack([part.sum() for part in (product * torch.polar(torch.ones_like(angle), angle)).tensor_split(bands)]).abs()
    return float((bands * (shares - shares.mean()).square().sum()).item())


def chirp_bank(s: Setup, *, at_end: bool = False, together: int = 1, pinned: bool = False) -> Step:
    length, count, threshold = s.size(262_144, 256), s.size(128, 4), 5.5
    together = min(together, count)
    chirps = _chirps(count, length // 2 + 1, s.device)
    minutes = [torch.randn(length) for _ in range(4)]
    if pinned:
        minutes = [s.pin(minute) for minute in minutes]
    turn = [0]

    @torch.no_grad()
    def step() -> list[tuple[int, int, float, float]]:
        turn[0] += 1
        data = _whitened(minutes[turn[0] % 4].to(s.device, non_blocking=pinned), s.size(16_384, 32))
        found, waiting = list[tuple[int, int, float, float]](), list[Tensor]()
        for first in range(0, count, together):
            peak, moment = _loudness(data, chirps[first] if together == 1 else chirps[first : first + together]).max(-1)
            if at_end:
                waiting.append(torch.stack([peak, moment.to(peak.dtype)]))
                continue
            if together == 1:
                if peak.item() > threshold:
                    found.append((first, int(moment.item()), peak.item(), _unlike(data, chirps[first], int(moment.item()))))
                continue
            for n, (loud, when) in enumerate(zip(peak.tolist(), moment.tolist(), strict=True)):
                if loud > threshold:
                    found.append((first + n, when, loud, _unlike(data, chirps[first + n], when)))
        if waiting:
            for n, (loud, when) in enumerate(torch.stack(waiting).tolist()):
                if loud > threshold:
                    found.append((n, int(when), loud, _unlike(data, chirps[n], int(when))))
        return found

    return step


# Search: a query or a page as weights of words that it may never mention (SPLADE).


class Glance(nn.Module):
    def __init__(self, width: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads, self.library = heads, library
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.after, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=present[:, None, None])
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            seen = torch.matmul(torch.softmax(scores.masked_fill(~present[:, None, None], -1e4), -1), v)
        x = self.after(x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.last(x + self.feed(x))


def _terms(logits: Tensor, present: Tensor) -> Tensor:
    """How much a text is about each word: the most that any of its places says."""
    return (torch.log1p(torch.relu(logits.float())) * present[..., None]).amax(1)


class Splade(nn.Module):
    def __init__(self, s: Setup, words: int, columns: int, library: bool, terms: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        width, heads = s.size(768, 16), s.size(12, 2)
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(s.size(128, 8), width)
        self.layers = nn.ModuleList(Glance(width, heads, library) for _ in range(s.size(6, 1)))
        self.turn = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head, self.terms = nn.Linear(width, columns), terms

    def forward(self, text: Tensor) -> Tensor:
        present = text != 0
        x = self.words(text) + self.places.weight
        for layer in self.layers:
            x = layer(x, present)
        return self.terms(self.head(self.turn(x)), present)


def search_terms(s: Setup, *, compiled: bool = False, more: int = 0, sdpa: bool = False, library: bool = False) -> Step:
    """Each query's page is to be nearer than the other queries' pages, and few words are to have weights."""
    count, length, words = s.size(32, 2), s.size(128, 8), s.size(30_522, 50)
    model = Splade(s, words, words + more, sdpa, s.compile(_terms) if compiled else _terms).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    sizes = torch.randint(length // 2, length + 1, (2 * count, 1))
    text = (torch.randint(1, words, (2 * count, length)) * (torch.arange(length) < sizes)).to(s.device)
    own = torch.arange(count, device=s.device)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            queries, pages = model(text).chunk(2)
            scores = (queries @ pages.T).float()
        if library:
            loss = F.cross_entropy(scores, own)
        else:
            shifted = scores - scores.amax(1, keepdim=True).detach()
            loss = -torch.log(torch.exp(shifted[own, own]) / torch.exp(shifted).sum(1) + 1e-9).mean()
        loss = loss + 1e-3 * queries.mean(0).square().sum() + 8e-4 * pages.mean(0).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Radiotherapy: how strong each of some thousand beams is to be.


def beam_plan(s: Setup, *, autocast: bool = False, kept: torch.dtype = torch.float32, asked: bool = True, plans: int = 1) -> Step:
    """Projected gradients with momentum; a plan is what one doctor weighs the organs by. It ends early once nothing changes."""
    voxels, beams, rounds = s.size(120_000, 60), s.size(4000, 12), s.size(20, 3)
    reach = torch.rand(voxels, beams, device=s.device) ** 4
    each: tuple[int, ...] = (plans,) if plans > 1 else ()
    across = (slice(None), *(None for _ in each))
    part = torch.randint(5, (voxels,), device=s.device)
    tumour, organs = (part == 0).float()[across], [(part == organ).float()[across] for organ in (1, 2, 3)]
    sizes = [mask.sum() for mask in (tumour, *organs)]
    bounds = torch.linspace(0.2, 0.6, 3, device=s.device)
    weights = torch.rand(3, *each, device=s.device) + 0.5
    strength = 1.0 / (beams * 0.2)
    reach = reach.to(kept)

    def through(matrix: Tensor, x: Tensor) -> Tensor:
        return (matrix @ x.to(kept)).float()

    def cost(dose: Tensor) -> tuple[Tensor, Tensor]:
        """What the plan costs, and its slope: the tumour has too little or too much, organs have too much, at worst or on the whole."""
        little, much = (1.0 - dose).clamp(min=0.0) * tumour, (dose - 1.07).clamp(min=0.0) * tumour
        total = (10.0 * little.square() + 5.0 * much.square()).sum(0) / sizes[0]
        slope = (10.0 * much - 20.0 * little) / sizes[0]
        for mask, size, bound, weight in zip(organs, sizes[1:], bounds, weights, strict=True):
            over = (dose - bound).clamp(min=0.0) * mask
            mean = (dose * mask).sum(0) / size
            total = total + weight * (over.square().sum(0) / size + 0.1 * mean.square())
            slope = slope + weight * (2.0 * over / size + 0.2 * mean * mask / size)
        return total, slope

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        now = torch.full((beams, *each), strength, device=s.device)
        ahead, before = now, math.inf
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for turn in range(rounds):
                total, slope = cost(through(reach, ahead))
                if asked:
                    value = total.sum().item()
                    if abs(before - value) < 1e-9 * abs(value):
                        break
                    before = value
                new = (ahead - 1e-2 * strength * through(reach.T, slope)).clamp(min=0.0)
                ahead, now = new + turn / (turn + 3.0) * (new - now), new
        return now

    return step


# Orchards: how many apples hang there, by a map of their density.


class Trees(Dataset[tuple[np.ndarray, np.ndarray]]):
    """Pieces of photographs with a bell at each apple."""

    def __init__(self, photos: int, height: int, width: int, side: int) -> None:
        draw = np.random.default_rng(0)
        self.photos = draw.integers(0, 256, (photos, height, width, 3), dtype=np.uint8)
        self.apples = [np.stack([draw.integers(0, height, 800), draw.integers(0, width, 800)], 1) for _ in range(photos)]
        self.side = side
        line = np.arange(-7, 8)
        bell = np.exp(-(line[:, None] ** 2 + line**2) / 18.0)
        self.bell = (bell / bell.sum()).astype(np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(index)
        photo, side = draw.integers(len(self.photos)), self.side
        top, left = (draw.integers(0, size - side) for size in self.photos.shape[1:3])
        picture = self.photos[photo, top : top + side, left : left + side].astype(np.float32) / 255.0
        picture = np.clip((picture - 0.5) * draw.uniform(0.8, 1.2) + 0.5 + draw.uniform(-0.1, 0.1), 0.0, 1.0) ** draw.uniform(0.8, 1.25)
        picture = (picture - np.array([0.485, 0.456, 0.406], np.float32)) / np.array([0.229, 0.224, 0.225], np.float32)
        density = np.zeros((side + 14, side + 14), np.float32)
        for y, x in self.apples[photo] - (top, left):
            if 0 <= y < side and 0 <= x < side:
                density[y : y + 15, x : x + 15] += self.bell
        density = density[7:-7, 7:-7].reshape(side // 8, 8, side // 8, 8).sum((1, 3))
        if draw.random() < 0.5:
            picture, density = picture[:, ::-1], density[:, ::-1]
        return np.ascontiguousarray(picture.transpose(2, 0, 1), dtype=np.float32), np.ascontiguousarray(density)[None]


def _counter(s: Setup) -> nn.Sequential:
    """CSRNet: the front of a VGG, then taps that lie apart."""
    inner, layers = 3, list[nn.Module]()
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512):
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        outer = s.size(width, width // 16)
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(inplace=True)]
        inner = outer
    for width in (512, 512, 512, 256, 128, 64):
        outer = s.size(width, width // 16)
        layers += [nn.Conv2d(inner, outer, 3, padding=2, dilation=2), nn.ReLU(inplace=True)]
        inner = outer
    return nn.Sequential(*layers, nn.Conv2d(inner, 1, 1))


def orchard_counts(s: Setup, *, workers: bool = False, last: bool = False, scaled: bool = True, read: bool = True) -> Step:
    """The loss and how many apples too many or too few are added up as each batch ends."""
    count, side = s.size(16, 2), s.size(256, 32)
    model = _counter(s).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    trees = Trees(s.size(6, 1), s.size(1200, 48), s.size(1600, 64), side)
    batches, sums = iter(DataLoader(trees, batch_size=count, **options)), [0.0, 0.0]

    def step() -> Tensor:
        pictures, density = (part.to(s.device, non_blocking=workers) for part in next(batches))
        if last:
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.float16 if scaled and s.cuda else BF16):
            seen = model(pictures)
        loss = F.mse_loss(seen.float(), density, reduction="sum") / count
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if read:
            sums[0] += loss.item()
            sums[1] += (seen.detach().float().sum((1, 2, 3)) - density.sum((1, 2, 3))).abs().mean().item()
        return loss.detach()

    return step


# Grippers: what a hand does in its next sixteen moments, by diffusion (a policy learnt from people who showed it).


class Moves(nn.Module):
    """Two convolutions over time; what the robot sees scales and shifts what lies between."""

    def __init__(self, inner: int, outer: int, seen: int, groups: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv1d(inner, outer, 5, padding=2), nn.GroupNorm(groups, outer), nn.Mish())
        self.two = nn.Sequential(nn.Conv1d(outer, outer, 5, padding=2), nn.GroupNorm(groups, outer), nn.Mish())
        self.film = nn.Sequential(nn.Mish(), nn.Linear(seen, 2 * outer))
        self.past = nn.Conv1d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        scale, shift = self.film(seen)[..., None].chunk(2, 1)
        return self.two(scale * self.one(x) + shift) + self.past(x)


class Policy(nn.Module):
    def __init__(self, moves: int, sight: int, widths: tuple[int, ...], time: int, groups: int) -> None:
        super().__init__()
        self.time = time
        self.when = nn.Sequential(nn.Linear(time, 4 * time), nn.Mish(), nn.Linear(4 * time, time))
        block = partial(Moves, seen=time + sight, groups=groups)
        pairs = list(zip((moves, *widths[:-1]), widths, strict=True))
        self.down = nn.ModuleList(block(start, outer) for inner, outer in pairs for start in (inner, outer))
        self.shorter = nn.ModuleList(nn.Conv1d(width, width, 3, 2, 1) for width in widths[:-1])
        self.middle = nn.ModuleList(block(widths[-1], widths[-1]) for _ in range(2))
        self.up = nn.ModuleList(block(start, inner) for inner, outer in reversed(pairs[1:]) for start in (2 * outer, inner))
        self.longer = nn.ModuleList(nn.ConvTranspose1d(width, width, 4, 2, 1) for width in reversed(widths[:-1]))
        self.last = nn.Sequential(nn.Conv1d(widths[0], widths[0], 5, padding=2), nn.GroupNorm(groups, widths[0]), nn.Mish(), nn.Conv1d(widths[0], moves, 1))

    def forward(self, x: Tensor, turn: Tensor, sight: Tensor) -> Tensor:
        rate = torch.exp(-math.log(10_000.0) * torch.arange(self.time // 2, device=x.device) / (self.time // 2 - 1))
        angle = turn[:, None] * rate
        seen = torch.cat([self.when(torch.cat([angle.sin(), angle.cos()], -1)), sight], -1)
        x, kept = x.transpose(1, 2), []
        for level in range(len(self.down) // 2):
            x = self.down[2 * level + 1](self.down[2 * level](x, seen), seen)
            kept.append(x)
            if level < len(self.shorter):
                x = self.shorter[level](x)
        for block in self.middle:
            x = block(x, seen)
        for level, longer in enumerate(self.longer):
            x = torch.cat([x, kept.pop()], 1)
            x = longer(self.up[2 * level + 1](self.up[2 * level](x, seen), seen))
        return self.last(x).transpose(1, 2)


def gripper_policy(s: Setup, *, foreach: bool = False, graphed: bool = False, autocast: bool = False) -> Step:
    """What people showed lies on the GPU; a running mean of all weights is what will move the robot."""
    count, moments, moves, sight, turns = s.size(256, 3), s.size(16, 8), s.size(10, 3), s.size(132, 5), s.size(100, 5)
    model = Policy(moves, sight, (256, 512, 1024) if not s.tiny else (8, 16), s.size(128, 4), s.size(8, 2)).to(s.device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6, capturable=graphed and s.cuda)
    angle = (torch.arange(turns + 1, device=s.device) / turns + 0.008) / 1.008 * math.pi / 2
    clean = (angle.cos() ** 2 / angle[0].cos() ** 2)[1:].clamp(min=1e-4)
    shown, sights = torch.randn(s.size(20_000, 10), moments, moves, device=s.device), torch.randn(s.size(20_000, 10), sight, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        these = torch.randint(len(shown), (count,), device=s.device)
        x, noise = shown[these], torch.randn(count, moments, moves, device=s.device)
        turn = torch.randint(turns, (count,), device=s.device)
        left = clean[turn][:, None, None]
        noisy = left.sqrt() * x + (1.0 - left).sqrt() * noise
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(noisy, turn, sights[these])
        loss = F.mse_loss(guess.float(), noise)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.005)
            else:
                for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(now, 0.005)
        return loss.detach()

    return capture(step, s) if graphed else step


WORKLOADS = (
    written(
        "code_decoder", "Five rounds of belief propagation with learnt weights over the 378 edges of a code's graph, 16,384 words, training in FP32.",
        "torch.compile of a round; TF32 products; the step as a CUDA graph", code_decoder,
        {"unfused-elementwise": {"compiled": True}, "precision/tf32": {"tf32": True}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written(
        "handwriting", "A line of handwriting in 96 strokes by three LSTM cells, a soft window and a mixture; each stroke is asked whether the line is written.",
        "torch.compile(mode='reduce-overhead') of a stroke; nobody asks; bf16 autocast; eight lines together", handwriting,
        {"launch-gap": {"compiled": True}, "sync-stall": {"asked": False}, "precision": {"autocast": True}, "low-arithmetic-intensity": {"lines": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "chirp_bank", "A minute of a detector's strain against 128 chirps, one after another, by FFT; each peak is read at once.",
        "peaks are read when all are known; 32 chirps in one call; pinned memory and non_blocking", chirp_bank,
        {"sync-stall": {"at_end": True}, "small-grid": {"together": 32}, "memcpy": {"pinned": True}},
    ),
    written(
        "search_terms", "SPLADE on 64 texts of 128 words, 30,522 terms at each, training in bf16 autocast; attention, terms and the contrast among pages written out.",
        "torch.compile of the terms; 30,528 terms; F.scaled_dot_product_attention; F.cross_entropy", search_terms,
        {"unfused-elementwise": {"compiled": True}, "gemm-alignment": {"more": 6}, "unfused-attention": {"sdpa": True}, "unfused-norm": {"library": True}}, gpu_bound=True,
    ),
    written(
        "beam_plan", "Twenty rounds of projected gradients for 4000 beams through 120,000 voxels, FP32; what the plan costs is read in each.",
        "bf16 autocast; what beams reach in bf16; the cost is not read; eight plans together", beam_plan,
        {"precision": {"autocast": True}, "precision/stored": {"kept": BF16}, "sync-stall": {"asked": False}, "low-arithmetic-intensity": {"plans": 8}},
        shared={"low-arithmetic-intensity": 8.0}, gpu_bound=True,
    ),
    written(
        "orchard_counts", "CSRNet on 16 pieces of photographs, training in fp16 with a GradScaler, NCHW; pieces and bells are made in this process, sums are read in each step.",
        "num_workers=8 and pin_memory; channels_last; bf16 without a scaler; sums not read", orchard_counts,
        {"data-loading": {"workers": True}, "memory-layout": {"last": True}, "amp-scaler-sync": {"scaled": False}, "sync-stall": {"read": False}},
    ),
    written(
        "gripper_policy", "A one-dimensional U-Net that takes noise from 16 moves of 256 hands, training with TF32; a running mean of weights, tensor by tensor.",
        "torch._foreach_lerp_; the step as a CUDA graph; bf16 autocast", gripper_policy,
        {"optimizer-foreach": {"foreach": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True}},
    ),
)  # fmt: skip
