"""Programs by an author who has not read the rules, the eighth set: shapes, molecules, genes, options, weather, spikes, arms, voices, chips, tomography.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


# Graphics: a picture of a shape that a network of sines holds, by rays that go as far as nothing can be.


class Sines(nn.Module):
    """How far the shape is: a ball, and what a SIREN adds to it."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width if layer else 3, width) for layer in range(layers))
        self.last = nn.Linear(width, 1)
        for layer in self.layers[1:]:
            nn.init.uniform_(layer.weight, -math.sqrt(6 / width) / 30, math.sqrt(6 / width) / 30)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers:
            h = torch.sin(30.0 * layer(h))
        return x.norm(dim=-1) - 1.0 + 0.05 * torch.tanh(self.last(h)[:, 0].float())


def ray_shapes(s: Setup, *, masked: bool = False, autocast: bool = False, compiled: bool = False) -> Step:
    """Rays that have hit or left are dropped; the slope at those that hit, from four corners, gives the light."""
    side, passes = s.size(640, 16), s.size(24, 3)
    shape = Sines(s.size(256, 16), s.size(5, 2)).to(s.device).eval()
    far = s.compile(shape, dynamic=True) if compiled else shape
    line = torch.linspace(-1, 1, side, device=s.device)
    rays = F.normalize(torch.stack([*torch.meshgrid(line, line, indexing="xy"), torch.full((side, side), -1.6, device=s.device)], -1), dim=-1).view(-1, 3)
    eye, light = torch.tensor([0.0, 0.0, 2.6], device=s.device), F.normalize(torch.tensor([0.5, 0.8, 0.6], device=s.device), dim=0)
    corners = torch.tensor([[1.0, -1, -1], [-1, -1, 1], [-1, 1, -1], [1, 1, 1]], device=s.device)

    def shaded(points: Tensor) -> Tensor:
        slope = sum(corner * far(points + 5e-4 * corner)[:, None] for corner in corners)
        return 0.2 + 0.8 * (F.normalize(slope, dim=-1) * light).sum(-1).clamp(min=0.0)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        gone = torch.zeros(len(rays), device=s.device)
        alive, hit = torch.ones_like(gone, dtype=torch.bool), torch.zeros_like(gone, dtype=torch.bool)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for _ in range(passes):
                if masked:
                    near = far(eye + gone[:, None] * rays)
                    gone = torch.where(alive, gone + near, gone)
                    hit = hit | (alive & (near < 2e-3))
                    alive = alive & (near >= 2e-3) & (gone < 5.0)
                    continue
                these = alive.nonzero()[:, 0]
                if not len(these):
                    break
                near = far(eye + gone[these, None] * rays[these])
                gone[these] += near
                hit[these] = near < 2e-3
                alive[these] = (near >= 2e-3) & (gone[these] < 5.0)
            if masked:
                return torch.where(hit, shaded(eye + gone[:, None] * rays), 0.0).view(side, side)
            picture = torch.zeros(len(rays), device=s.device)
            picture[hit] = shaded(eye + gone[hit, None] * rays[hit])
        return picture.view(side, side)

    return step


# Chemistry: energies of molecules, by attention among atoms with a bias of their distances.


class Bells(nn.Module):
    """A distance as many bells, whose place depends on which two atoms they are."""

    def __init__(self, count: int, kinds: int) -> None:
        super().__init__()
        self.stretch, self.shift = nn.Embedding(kinds * kinds, 1), nn.Embedding(kinds * kinds, 1)
        self.mean, self.spread = nn.Parameter(torch.rand(count) * 3), nn.Parameter(torch.rand(count) * 3)
        nn.init.ones_(self.stretch.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, distance: Tensor, pair: Tensor) -> Tensor:
        x = (self.stretch(pair) * distance[..., None] + self.shift(pair)).float()
        spread = self.spread.abs() + 1e-2
        return torch.exp(-0.5 * ((x - self.mean) / spread) ** 2) / (math.sqrt(2 * math.pi) * spread)


class Bonded(nn.Module):
    def __init__(self, width: int, heads: int, library: bool) -> None:
        super().__init__()
        self.heads, self.library = heads, library
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.all(self.before(x)).chunk(3, -1))
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
            seen = scores.softmax(-1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Molecule(nn.Module):
    def __init__(self, s: Setup, library: bool, bells: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        width, heads, count, self.kinds = s.size(512, 16), s.size(16, 2), s.size(128, 8), s.size(20, 4)
        self.atoms = nn.Embedding(self.kinds, width, padding_idx=0)
        self.bells = bells(Bells(count, self.kinds))
        self.around = nn.Linear(count, width)
        self.bias = nn.Sequential(nn.Linear(count, count), nn.GELU(), nn.Linear(count, heads))
        self.layers = nn.ModuleList(Bonded(width, heads, library) for _ in range(s.size(6, 1)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, kind: Tensor, place: Tensor) -> Tensor:
        absent = kind == 0
        distance = torch.cdist(place, place)
        bells = self.bells(distance, kind[:, :, None] * self.kinds + kind[:, None, :]).masked_fill(absent[:, None, :, None], 0.0)
        bias = self.bias(bells).permute(0, 3, 1, 2).float().masked_fill(absent[:, None, None], -1e4)
        x = self.atoms(kind) + self.around(bells.sum(2))
        for layer in self.layers:
            x = layer(x, bias)
        return self.last(x)[..., 0].float().masked_fill(absent, 0.0).sum(1)


def molecule_energies(s: Setup, *, sdpa: bool = False, compiled: bool = False, more: int = 0) -> Step:
    count, longest = s.size(32, 2), s.size(90, 6)
    model = Molecule(s, sdpa, s.compile if compiled else lambda module: module).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    sizes = torch.randint(longest // 2, longest + 1, (count, 1))
    kind = torch.randint(1, model.kinds, (count, longest)) * (torch.arange(longest) < sizes)
    kind, place = F.pad(kind, (0, more)).to(s.device), F.pad(torch.randn(count, longest, 3) * 3, (0, 0, 0, more)).to(s.device)
    energy = torch.randn(count, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = F.l1_loss(model(kind, place), energy)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Genes: where a transcript is cut and joined, by convolutions whose taps lie far apart.


class Genome(Dataset[tuple[np.ndarray, np.ndarray]]):
    """Pieces of chromosomes, half of them read from the other strand, one-hot; bytes stand for letters."""

    def __init__(self, letters: int, length: int, margin: int) -> None:
        draw = np.random.default_rng(0)
        self.letters, self.sites = draw.integers(0, 4, letters, dtype=np.uint8), np.zeros(letters, dtype=np.uint8)
        self.sites[draw.integers(0, letters, letters // 500)] = draw.integers(1, 3, letters // 500)
        self.length, self.margin = length, margin

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(index)
        start = draw.integers(0, len(self.letters) - self.length - 2 * self.margin)
        seen = self.letters[start : start + self.length + 2 * self.margin]
        sites = self.sites[start + self.margin : start + self.margin + self.length]
        hot = np.eye(4, dtype=np.float32)[seen]
        hot[draw.random(len(hot)) < 0.001] = 0.25
        if draw.random() < 0.5:
            hot, sites = hot[::-1, ::-1], sites[::-1]
        return np.ascontiguousarray(hot.T), sites.astype(np.int64)


class Dilated(nn.Module):
    def __init__(self, width: int, taps: int, apart: int, flat: bool) -> None:
        super().__init__()
        self.parts = nn.Sequential()
        for _ in range(2):
            self.parts += nn.Sequential(_norm(width, flat), nn.ReLU(), _taps(width, width, taps, apart, flat))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


def _norm(width: int, flat: bool) -> nn.Module:
    return nn.BatchNorm2d(width) if flat else nn.BatchNorm1d(width)


def _taps(inner: int, outer: int, taps: int, apart: int, flat: bool) -> nn.Module:
    if flat:
        return nn.Conv2d(inner, outer, (1, taps), dilation=(1, apart), padding=(0, taps // 2 * apart))
    return nn.Conv1d(inner, outer, taps, dilation=apart, padding=taps // 2 * apart)


def splice_sites(s: Setup, *, autocast: bool = False, workers: bool = False, flat: bool = False) -> Step:
    """`flat` takes a strand for a picture one pixel high, whose channels lie last."""
    width, length, margin, count = s.size(32, 4), s.size(5000, 64), s.size(1000, 8), s.size(24, 2)
    blocks = [(11, 1)] * 4 + [(11, 4)] * 4 + [(21, 10)] * 4 if not s.tiny else [(3, 1), (3, 2)]
    layers = [_taps(4, width, 1, 1, flat), *(Dilated(width, taps, apart, flat) for taps, apart in blocks), _taps(width, 3, 1, 1, flat)]
    model = nn.Sequential(*layers).to(s.device)
    if flat:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    weight = torch.tensor([1.0, 50.0, 50.0], device=s.device)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches = iter(DataLoader(Genome(s.size(10_000_000, 2000), length, margin), batch_size=count, **options))

    def step() -> Tensor:
        hot, sites = (part.to(s.device, non_blocking=workers) for part in next(batches))
        if flat:
            hot = hot[:, :, None].contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = model(hot)
        scores = (scores[:, :, 0] if flat else scores)[:, :, margin:-margin]
        loss = F.cross_entropy(scores.float(), sites, weight)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Finance: an option on the better of two shares that may be used on any of two dozen days, by regression over paths.


def _onward(shares: Tensor, level: Tensor, noise: Tensor, jumps: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """A day of two shares (2 x paths): a volatility that depends on the price and on its own past, and jumps."""
    shock = torch.stack([noise[0], 0.4 * noise[0] + math.sqrt(1 - 0.16) * noise[1]])
    level = (level + 2.0 * (0.04 - level) * dt + 0.3 * torch.sqrt(level.clamp(min=0.0) * dt) * noise[2]).clamp(min=1e-4)
    local = torch.sqrt(level) * (1.0 + 0.2 * torch.tanh(-2.0 * torch.log(shares)))
    leap = torch.where(jumps < 0.3 * dt, -0.08 + 0.05 * noise[2], torch.zeros_like(jumps))
    return shares * torch.exp((0.01 - 0.5 * local * local) * dt + local * math.sqrt(dt) * shock + leap), level


def _terms(shares: Tensor) -> Tensor:
    one, other = shares
    return torch.stack([torch.ones_like(one), one, other, one * one, other * other, one * other, torch.maximum(one, other)], -1)


def bermudan_option(s: Setup, *, weighted: bool = False, compiled: bool = False, empties: bool = True) -> Step:
    """Longstaff and Schwartz: only paths on which the option is worth something today take part in a day's regression."""
    paths, dates = s.size(2_000_000, 200), s.size(24, 4)
    dt, discount = 1.0 / dates, math.exp(-0.03 / dates)
    onward = s.compile(_onward) if compiled else _onward
    ridge = 1e-4 * torch.eye(7, device=s.device)

    def worth(shares: Tensor) -> Tensor:
        return (shares.amax(0) - 1.0).clamp(min=0.0)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        shares, level, seen = torch.full((2, paths), 0.95, device=s.device), torch.full((2, paths), 0.04, device=s.device), []
        for _ in range(dates):
            shares, level = onward(shares, level, torch.randn(3, paths, device=s.device), torch.rand(paths, device=s.device), dt)
            seen.append(shares)
        value = worth(seen.pop())
        while seen:
            shares = seen.pop()
            today, value = worth(shares), value * discount
            if weighted:
                inside = today > 0
                terms = _terms(shares)
                known = terms * inside[:, None]
                kept = terms @ torch.linalg.solve_ex(known.T @ known / paths + ridge, known.T @ value / paths)[0]
                value = torch.where(inside & (today > kept), today, value)
            else:
                inside = today > 0
                terms = _terms(shares[:, inside])
                if len(terms) < 100:
                    continue
                factors = torch.linalg.solve(terms.T @ terms / len(terms) + ridge, terms.T @ value[inside] / len(terms))
                value[inside] = torch.where(today[inside] > terms @ factors, today[inside], value[inside])
        price = value.mean() * discount
        if empties and s.cuda:
            torch.cuda.empty_cache()  # another desk values its book on this GPU
        return price

    return step


# Weather: what changes in six hours, by messages over a mesh around the globe.


class LatentNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, self.gain.shape, self.gain, self.shift, 1e-5)
        x = x.float()
        mean = x.mean(-1, keepdim=True)
        spread = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(spread + 1e-5) * self.gain + self.shift


def _blend(inner: int, width: int, library: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, width), nn.SiLU(), nn.Linear(width, width), LatentNorm(width, library))


class Globe(nn.Module):
    def __init__(self, s: Setup, fields: int, library: bool) -> None:
        super().__init__()
        width = s.size(256, 8)
        self.enter, self.edges = _blend(fields, width, library), _blend(4, width, library)
        self.along = nn.ModuleList(_blend(3 * width, width, library) for _ in range(s.size(8, 2)))
        self.at = nn.ModuleList(_blend(2 * width, width, library) for _ in range(s.size(8, 2)))
        self.last = nn.Linear(width, fields)

    def forward(self, state: Tensor, shapes: Tensor, come: Tensor, go: Tensor) -> Tensor:
        x, e = self.enter(state), self.edges(shapes)
        for along, at in zip(self.along, self.at, strict=True):
            message = along(torch.cat([e, x[come], x[go]], -1))
            e = e + message
            heard = torch.zeros_like(x).index_add(0, go, message.to(x.dtype))
            x = x + at(torch.cat([x, heard], -1))
        return state + self.last(x)


def mesh_weather(s: Setup, *, norms: bool = False, fused: bool = False, filled: bool = True) -> Step:
    nodes, edges, fields = s.size(10_242, 12), s.size(81_900, 40), s.size(78, 5)
    model = Globe(s, fields, norms).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    come, go = torch.randint(nodes, (edges,), device=s.device), torch.randint(nodes, (edges,), device=s.device).sort().values
    shapes, state, later = torch.randn(edges, 4, device=s.device), torch.randn(nodes, fields, device=s.device), torch.randn(nodes, fields, device=s.device)
    area = torch.rand(nodes, 1, device=s.device) + 0.5

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad(set_to_none=not filled)
        with torch.autocast(s.device.type, torch.float16, enabled=s.cuda):
            forecast = model(state, shapes, come, go)
        loss = (area * (forecast.float() - later) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 32.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


# Neurons that fire: spoken digits as spikes of seven hundred fibres.


class Fire(torch.autograd.Function):
    """A step whose slope is that of a fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, above: Tensor) -> Tensor:
        ctx.save_for_backward(above)
        return (above > 0).to(above.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (above,) = ctx.saved_tensors
        return slope / (1.0 + 25.0 * above.abs()) ** 2


def _leak(current: Tensor, volts: Tensor, drive: Tensor, tired: Tensor, spikes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A moment of neurons that adapt: synapse, membrane, threshold, spike."""
    current = 0.9 * current + drive
    tired = 0.97 * tired + 0.03 * spikes
    volts = 0.95 * volts * (1.0 - spikes.detach()) + 0.05 * current
    return current, volts, tired, Fire.apply(volts - 1.0 - 1.8 * tired)


def spiking_digits(s: Setup, *, graphed: bool = False, compiled: bool = False, autocast: bool = False) -> Step:
    count, moments, fibres, width = s.size(256, 3), s.size(25, 4), s.size(700, 9), s.size(256, 8)
    into = nn.ModuleList([nn.Linear(fibres, width), nn.Linear(width, width)]).to(s.device)
    within = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2)).to(s.device)
    read_out = nn.Linear(width, 20).to(s.device)
    optimizer = torch.optim.Adam([p for part in (into, within, read_out) for p in part.parameters()], lr=1e-3, capturable=graphed and s.cuda)
    leak = s.compile(_leak) if compiled else _leak
    heard, digit = (torch.rand(moments, count, fibres, device=s.device) < 0.03).float(), torch.randint(20, (count,), device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        states = [tuple(torch.zeros(count, width, device=s.device) for _ in range(4)) for _ in into]
        score, fired = torch.zeros(count, 20, device=s.device), torch.zeros((), device=s.device)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for now in heard:
                signal = now
                for layer, (enter, back) in enumerate(zip(into, within, strict=True)):
                    current, volts, tired, spikes = states[layer]
                    states[layer] = leak(current, volts, enter(signal) + back(spikes), tired, spikes)
                    signal = states[layer][3]
                    fired = fired + signal.mean()
                score = 0.95 * score + read_out(signal)
        loss = F.cross_entropy(score.float() / moments, digit) + 0.1 * (fired / moments - 0.1) ** 2
        loss.backward()
        optimizer.step()
        return loss.detach()

    return capture(step, s) if graphed else step


# Robots: which angles of seven joints bring a hand to each of many places.

LINKS = ((0.333, 0.0, 0.0), (0.0, 0.0, -1.0), (0.316, 0.0, 1.0), (0.0, 0.0825, 1.0), (0.384, -0.0825, -1.0), (0.0, 0.0, 1.0), (0.107, 0.088, 1.0))


def _links(device: torch.device) -> tuple[Tensor, Tensor]:
    """What stands still in each link, as Denavit and Hartenberg have it: where it leads, and how its axis is tilted."""
    places, tilts = [], []
    for length, aside, quarter in LINKS:
        c, n = math.cos(quarter * math.pi / 2), math.sin(quarter * math.pi / 2)
        places.append([aside, -length * n, length * c])
        tilts.append([[1.0, 0.0, 0.0], [0.0, c, -n], [0.0, n, c]])
    return torch.tensor(places, device=device), torch.tensor(tilts, device=device)


def _hand(angles: Tensor, places: Tensor, tilts: Tensor) -> tuple[Tensor, Tensor]:
    """Where a hand is and how it is turned, link by link."""
    turn, at = torch.eye(3, device=angles.device), torch.zeros(3, device=angles.device)
    zero, one = torch.zeros((), device=angles.device), torch.ones((), device=angles.device)
    for angle, place, tilt in zip(angles.unbind(-1), places, tilts, strict=True):
        c, n = torch.cos(angle), torch.sin(angle)
        at = at + turn @ place
        turn = turn @ tilt @ torch.stack([torch.stack([c, -n, zero]), torch.stack([n, c, zero]), torch.stack([zero, zero, one])])
    return at, turn


def _missing(angles: Tensor, place: Tensor, turn: Tensor, links: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """How far the hand is from where it should be: three lengths and three turns (twice, for jacrev's has_aux)."""
    at, turned = _hand(angles, *links)
    miss = torch.cat([place - at, torch.linalg.cross(turned, turn, dim=0).sum(1) / 2])
    return miss, miss


def _slopes(angles: Tensor, place: Tensor, turn: Tensor, links: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return vmap(jacrev(_missing, has_aux=True), in_dims=(0, 0, 0, None))(angles, place, turn, links)


def arm_reach(s: Setup, *, compiled: bool = False, asked: bool = True, tf32: bool = False) -> Step:
    """Damped least squares; each round asks whether all hands have arrived, and those out of reach never do."""
    count, rounds = s.size(4096, 4), s.size(3, 2)
    slopes, links = s.compile(_slopes, mode="reduce-overhead") if compiled else _slopes, _links(s.device)
    low, high = -2.6 * torch.ones(7, device=s.device), 2.6 * torch.ones(7, device=s.device)
    place, turn = vmap(_hand, in_dims=(0, None, None))((torch.rand(count, 7, device=s.device) - 0.5) * 4, *links)
    place = place * (1 + 0.5 * (torch.rand(count, 1, device=s.device) < 0.02))
    damp = 0.01 * torch.eye(6, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        angles = torch.zeros(count, 7, device=s.device) + 0.1
        for _ in range(rounds):
            jacobian, miss = slopes(angles, place, turn, links)
            if asked and miss.norm(dim=-1).max().item() < 1e-3:
                break
            square = jacobian @ jacobian.transpose(1, 2) + damp
            pushed = torch.linalg.solve(square, miss) if asked else torch.linalg.solve_ex(square, miss)[0]
            # A jacobian of what is missing points the other way.
            angles = torch.clamp(angles - (jacobian.transpose(1, 2) @ pushed[..., None])[..., 0], low, high)
        return angles

    return step


# Voices: a service that turns pictures of sound into sound, a few words a call.


class Echo(nn.Module):
    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.far = nn.ModuleList(weight_norm(nn.Conv1d(width, width, taps, dilation=d, padding=taps // 2 * d)) for d in (1, 3, 5))
        self.near = nn.ModuleList(weight_norm(nn.Conv1d(width, width, taps, padding=taps // 2)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for far, near in zip(self.far, self.near, strict=True):
            x = x + near(F.leaky_relu(far(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Voice(nn.Module):
    """HiFi-GAN's generator."""

    def __init__(self, width: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.enter = weight_norm(nn.Conv1d(80, width, 7, padding=3))
        wide = [width // 2**level for level in range(len(rates) + 1)]
        self.up = nn.ModuleList(weight_norm(nn.ConvTranspose1d(wide[n], wide[n + 1], 2 * rate, rate, rate // 2)) for n, rate in enumerate(rates))
        self.echoes = nn.ModuleList(nn.ModuleList(Echo(each, taps) for taps in (3, 7, 11)) for each in wide[1:])
        self.last = weight_norm(nn.Conv1d(wide[-1], 1, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for up, echoes in zip(self.up, self.echoes, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = torch.stack([echo(x) for echo in echoes]).mean(0)
        return torch.tanh(self.last(F.leaky_relu(x)))


def voice_service(s: Setup, *, compiled: bool = False, autocast: bool = False, baked: bool = False, callers: int = 1) -> Step:
    """The checkpoint is that of training, with its norms of weights; what is said goes out as int16."""
    model = Voice(s.size(512, 16), (8, 8, 2, 2) if not s.tiny else (2, 2)).to(s.device).eval()
    if baked:
        for part in model.modules():
            if isinstance(part, (nn.Conv1d, nn.ConvTranspose1d)):
                remove_parametrizations(part, "weight")
    speak = s.compile(model, mode="reduce-overhead") if compiled else model
    wanted = [torch.randn(callers, 80, s.size(48, 4)) for _ in range(4)]
    turn = [0]

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("highest")
        turn[0] += 1
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            sound = speak(wanted[turn[0] % 4].to(s.device))
        return (sound.float() * 32767).to(torch.int16).cpu().numpy()

    return step


# Chips: cells are laid on a die so that wires are short and nowhere is too full.


def _wires(at: Tensor, cells: Tensor, nets: Tensor, count: int, blur: Tensor) -> Tensor:
    """Length of all nets, each extreme a weighted mean of its pins."""
    x, wide = at[:, cells], nets.expand(2, -1)
    zero = torch.zeros(2, count, device=at.device)
    most = zero.scatter_reduce(1, wide, x.detach(), "amax", include_self=False)
    least = zero.scatter_reduce(1, wide, x.detach(), "amin", include_self=False)
    up, down = torch.exp((x - most[:, nets]) / blur), torch.exp((least[:, nets] - x) / blur)
    upper = zero.scatter_add(1, wide, x * up) / zero.scatter_add(1, wide, up).clamp(min=1e-6)
    lower = zero.scatter_add(1, wide, x * down) / zero.scatter_add(1, wide, down).clamp(min=1e-6)
    return (upper - lower).sum()


def _crowd(at: Tensor, bins: int) -> Tensor:
    """How much area each bin holds; a cell lies in four of them."""
    place = at.clamp(0.0, 1.0) * (bins - 1.001)
    corner = place.detach().floor()
    right, above = place - corner
    first = (corner[1] * bins + corner[0]).long()
    area = torch.zeros(bins * bins, device=at.device)
    for dx, dy in ((0, 0), (1, 0), (0, 1), (1, 1)):
        share = (right if dx else 1 - right) * (above if dy else 1 - above)
        area = area.index_add(0, first + dy * bins + dx, share)
    return area.view(bins, bins)


def cell_placement(s: Setup, *, read: bool = True, compiled: bool = False, fused: bool = False) -> Step:
    """Six rounds; how full the fullest bins are sets the next round's blur and weight, and is logged."""
    cells, nets, pins, bins, rounds = s.size(150_000, 50), s.size(140_000, 40), s.size(520_000, 160), s.size(256, 8), s.size(6, 2)
    pin_cell, pin_net = torch.randint(cells, (pins,), device=s.device), torch.randint(nets, (pins,), device=s.device).sort().values
    at = nn.Parameter(0.5 + 0.1 * torch.randn(2, cells, device=s.device))
    optimizer = torch.optim.Adam([at], lr=1e-3, fused=fused)
    wires, crowd = (s.compile(_wires), s.compile(_crowd)) if compiled else (_wires, _crowd)
    waves = torch.fft.fftfreq(2 * bins, device=s.device)[:, None] ** 2 + torch.fft.rfftfreq(2 * bins, device=s.device) ** 2
    green = torch.where(waves > 0, 1.0 / waves.clamp(min=1e-12), 0.0)
    fair, log = cells / bins**2, list[tuple[float, float]]()

    def step() -> Tensor:
        log.clear()
        full: float | Tensor = 1.0
        for _ in range(rounds):
            blur = torch.as_tensor(0.002 + 0.02 * full, device=s.device, dtype=torch.float32)
            weight = 1e-3 / (full + 0.1)
            optimizer.zero_grad()
            length = wires(at, pin_cell, pin_net, nets, blur)
            area = crowd(at, bins)
            charge = (area - fair) / fair
            field = torch.fft.irfft2(torch.fft.rfft2(F.pad(charge, (0, bins, 0, bins))) * green, s=(2 * bins, 2 * bins))[:bins, :bins]
            loss = length / nets + weight * 0.5 * (charge * field).mean()
            loss.backward()
            optimizer.step()
            full = (area.detach() - 1.2 * fair).clamp(min=0.0).sum() / cells
            if read:
                full = full.item()
                log.append((length.item(), full))
        return at.detach()

    return step


# Tomography: a slice from its shadows, angle by angle.


def angle_shadows(s: Setup, *, together: bool = False, graphed: bool = False, ready: bool = False) -> Step:
    """Two rounds of SIRT: the slice is turned to each angle, summed, and what is missing is smeared back."""
    side, angles, rounds = s.size(256, 12), s.size(48, 5), s.size(2, 1)
    turned = torch.linspace(0, math.pi, angles + 1, device=s.device)[:-1]
    nothing = torch.zeros_like(turned)
    there = torch.stack([torch.stack([turned.cos(), -turned.sin(), nothing], -1), torch.stack([turned.sin(), turned.cos(), nothing], -1)], 1)
    back = torch.stack([torch.stack([turned.cos(), turned.sin(), nothing], -1), torch.stack([-turned.sin(), turned.cos(), nothing], -1)], 1)
    shadows = torch.rand(angles, side, device=s.device) * side / 4
    size = (1, 1, side, side)
    grids = [[F.affine_grid(each[None], list(size), align_corners=False) for each in way] for way in (there, back)] if ready else []

    def grid(way: int, angle: int) -> Tensor:
        return grids[way][angle] if grids else F.affine_grid((there, back)[way][angle][None], list(size), align_corners=False)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        piece = torch.zeros(size, device=s.device)
        for _ in range(rounds):
            if together:
                all_of = [angles, 1, side, side]
                seen = F.grid_sample(piece.expand(*all_of), F.affine_grid(there, all_of, align_corners=False), align_corners=False).sum(2)
                lack = ((shadows[:, None] - seen) / side)[:, :, None].expand(*all_of)
                change = F.grid_sample(lack, F.affine_grid(back, all_of, align_corners=False), align_corners=False).sum(0, keepdim=True)
            else:
                change = torch.zeros_like(piece)
                for angle in range(angles):
                    seen = F.grid_sample(piece, grid(0, angle), align_corners=False).sum(2)
                    lack = ((shadows[angle] - seen) / side)[:, :, None].expand(*size)
                    change += F.grid_sample(lack, grid(1, angle), align_corners=False)
            piece = (piece + 1.8 * change / angles).clamp(min=0.0)
        return piece

    return capture(step, s) if graphed else step


WORKLOADS = (
    written(
        "ray_shapes", "A picture of 640 x 640 rays through a SIREN's distances, TF32 products: 24 passes, each over the rays that nonzero() finds still under way.",
        "all rays in each pass; bf16 autocast; torch.compile of the network", ray_shapes,
        {"sync-stall": {"masked": True}, "precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written(
        "molecule_energies", "Attention among up to 90 atoms of 32 molecules with a bias from 128 bells of each distance, all written out, training in bf16 autocast.",
        "F.scaled_dot_product_attention with the bias as its mask; torch.compile of the bells; padded to 96 atoms", molecule_energies,
        {"unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True}, "gemm-alignment": {"more": 6}}, gpu_bound=True,
    ),
    written(
        "splice_sites", "A dilated residual network over 24 strands of 7000 letters, training in FP32 with TF32 convolutions; numpy makes letters one-hot in this process.",
        "bf16 autocast; num_workers=8 and pin_memory; channels_last as pictures one pixel high", splice_sites,
        {"precision": {"autocast": True}, "data-loading": {"workers": True}, "memory-layout": {"flat": True}}, gpu_bound=True,
    ),
    written(
        "bermudan_option", "Two million paths of two shares, then a regression over those in the money for each of 24 days, chosen by a mask; empty_cache() after it.",
        "all paths, weighted, and no check of the solution; torch.compile of a day; no empty_cache()", bermudan_option,
        {"sync-stall": {"weighted": True}, "unfused-elementwise": {"compiled": True}, "allocator": {"empties": False}}, gpu_bound=True,
    ),
    written(
        "mesh_weather", "Eight rounds of messages along 81,900 edges, training in fp16 with a GradScaler, layer norm written out, gradients filled with zeros.",
        "F.layer_norm; AdamW(fused=True); zero_grad(set_to_none=True)", mesh_weather,
        {"unfused-norm": {"norms": True}, "amp-scaler-sync": {"fused": True}, "grad-zeroing": {"filled": False}}, gpu_bound=True,
    ),
    written(
        "spiking_digits", "Two layers of spiking neurons over 25 moments, training through a surrogate's slope, TF32 products, moment by moment.",
        "the step as a CUDA graph; torch.compile of a moment; bf16 autocast", spiking_digits,
        {"graph-candidate": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "precision": {"autocast": True}},
    ),
    written(
        "arm_reach", "A tick of 4096 arms of seven joints: three rounds of damped least squares by vmap(jacrev), FP32; each asks whether all have arrived.",
        "torch.compile(mode='reduce-overhead') of the jacobian; nobody asks, solve_ex; TF32 products", arm_reach,
        {"launch-gap": {"compiled": True}, "sync-stall": {"asked": False}, "precision/tf32": {"tf32": True}},
    ),
    written(
        "voice_service", "HiFi-GAN's generator on 48 frames a call, FP32 with TF32 convolutions, its weights normed in each call.",
        "torch.compile(mode='reduce-overhead'); bf16 autocast; norms of weights taken once; four callers together", voice_service,
        {"launch-gap": {"compiled": True}, "precision": {"autocast": True}, "host-bound": {"baked": True}, "low-arithmetic-intensity": {"callers": 4}},
        shared={"low-arithmetic-intensity": 4.0},
    ),
    written(
        "cell_placement", "Six rounds of analytical placement of 150,000 cells: wires by scatters, crowds by FFT, Adam; length and overflow are read in each.",
        "the overflow stays on the GPU; torch.compile of wires and crowds; Adam(fused=True)", cell_placement,
        {"sync-stall": {"read": False}, "unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}},
    ),
    written(
        "angle_shadows", "Two rounds of SIRT on a slice of 256 x 256, turned to one of 48 angles after another by affine_grid and grid_sample.",
        "all angles in one batch; the step as a CUDA graph; grids made once", angle_shadows,
        {"small-grid": {"together": True}, "graph-candidate": {"graphed": True}, "host-bound": {"ready": True}},
    ),
)  # fmt: skip
