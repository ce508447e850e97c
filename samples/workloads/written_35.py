"""Learning by trying and numerical work in their authors' own code: a glasshouse's memory, ferns of frost, moist soil, a lighthouse's logs.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# A glasshouse: when to water and to air, by what the sensors said before (R2D2 with a normed LSTM).


class NormedCell(nn.Module):
    """An LSTM's cell whose products are normed, as in the baselines."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.wx, self.wh = nn.Linear(inner, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.norm_x, self.norm_h, self.norm_c = nn.LayerNorm(4 * width), nn.LayerNorm(4 * width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(4 * width))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm_x(self.wx(x)) + self.norm_h(self.wh(h)) + self.bias
        i, f, o, u = z.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(self.norm_c(c)), c


class Gardener(nn.Module):
    def __init__(self, sensors: int, width: int, moves: int, asked: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(sensors, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.cell = NormedCell(width, width)
        self.value = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.advantage = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, moves))
        self.asked = asked

    def forward(self, seen: Tensor, done: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, kept = self.encoder(seen), []
        for t in range(seen.shape[1]):
            if not self.asked or done[:, t].any():
                still = 1.0 - done[:, t, None]
                h, c = h * still, c * still
            h, c = self.cell(x[:, t], h, c)
            kept.append(h)
        told = torch.stack(kept, dim=1)
        advantage = self.advantage(told)
        return (self.value(told) + advantage - advantage.mean(2, keepdim=True)).float(), h, c


def rescaled(x: Tensor) -> Tensor:
    return torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + 1e-3 * x


def unscaled(x: Tensor) -> Tensor:
    return torch.sign(x) * (((torch.sqrt(1 + 4e-3 * (torch.abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


class Seasons:
    """What the plots went through; pieces of it are drawn by how wrong the guess was."""

    def __init__(self, plots: int, moments: int, sensors: int, moves: int, burn: int, trained: int, ahead: int) -> None:
        self.rng = np.random.default_rng(350)
        self.burn, self.trained, self.ahead, self.length = burn, trained, ahead, burn + trained + ahead
        self.seen = self.rng.standard_normal((plots, moments, sensors), dtype=np.float32)
        self.done = (self.rng.random((plots, moments)) < 0.01).astype(np.float32)
        self.moves = self.rng.integers(0, moves, (plots, moments)).astype(np.float32)
        self.gains = self.rng.standard_normal((plots, moments), dtype=np.float32)
        self.priorities = np.ones((plots, moments - self.length))

    def future(self, plot: int, t: int) -> tuple[float, float]:
        """The gains of the next moments, and whether the season goes on after them."""
        total = 0.0
        for k in range(self.ahead):
            total += 0.997**k * self.gains[plot, t + k]
            if self.done[plot, t + k + 1]:
                return total, 0.0
        return total, 1.0

    def prepare(self) -> None:
        """The same for all moments, once."""
        moments = self.gains.shape[1] - self.ahead
        self.totals, self.alive = np.zeros_like(self.gains), np.ones_like(self.gains)
        for k in range(self.ahead):
            self.totals[:, :moments] += self.alive[:, :moments] * 0.997**k * self.gains[:, k : moments + k]
            self.alive[:, :moments] *= 1 - self.done[:, k + 1 : moments + k + 1]

    def batch(self, size: int, prepared: bool) -> tuple[np.ndarray, list[np.ndarray]]:
        chance = self.priorities.ravel() / self.priorities.sum()
        flat = self.rng.choice(chance.size, size, p=chance)
        weight = (chance[flat] * chance.size) ** -0.6
        weight = (weight / weight.max()).astype(np.float32)
        if prepared:
            plot, start = (part[:, None] for part in np.divmod(flat, self.priorities.shape[1]))
            whole, learnt = start + np.arange(self.length), start + self.burn + np.arange(self.trained)
            parts = [self.seen[plot, whole], self.done[plot, whole], self.moves[plot, learnt], self.totals[plot, learnt], self.alive[plot, learnt]]
            return flat, [*parts, weight]
        seen, done, moves, totals, alive = [], [], [], [], []
        for place in flat.tolist():
            plot, start = divmod(place, self.priorities.shape[1])
            first = start + self.burn
            seen.append(self.seen[plot, start : start + self.length])
            done.append(self.done[plot, start : start + self.length])
            moves.append(self.moves[plot, first : first + self.trained])
            futures = [self.future(plot, t) for t in range(first, first + self.trained)]
            totals.append([total for total, _ in futures])
            alive.append([goes_on for _, goes_on in futures])
        return flat, [*(np.array(part, dtype=np.float32) for part in (seen, done, moves, totals, alive)), weight]


def glasshouse_memory(
    s: Setup,
    *,
    compiled: bool = False,
    graphed: bool = False,
    asked: bool = True,
    prepared: bool = False,
    packed: bool = False,
    foreach: bool = False,
    autocast: bool = False,
) -> Step:
    """R2D2 in training on 64 pieces of 28 moments, FP32 with TF32 products: Python sums gains, the host asks at each moment whether a season ended."""
    size, burn, trained, ahead = s.size(64, 4), s.size(8, 2), s.size(16, 3), s.size(4, 2)
    sensors, width, moves = s.size(96, 6), s.size(512, 16), s.size(18, 4)
    seasons = Seasons(s.size(256, 4), s.size(400, 24), sensors, moves, burn, trained, ahead)
    if prepared:
        seasons.prepare()
    within = asked and not (compiled or graphed)
    with s.device:
        model, target = Gardener(sensors, width, moves, within), Gardener(sensors, width, moves, within)
        empty, worth, told = torch.zeros(size, width), torch.zeros(size), torch.zeros(2)
    target.load_state_dict(model.state_dict())
    think, recall = (s.compile(part, dynamic=False) if compiled else part for part in (model, target))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-3, capturable=graphed and s.cuda)
    followed, leading = list(target.parameters()), list(model.parameters())
    log, turn = [0.0, 0.0], counter(1)

    def learn(parts: list[Tensor]) -> None:
        seen, done, made, totals, alive, weight = parts
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            with torch.no_grad():
                _, h, c = think(seen[:, :burn], done[:, :burn], empty, empty)
                _, old_h, old_c = recall(seen[:, :burn], done[:, :burn], empty, empty)
                later, _, _ = recall(seen[:, burn:], done[:, burn:], old_h, old_c)
            q, _, _ = think(seen[:, burn:], done[:, burn:], h, c)
        with torch.no_grad():
            best = q[:, ahead:].argmax(2, keepdim=True)
            future = unscaled(later[:, ahead:].gather(2, best).squeeze(2))
            goal = rescaled(totals + alive * 0.997**ahead * future)
        chosen = q[:, :-ahead].gather(2, made.long().unsqueeze(2)).squeeze(2)
        loss = (weight * F.smooth_l1_loss(chosen, goal, reduction="none").mean(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 40.0)
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(followed, leading, 0.005)
            else:
                for old, new in zip(followed, leading, strict=True):
                    old.mul_(0.995).add_(0.005 * new)
            wrong = (goal - chosen).abs()
            worth.copy_(0.9 * wrong.amax(1) + 0.1 * wrong.mean(1))
            told.copy_(torch.stack([loss.detach(), q.mean()]))

    torch.set_float32_matmul_precision("high")
    first = [torch.from_numpy(part) for part in seasons.batch(size, prepared)[1]]
    shapes, widths = [part.shape for part in first], [part.numel() // size for part in first]
    staged = s.pin(torch.zeros(size, sum(widths)))
    still = [part.to(s.device) for part in first]
    work = capture(partial(learn, still), s) if graphed else None

    def sent(parts: list[Tensor]) -> list[Tensor]:
        if not packed:
            return [part.to(s.device) for part in parts]
        torch.cat([part.view(size, -1) for part in parts], dim=1, out=staged)
        columns = staged.to(s.device, non_blocking=True).split(widths, dim=1)
        return [column.reshape(shape) for column, shape in zip(columns, shapes, strict=True)]

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high")
        picks, host = seasons.batch(size, prepared)
        parts = [torch.from_numpy(part) for part in host]
        if work is not None:
            for there, part in zip(still, parts, strict=True):
                there.copy_(part)
            work()
        else:
            learn(sent(parts))
        seasons.priorities.ravel()[picks] = worth.cpu().numpy() + 1e-3
        if asked:
            log[:] = [told[0].item(), told[1].item()]
        elif next(turn) % 50 == 0:
            log[:] = told.tolist()
        return log

    return step


# Ferns of frost on a window (Kobayashi's phase field).


def across(x: Tensor) -> Tensor:
    return (torch.roll(x, -1, 1) - torch.roll(x, 1, 1)) / 0.06


def along(x: Tensor) -> Tensor:
    return (torch.roll(x, -1, 0) - torch.roll(x, 1, 0)) / 0.06


def laplacian(x: Tensor) -> Tensor:
    return (torch.roll(x, 1, 0) + torch.roll(x, -1, 0) + torch.roll(x, 1, 1) + torch.roll(x, -1, 1) - 4 * x) / 0.0009


def frozen(ice: Tensor, warmth: Tensor, chaos: Tensor) -> tuple[Tensor, Tensor]:
    """One moment: six arms, heat that freezing sets free, a little chaos at the edge."""
    px, py = across(ice), along(ice)
    angle = torch.atan2(py, px)
    depth = 0.01 * (1 + 0.04 * torch.cos(6 * (angle - 0.2)))
    slope = -0.01 * 0.04 * 6 * torch.sin(6 * (angle - 0.2))
    square = depth**2
    turned = along(depth * slope * px) - across(depth * slope * py)
    spread = square * laplacian(ice) + across(square) * px + along(square) * py
    pull = 0.9 / math.pi * torch.atan(10.0 * (1.0 - warmth))
    edge = ice * (1 - ice)
    grown = (turned + spread + edge * (ice - 0.5 + pull) + 0.01 * edge * (chaos - 0.5)) / 3e-4
    return ice + 1e-4 * grown, warmth + 1e-4 * (laplacian(warmth) + 1.8 * grown)


def frost_ferns(
    s: Setup,
    *,
    compiled: bool = False,
    graphed: bool = False,
    single: bool = False,
    asked: bool = True,
    made: bool = False,
    pinned: bool = False,
) -> Step:
    """Eight moments of frost in 1536 x 1536 cells, in doubles as NumPy made them: its chaos is drawn on the host, each moment is asked for NaN."""
    side, moments = s.size(1536, 24), s.size(8, 2)
    rng = np.random.default_rng(351)
    seeds = np.zeros((side, side))
    for row, column in rng.integers(2, side - 2, (s.size(40, 2), 2)):
        seeds[row - 2 : row + 3, column - 2 : column + 3] = 1.0
    dtype = torch.float32 if single else torch.float64
    ice = torch.from_numpy(seeds).to(s.device, dtype)
    warmth, chaos = torch.zeros_like(ice), torch.zeros_like(ice)
    shares = torch.zeros(moments, device=s.device, dtype=dtype)
    staged = s.pin(torch.zeros(side, side, dtype=dtype)) if pinned else torch.zeros(0)
    grow = s.compile(frozen, dynamic=False) if compiled else frozen
    within, told = asked and not graphed, [0.0]

    def frame() -> None:
        told.clear()
        for n in range(moments):
            new_ice, new_warmth = grow(ice, warmth, chaos)
            ice.copy_(new_ice)
            warmth.copy_(new_warmth)
            if within:
                if torch.isnan(ice).any():
                    raise ArithmeticError("the frost has burst")
                told.append(ice.mean().item())
            else:
                shares[n].copy_(ice.mean())

    with torch.no_grad():
        work = capture(frame, s) if graphed else frame

    @torch.no_grad()
    def step() -> tuple[list[float], Tensor]:
        if made:
            chaos.copy_(torch.rand(side, side, device=s.device, dtype=dtype))
        elif pinned:
            rng.random(out=staged.numpy(), dtype=np.float32 if single else np.float64)
            chaos.copy_(staged, non_blocking=True)
        else:
            chaos.copy_(torch.from_numpy(rng.random((side, side), dtype=np.float32 if single else np.float64)))
        work()
        picture = (ice.clamp(0, 1) * 255).to(torch.uint8).cpu()
        return (told if within else shares.tolist()), picture

    return step


# Moist soil: what lies between the probes of six fields (Gaussian processes, one for each).


def matern(x: Tensor, length: Tensor, scale: Tensor) -> Tensor:
    """Matern's covariance with 5/2, a length for each feature; x is (..., points, features)."""
    apart = (x.unsqueeze(-2) - x.unsqueeze(-3)) / length[..., None, None, :]
    r = math.sqrt(5.0) * (apart.pow(2).sum(-1) + 1e-10).sqrt()
    return scale[..., None, None] * (1 + r + r**2 / 3) * torch.exp(-r)


class Soils(nn.Module):
    """Lengths, scales, noise and means of all fields."""

    def __init__(self, fields: int, features: int) -> None:
        super().__init__()
        self.length, self.scale = nn.Parameter(torch.zeros(fields, features)), nn.Parameter(torch.zeros(fields))
        self.noise, self.mean = nn.Parameter(torch.full((fields,), -1.0)), nn.Parameter(torch.zeros(fields))


def soil_kriging(
    s: Setup,
    *,
    together: bool = False,
    single: bool = False,
    compiled: bool = False,
    asked: bool = True,
    emptied: bool = True,
    fused: bool = False,
    pinned: bool = False,
) -> Step:
    """Hyperparameters of six exact Gaussian processes of 1200 probes, in doubles: field by field, each checked and read, memory given back after."""
    fields, probes, features = s.size(6, 2), s.size(1200, 20), s.size(6, 3)
    rng = np.random.default_rng(352)
    where = rng.random((fields, probes, features)) * 3
    moist = np.sin(where @ rng.standard_normal((features, 1)))[..., 0] + 0.3 * rng.standard_normal((fields, probes))
    dtype = torch.float32 if single else torch.float64
    places, values = torch.from_numpy(where).to(dtype), torch.from_numpy(moist).to(dtype)
    if pinned:
        places, values = s.pin(places), s.pin(values)
    model = Soils(fields, features).to(s.device, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused or None)
    covariance = s.compile(matern, dynamic=False) if compiled else matern
    eye = torch.eye(probes, device=s.device, dtype=dtype)
    total = torch.zeros((), device=s.device, dtype=dtype)
    history: list[float] = []

    def unlikely(x: Tensor, y: Tensor, chosen: int | slice) -> Tensor:
        length, scale = F.softplus(model.length[chosen]), F.softplus(model.scale[chosen])
        noise = F.softplus(model.noise[chosen]) + 0.01
        k = covariance(x, length, scale) + noise[..., None, None] * eye
        root = torch.linalg.cholesky(k) if asked else torch.linalg.cholesky_ex(k)[0]
        mean = model.mean[chosen].unsqueeze(-1).expand_as(y)
        return -MultivariateNormal(mean, scale_tril=root, validate_args=None if asked else False).log_prob(y).sum() / probes

    def note(loss: Tensor) -> None:
        if asked:
            history.append(loss.item())
        else:
            total.add_(loss.detach())

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        history.clear()
        optimizer.zero_grad()
        if together:
            loss = unlikely(places.to(s.device, non_blocking=pinned), values.to(s.device, non_blocking=pinned), slice(None))
            loss.backward()
            note(loss)
        else:
            for field in range(fields):
                loss = unlikely(places[field].to(s.device, non_blocking=pinned), values[field].to(s.device, non_blocking=pinned), field)
                loss.backward()
                note(loss)
        optimizer.step()
        if emptied and s.cuda:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


# A lighthouse's logs: what the keeper writes next (RetNet, chunk by chunk).


class Rms(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.library = nn.Parameter(torch.ones(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight


def turned(x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    odd = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * cosine + odd * sine


class Retention(nn.Module):
    """Each head forgets at its own pace; within a chunk all at once, from chunk to chunk by a state."""

    def __init__(self, width: int, heads: int, chunk: int, library: bool) -> None:
        super().__init__()
        self.heads, self.chunk, self.library = heads, chunk, library
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(2 * width, width, bias=False)
        pace, place = torch.log(1 - 2.0 ** (-5 - torch.arange(heads).float()))[:, None], torch.arange(chunk).float()
        apart = place[:, None] - place[None]
        self.register_buffer("mask", torch.where(apart >= 0, torch.exp(apart.clamp(min=0) * pace[..., None]), 0.0))
        self.register_buffer("since", torch.exp((place + 1) * pace)[..., None])
        self.register_buffer("until", torch.exp((chunk - 1 - place) * pace)[..., None])
        self.register_buffer("whole", torch.exp(chunk * pace)[..., None])

    def forward(self, x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (part(x).view(b, n, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = turned(q, sine, cosine), turned(k * (width // self.heads) ** -0.5, sine, cosine)
        state = torch.zeros(b, self.heads, k.shape[-1], v.shape[-1], device=x.device)
        said = []
        for qc, kc, vc in zip(*(part.split(self.chunk, dim=2) for part in (q, k, v)), strict=True):
            near = torch.matmul(torch.einsum("bhnd,bhmd->bhnm", qc, kc) * self.mask, vc)
            far = torch.matmul(qc, state) * self.since
            said.append(near + far)
            state = state * self.whole + torch.matmul((kc * self.until).transpose(2, 3), vc)
        y = torch.cat(said, dim=2)
        if self.library:
            y = F.rms_norm(y, (y.shape[-1],), None, 1e-6)
        else:
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.out(F.silu(self.gate(x)) * y.transpose(1, 2).reshape(b, n, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, chunk: int, library: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = Rms(width, library), Rms(width, library)
        self.retention = Retention(width, heads, chunk, library)
        self.w1, self.w2, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False), nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
        x = x + self.retention(self.norm1(x), sine, cosine)
        y = self.norm2(x)
        return x + self.w2(F.gelu(self.w1(y)) * self.w3(y))


class RetNet(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, inner: int, chunk: int, library: bool) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), Rms(width, library)
        nn.init.normal_(self.words.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(Block(width, heads, inner, chunk, library) for _ in range(layers))
        self.register_buffer("angle", (10_000.0 ** -torch.linspace(0, 1, width // heads // 2)).repeat_interleave(2))

    def forward(self, ids: Tensor) -> Tensor:
        turns = torch.arange(ids.shape[1], device=ids.device)[:, None] * self.angle
        sine, cosine = turns.sin(), turns.cos()
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, sine, cosine)
        return F.linear(self.norm(x), self.words.weight)


def lighthouse_logs(
    s: Setup,
    *,
    compiled: bool = False,
    library: bool = False,
    padded: bool = False,
    fused: bool = False,
    dropped: bool = False,
    read: bool = True,
    pinned: bool = False,
) -> Step:
    """RetNet in training on eight pieces of 1024 words out of 30,011, bf16 autocast: norms written out, gradients zeroed, loss and norm read."""
    batch, length, words = s.size(8, 2), s.size(1024, 16), s.size(30_011, 61)
    rng = np.random.default_rng(353)
    book = rng.integers(0, words, s.size(2_000_000, 500)).astype(np.uint16)
    rows = math.ceil(words / 64) * 64 if padded else words
    with s.device:
        model = RetNet(rows, s.size(768, 32), s.size(6, 2), s.size(4, 2), s.size(2048, 48), s.size(256, 8), library).train()
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.98), weight_decay=0.05, fused=fused or None)
    staged = s.pin(torch.zeros(batch, length + 1, dtype=torch.long)) if pinned else None
    log, turn = [0.0, 0.0], counter(1)

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high")
        starts = rng.integers(0, len(book) - length - 1, batch)
        pieces = torch.stack([torch.from_numpy(book[start : start + length + 1].astype(np.int64)) for start in starts])
        if staged is not None:
            staged.copy_(pieces)
            pieces = staged
        ids = pieces.to(s.device, non_blocking=pinned)
        with torch.autocast(s.device.type, BF16):
            logits = network(ids[:, :-1])
            loss = F.cross_entropy(logits.view(-1, rows), ids[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=dropped)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if read:
            log[:] = [loss.item(), norm.item()]
        else:
            noted.copy_(torch.stack([loss.detach(), norm]))
            if next(turn) % 50 == 0:
                log[:] = noted.tolist()
        return log

    return step


WORKLOADS = (
    written(
        "glasshouse_memory",
        "R2D2 in training on 64 pieces of 28 moments, TF32 products: Python sums gains, an `if` at each moment, six copies, a network follows by loop.",
        "torch.compile of both networks; CUDA graph of the update; no `if` on a tensor; gains summed once; one pinned copy; _foreach_lerp_; bf16 autocast",
        glasshouse_memory,
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"asked": False}, "host-bound": {"prepared": True},
            "memcpy": {"packed": True}, "optimizer-foreach": {"foreach": True}, "precision": {"autocast": True},
        },
    ),
    written(
        "frost_ferns", "Eight moments of a phase field in 1536 x 1536 cells, in doubles: torch.roll, chaos drawn by NumPy, each moment asked for NaN and read.",
        "torch.compile of a moment; FP32; CUDA graph of the eight; nothing asked between; chaos made on the GPU, or drawn into pinned memory", frost_ferns,
        {
            "unfused-elementwise": {"compiled": True}, "precision": {"single": True}, "graph-candidate": {"graphed": True},
            "sync-stall": {"asked": False}, "memcpy": {"made": True}, "memcpy/pinned": {"pinned": True},
        },
    ),
    written(
        "soil_kriging", "Six exact Gaussian processes of 1200 probes in training, in doubles: one by one, checked and read, empty_cache() after each step.",
        "all fields in one batched call; FP32; torch.compile of the covariance; no checks or reads; no empty_cache(); fused Adam; pinned probes", soil_kriging,
        {
            "launch-gap": {"together": True}, "precision": {"single": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False},
            "allocator": {"emptied": False}, "optimizer-foreach": {"fused": True}, "memcpy": {"pinned": True},
        },
    ),
    written(
        "lighthouse_logs", "RetNet in training on eight pieces of 1024 words, bf16 autocast: 30,011 words, norms written out, gradients zeroed, two reads.",
        "torch.compile of the network; F.rms_norm; 30,016 rows; fused AdamW; gradients dropped; loss and norm read every 50 steps; pinned pieces",
        lighthouse_logs,
        {
            "unfused-elementwise": {"compiled": True}, "unfused-norm": {"library": True}, "gemm-alignment": {"padded": True},
            "optimizer-foreach": {"fused": True}, "grad-zeroing": {"dropped": True}, "sync-stall": {"read": False}, "memcpy": {"pinned": True},
        },
    ),
)  # fmt: skip
