"""Programs by an author who has not read the rules: a desk that hedges, a magnetised plasma, echoes of an unborn child, turbines at sea.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# A currency desk: how much to hold on each day, so that the worst outcomes of a sold option are mild (deep hedging, expected shortfall).


class DayNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.gain, self.shift, 1e-5)
        centred = x - x.mean(dim=-1, keepdim=True)
        var = centred.pow(2).mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(var + 1e-5) * self.gain + self.shift


class Desk(nn.Module):
    """Says from what is known on a day, and from what is held, what to hold until the next; `worst` is the shortfall's threshold."""

    def __init__(self, known: int, width: int, library: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(known + 1, width), DayNorm(width, library), nn.SiLU(),
            nn.Linear(width, width), DayNorm(width, library), nn.SiLU(),
            nn.Linear(width, width), DayNorm(width, library), nn.SiLU(),
            nn.Linear(width, 1),
        )  # fmt: skip
        self.start, self.worst = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(0.05))

    def forward(self, known: Tensor, held: Tensor, now: Tensor, then: Tensor, wealth: Tensor) -> tuple[Tensor, Tensor]:
        wanted = 1.2 * torch.sigmoid(self.body(torch.cat([known, held[:, None]], dim=1)).float()[:, 0])
        fee = 5e-4 * now * torch.sqrt((wanted - held).square() + 1e-8)
        return wanted, wealth + wanted * (then - now) - fee


def advance(log_price: Tensor, variance: Tensor, noise: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """One day of Bates' model: a variance that returns to its mean, and jumps."""
    day = 1.0 / 250.0
    steady = variance.clamp(min=0.0)
    shock = -0.6 * noise[0] + 0.8 * noise[1]
    jump = torch.where(chance < 0.6 * day, -0.03 + 0.05 * noise[2], torch.zeros_like(chance))
    log_price = log_price - 0.5 * steady * day + torch.sqrt(steady * day) * shock + jump
    variance = variance + 2.0 * (0.04 - steady) * day + 0.4 * torch.sqrt(steady * day) * noise[0]
    return log_price, variance


def currency_hedges(
    s: Setup,
    *,
    tf32: bool = False,
    autocast: bool = False,
    compiled: bool = False,
    library: bool = False,
    graphed: bool = False,
    read: bool = True,
    fused: bool = False,
) -> Step:
    """Deep hedging in training over 32,768 paths of 24 days, drawn anew in each step; the policy sees what it held the day before."""
    paths, days, width = s.size(32_768, 16), s.size(24, 3), s.size(128, 8)
    with s.device:
        desk, noted = Desk(3, width, library), torch.zeros(2)
    trade = s.compile(desk, dynamic=False) if compiled else desk
    onward = s.compile(advance, dynamic=False) if compiled else advance
    adam = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam(desk.parameters(), lr=2e-3, capturable=graphed and s.cuda, **adam)
    turn, history = counter(), []

    @torch.no_grad()
    def drawn() -> tuple[Tensor, Tensor]:
        """Prices (days + 1, paths), and what is known of them (days, paths, 3)."""
        noise, chance = torch.randn(days, 3, paths, device=s.device), torch.rand(days, paths, device=s.device)
        log_price, variance = torch.zeros(paths, device=s.device), torch.full((paths,), 0.04, device=s.device)
        logs, variances = [log_price], [variance]
        for day in range(days):
            log_price, variance = onward(log_price, variance, noise[day], chance[day])
            logs.append(log_price)
            variances.append(variance)
        seen, spread = torch.stack(logs), torch.stack(variances)
        left = torch.linspace(1.0, 0.0, days + 1, device=s.device)[:, None].expand_as(seen)
        return seen.exp(), torch.stack([10.0 * seen, 10.0 * spread, left], dim=2)[:-1]

    def train() -> None:
        prices, known = drawn()
        held = desk.start * torch.ones(paths, device=s.device)
        wealth = -5e-4 * held.abs()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for day in range(days):
                held, wealth = trade(known[day], held, prices[day], prices[day + 1], wealth)
        lost = (prices[-1] - 1.0).clamp(min=0.0) - wealth
        loss = desk.worst + (lost - desk.worst).clamp(min=0.0).mean() / 0.1
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(desk.parameters(), 1.0)
        optimizer.step()
        noted.copy_(torch.stack([loss.detach(), norm]))

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    work = capture(train, s) if graphed else train

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        work()
        if read or next(turn) % 100 == 99:
            loss, norm = noted[0].item(), noted[1].item()
            if not math.isfinite(norm):
                raise FloatingPointError("the desk is lost")
            history.append(loss)
            del history[:-100]
        return noted

    return step


# A plasma across a magnetic field: particles in cells, fields by Poisson's equation.


def corners(x: Tensor, y: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """The four nearest knots of each particle, and how much each counts: (4, particles)."""
    left, low = torch.floor(x), torch.floor(y)
    right_part, high_part = x - left, y - low
    left_part, low_part = 1.0 - right_part, 1.0 - high_part
    column, row = left.long() % cells, low.long() % cells
    next_column, next_row = (column + 1) % cells, (row + 1) % cells
    index = torch.stack([row * cells + column, row * cells + next_column, next_row * cells + column, next_row * cells + next_column])
    weight = torch.stack([low_part * left_part, low_part * right_part, high_part * left_part, high_part * right_part])
    return index, weight


def density(x: Tensor, y: Tensor, cells: int, each: float) -> Tensor:
    index, weight = corners(x, y, cells)
    grid = torch.zeros(cells * cells, dtype=x.dtype, device=x.device)
    return (each * grid.scatter_add(0, index.flatten(), weight.flatten())).view(cells, cells)


def pushed(x: Tensor, y: Tensor, u: Tensor, v: Tensor, east: Tensor, north: Tensor, pace: float, turning: float) -> tuple[Tensor, Tensor]:
    """Boris' push: half of the field, a turn about the magnetic field, the other half."""
    cells = east.shape[0]
    index, weight = corners(x, y, cells)
    along, across = (east.flatten()[index] * weight).sum(0), (north.flatten()[index] * weight).sum(0)
    half_u, half_v = u - 0.5 * pace * along, v - 0.5 * pace * across
    tangent = 0.5 * pace * turning
    sine = 2.0 * tangent / (1.0 + tangent * tangent)
    middle_u, middle_v = half_u + tangent * half_v, half_v - tangent * half_u
    turned_u, turned_v = half_u + sine * middle_v, half_v - sine * middle_u
    new_u, new_v = turned_u - 0.5 * pace * along, turned_v - 0.5 * pace * across
    place = torch.stack([torch.remainder(x + pace * new_u, cells), torch.remainder(y + pace * new_v, cells)], dim=1)
    return place, torch.stack([new_u, new_v], dim=1)


def waves_of(cells: int) -> tuple[NDArray[np.float64], ...]:
    """Poisson's equation in Fourier space, with smoothed particles, and the numbers of the waves."""
    ky, kx = 2.0 * np.pi * np.fft.fftfreq(cells), 2.0 * np.pi * np.fft.rfftfreq(cells)
    square = ky[:, None] ** 2 + kx[None, :] ** 2
    square[0, 0] = 1.0
    green = np.exp(-square) / square
    green[0, 0] = 0.0
    return green, kx[None, :].copy(), ky[:, None].copy()


def magnetised_plasma(
    s: Setup,
    *,
    single: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    read: bool = True,
    kept: bool = False,
    strided: bool = False,
) -> Step:
    """Four moments of three million electrons in 512 x 512 cells, in doubles as NumPy drew them; the energies are logged at each."""
    particles, cells, moments = s.size(3_000_000, 200), s.size(512, 8), s.size(4, 2)
    number = np.float32 if single else np.float64
    rng = np.random.default_rng(322)
    where, speeds = rng.uniform(0.0, cells, (particles, 2)), 0.3 * rng.standard_normal((particles, 2))
    speeds[:, 0] += np.where(np.arange(particles) % 2 == 0, 1.0, -1.0)
    place, speed = (torch.from_numpy(array.astype(number)).to(s.device) for array in (where, speeds))
    tables = tuple(torch.from_numpy(table.astype(number)).to(s.device) for table in waves_of(cells))
    energies = torch.zeros(moments, 2, dtype=place.dtype, device=s.device)
    each, pace, turning = cells * cells / particles, 0.1, 0.5
    spread = s.compile(density, dynamic=False) if compiled else density
    push = s.compile(pushed, dynamic=False) if compiled else pushed
    log: list[tuple[float, float]] = []

    def columns(pair: Tensor) -> tuple[Tensor, Tensor]:
        first, second = pair[:, 0], pair[:, 1]
        return (first, second) if strided else (first.contiguous(), second.contiguous())

    def note(kinetic: float, field: float) -> None:
        if math.isnan(kinetic):
            raise FloatingPointError("the plasma has blown up")
        log.append((kinetic, field))
        del log[:-1000]

    def run(inside: bool) -> None:
        green, kx, ky = tables
        for moment in range(moments):
            (x, y), (u, v) = columns(place), columns(speed)
            charge = torch.fft.rfft2(spread(x, y, cells, each) - 1.0)
            potential = -green * charge
            east = torch.fft.irfft2(-1j * kx * potential, s=(cells, cells))
            north = torch.fft.irfft2(-1j * ky * potential, s=(cells, cells))
            new_place, new_speed = push(x, y, u, v, east, north, pace, turning)
            place.copy_(new_place)
            speed.copy_(new_speed)
            energies[moment, 0] = 0.5 * each * (new_speed**2).sum()
            energies[moment, 1] = 0.5 * (east**2 + north**2).sum()
            if inside:
                note(energies[moment, 0].item(), energies[moment, 1].item())

    with torch.no_grad():
        work = capture(lambda: run(False), s) if graphed else lambda: run(read)

    @torch.no_grad()
    def step() -> Tensor:
        if not kept:
            for table, array in zip(tables, waves_of(cells), strict=True):
                table.copy_(torch.from_numpy(array.astype(number)))
        work()
        if graphed and read:
            for kinetic, field in energies.tolist():
                note(kinetic, field)
        return energies

    return step


# Ultrasound of an unborn child: plane waves from seven sides, delays, and weights that let through least of what comes from elsewhere (Capon).

CARRIER, RATE, SOUND = 5.0e6, 25.0e6, 1540.0


def focused(inphase: Tensor, quadrature: Tensor, heading: Tensor, x: Tensor, z: Tensor, probe: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """What each of the probe's elements heard of each pixel: (frames, pixels, elements). `heading` is the wave's cosine and sine."""
    aside = x[:, None] - probe[None, :]
    path = z[:, None] * heading[0] + x[:, None] * heading[1] + torch.sqrt(aside * aside + z[:, None] * z[:, None])
    late = (path * (RATE / SOUND)).clamp(0.0, samples - 2.0)
    before = torch.floor(late)
    part = late - before
    index = before.long() + torch.arange(len(probe), device=x.device)[None, :] * samples
    real = inphase[:, index] * (1.0 - part) + inphase[:, index + 1] * part
    imaginary = quadrature[:, index] * (1.0 - part) + quadrature[:, index + 1] * part
    angle = late * (2.0 * math.pi * CARRIER / RATE)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    reach = (aside.abs() / (0.7 * z[:, None])).clamp(max=1.0)
    window = 0.54 + 0.46 * torch.cos(math.pi * reach)
    return window * (real * cosine - imaginary * sine), window * (real * sine + imaginary * cosine)


def unborn_echoes(
    s: Setup,
    *,
    on_device: bool = False,
    pinned: bool = False,
    compiled: bool = False,
    later: bool = False,
    viewed: bool = False,
    tf32: bool = False,
    frames: int = 1,
) -> Step:
    """A frame of ultrasound in FP32: NumPy makes floats of what was heard and lifts what came late; the picture and its peak are read."""
    high, wide, elements, angles = s.size(160, 6), s.size(96, 4), s.size(128, 8), s.size(7, 2)
    samples, part = s.size(1536, 64), s.size(32, 4)
    rng = np.random.default_rng(323)
    heard = [rng.integers(-2000, 2000, (frames, angles, elements, samples), dtype=np.int16) for _ in range(3)]
    lift = (1.0 + 3.0 * np.arange(samples, dtype=np.float32) / samples) / 2048.0
    depths, sides = torch.linspace(4e-3, 0.6 * samples / RATE * SOUND / 2.0 + 4e-3, high), torch.linspace(-0.012, 0.012, wide)
    z, x = (axis.flatten().to(s.device) for axis in torch.meshgrid(depths, sides, indexing="ij"))
    probe = ((torch.arange(elements) - 0.5 * (elements - 1)) * 2e-4).to(s.device)
    tilt = torch.linspace(-0.2, 0.2, angles)
    headings = [torch.stack([slant.cos(), slant.sin()]).to(s.device) for slant in tilt]
    clock = torch.arange(samples) * (2.0 * math.pi * CARRIER / RATE)
    carrier = torch.stack([clock.cos(), -clock.sin()]).to(s.device)
    smooth = torch.hann_window(33, periodic=False, device=s.device)
    smooth = (2.0 * smooth / smooth.sum())[None, None]
    lift_there, steering = torch.from_numpy(lift).to(s.device), torch.ones(part, 1, dtype=torch.complex64, device=s.device)
    unit = torch.eye(part, device=s.device)
    focus = s.compile(focused, dynamic=False) if compiled else focused
    turn, shown = counter(), torch.ones((), device=s.device)
    level = [1.0]
    shape = (frames, angles, elements, samples)
    staged = s.pin(torch.empty(shape, dtype=torch.int16 if on_device else torch.float32)) if pinned else None
    screens = [s.pin(torch.zeros(frames, high, wide, dtype=torch.uint8)) for _ in range(2)] if later else []
    ready = [torch.cuda.Event() for _ in range(2)] if later and s.cuda else []

    def sent(raw: NDArray[np.int16]) -> Tensor:
        if on_device:
            return torch.from_numpy(raw).to(s.device).float() * lift_there
        if staged is not None:
            np.multiply(raw, lift, out=staged.numpy())
            return staged.to(s.device, non_blocking=True)
        return torch.from_numpy(raw.astype(np.float32) * lift).to(s.device)

    def capon(echoes: Tensor) -> Tensor:
        """Weights over parts of the probe for each pixel, from the covariance of all parts; gives the amplitude, (frames, pixels)."""
        pieces = echoes.unfold(-1, part, 1)
        if viewed:
            covariance = torch.matmul(pieces.transpose(-1, -2), pieces.conj())
        else:
            pieces = pieces.contiguous()
            covariance = torch.matmul(pieces.transpose(-1, -2).contiguous(), pieces.conj())
        covariance = covariance / pieces.shape[-2]
        loading = 0.05 * covariance.diagonal(dim1=-2, dim2=-1).real.mean(-1) + 1e-6
        covariance = covariance + loading[..., None, None] * unit
        right = steering.expand(*covariance.shape[:-1], 1)
        solved = torch.linalg.solve_ex(covariance, right).result if later else torch.linalg.solve(covariance, right)
        weights = solved[..., 0] / solved.sum((-2, -1))[..., None]
        return (weights.conj() * pieces.mean(-2)).sum(-1).abs()

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        now = next(turn)
        sound = sent(heard[now % len(heard)])
        mixed = (sound[:, :, None] * carrier[:, None]).view(-1, 1, samples)
        low = F.conv1d(mixed, smooth, padding=16).view(frames, angles, 2, elements * samples)
        real = imaginary = torch.zeros(frames, high * wide, elements, device=s.device)
        for angle in range(angles):
            more = focus(low[:, angle, 0], low[:, angle, 1], headings[angle], x, z, probe, samples)
            real, imaginary = real + more[0], imaginary + more[1]
        amplitude = capon(torch.complex(real, imaginary))
        if later:
            shown.lerp_(amplitude.amax(), 0.1)
            scaled = amplitude / shown
        else:
            level[0] += 0.1 * (amplitude.amax().item() - level[0])
            scaled = amplitude / level[0]
        decibels = 20.0 * torch.log10(scaled + 1e-6)
        picture = ((decibels + 60.0).clamp(0.0, 60.0) * (255.0 / 60.0)).to(torch.uint8).view(frames, high, wide)
        if not later:
            return picture.cpu()
        screens[now % 2].copy_(picture, non_blocking=True)
        if ready:
            ready[now % 2].record()
            if now:
                ready[(now - 1) % 2].synchronize()
        return screens[(now - 1) % 2]

    return step


# Turbines at sea: where they should stand so that they take the least wind from each other.


def harvest(layout: Tensor, weather: Tensor, half: float, spacing: float) -> tuple[Tensor, Tensor]:
    """What each layout yields in that weather, and how much it breaks the rules. Layouts are (layouts, turbines, 2), weather is (draws, 2)."""
    angle, wind = weather[:, 0], weather[:, 1]
    x, y = layout[:, None, :, 0], layout[:, None, :, 1]
    cosine, sine = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    down, across = x * cosine + y * sine, y * cosine - x * sine
    behind, aside = down[..., :, None] - down[..., None, :], across[..., :, None] - across[..., None, :]
    width = 0.35 + 0.04 * behind.clamp(min=0.0)
    depth = 1.0 - torch.sqrt(1.0 - 0.8 / (8.0 * width**2))
    shade = depth * torch.exp(-0.5 * (aside / width) ** 2)
    shade = torch.where(behind > 0.1, shade, torch.zeros_like(shade))
    lost = torch.sqrt((shade**2).sum(-1) + 1e-9)
    speed = wind[:, None] * (1.0 - lost.clamp(max=0.9))
    power = 15.0 * torch.sigmoid(0.9 * (speed - 8.5))
    gap = layout[:, :, None] - layout[:, None, :]
    square = (gap**2).sum(-1) + 1e3 * torch.eye(layout.shape[1], dtype=layout.dtype, device=layout.device)
    close = ((spacing - torch.sqrt(square)).clamp(min=0.0) ** 2).sum((1, 2))
    outside = ((layout.abs() - half).clamp(min=0.0) ** 2).sum((1, 2))
    return power.mean(1).sum(-1), close + 10.0 * outside


def sea_turbines(
    s: Setup,
    *,
    single: bool = False,
    compiled: bool = False,
    where: bool = False,
    fused: bool = False,
    dropped: bool = False,
    graphed: bool = False,
    pinned: bool = False,
) -> Step:
    """64 layouts of 72 turbines climb at once, in doubles as NumPy made them, in 36 winds drawn anew; the best of each is kept by a mask."""
    layouts, turbines, draws = s.size(64, 3), s.size(72, 6), s.size(36, 4)
    number = np.float32 if single else np.float64
    rng = np.random.default_rng(324)
    side = math.ceil(math.sqrt(turbines))
    half, spacing = 4.0 * side, 4.0
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2)[:turbines] * 2.0 * half / side - half + half / side
    start = (grid[None] + rng.normal(0.0, 1.0, (layouts, turbines, 2))).astype(number)
    layout = nn.Parameter(torch.from_numpy(start).to(s.device))
    with torch.no_grad():
        tried, best = torch.zeros_like(layout), layout.detach().clone()
    scores = torch.zeros(layouts, dtype=layout.dtype, device=s.device)
    record = torch.full_like(scores, -1e9)
    weather = torch.zeros(draws, 2, dtype=layout.dtype, device=s.device)
    adam = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam([layout], lr=0.02, capturable=graphed and s.cuda, **adam)
    evaluate = s.compile(harvest, dynamic=False) if compiled else harvest
    staged = [s.pin(torch.zeros(draws, 2, dtype=layout.dtype)) for _ in range(4)] if pinned else []
    sent_at = [torch.cuda.Event() for _ in staged] if s.cuda else []
    turn = counter()

    def climb() -> None:
        tried.copy_(layout.detach())
        power, broken = evaluate(layout, weather, half, spacing)
        score = power - 5.0 * broken
        optimizer.zero_grad(set_to_none=dropped)
        (-score.sum()).backward()
        optimizer.step()
        scores.copy_(score.detach())

    work = capture(climb, s) if graphed else climb

    def draw() -> Tensor:
        angle, wind = rng.vonmises(0.8, 1.2, draws), 9.5 * rng.weibull(2.1, draws)
        return torch.from_numpy(np.stack([angle, wind], 1).astype(number))

    def step() -> Tensor:
        drawn = draw()
        if staged:
            now = next(turn) % len(staged)
            if sent_at:
                sent_at[now].synchronize()
            staged[now].copy_(drawn)
            weather.copy_(staged[now], non_blocking=True)
            if sent_at:
                sent_at[now].record()
        else:
            weather.copy_(drawn)
        work()
        better = scores > record
        if where:
            record.copy_(torch.where(better, scores, record))
            best.copy_(torch.where(better[:, None, None], tried, best))
        elif better.any():
            record[better] = scores[better]
            best[better] = tried[better]
        return record

    return step


WORKLOADS = (
    written(
        "currency_hedges", "Deep hedging in training on 32,768 paths of 24 days, FP32: norms written out, Adam by a loop, two numbers are read.",
        "TF32; bf16 autocast; torch.compile of a day; F.layer_norm; CUDA graph of the step; read every 100 steps; fused Adam", currency_hedges,
        {
            "precision": {"tf32": True}, "precision/bf16": {"autocast": True}, "unfused-elementwise": {"compiled": True}, "unfused-norm": {"library": True},
            "graph-candidate": {"graphed": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"fused": True},
        },
    ),
    written(
        "magnetised_plasma", "Four moments of 3,000,000 electrons in 512 x 512 cells, FP64; waves come anew from NumPy, columns are copied, energies read.",
        "FP32; torch.compile of density and push; CUDA graph of the moments; energies stay on the GPU; waves made once; columns as views", magnetised_plasma,
        {
            "precision": {"single": True}, "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True},
            "sync-stall": {"read": False}, "memcpy": {"kept": True}, "memory-layout": {"strided": True},
        }, gpu_bound=True,
    ),
    written(
        "unborn_echoes", "Capon's beamformer on seven plane waves of ultrasound, FP32: NumPy lifts pageable echoes, parts are copied, two reads.",
        "lifted on the GPU; pinned; torch.compile of the delays; picture a frame later, peak on the GPU; no copies; TF32; four frames", unborn_echoes,
        {
            "host-bound": {"on_device": True}, "memcpy": {"pinned": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"later": True},
            "memory-layout": {"viewed": True}, "precision": {"tf32": True}, "low-arithmetic-intensity": {"frames": 4},
        }, shared={"low-arithmetic-intensity": 4.0},
    ),
    written(
        "sea_turbines", "64 layouts of 72 turbines by Adam in FP64: all pairs in 36 winds that NumPy draws, gradients zeroed, the best kept by a mask.",
        "FP32; torch.compile of the yield; torch.where; fused Adam; gradients dropped; CUDA graph of a climb; pinned winds", sea_turbines,
        {
            "precision": {"single": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"where": True}, "optimizer-foreach": {"fused": True},
            "grad-zeroing": {"dropped": True}, "graph-candidate": {"graphed": True}, "memcpy": {"pinned": True},
        }, gpu_bound=True,
    ),
)  # fmt: skip
