"""Programs by an author who has not read the rules: vessels of the retina, sketches of drugs, eddies of the ocean.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count as counter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written
from .written_24 import Later

BF16 = torch.bfloat16


# Vessels: a U-Net with attention gates, trained with a loss that compares skeletons (clDice).


class Residual(nn.Module):
    def __init__(self, inner: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two, self.norm_skip = nn.BatchNorm2d(out), nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(inner, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.norm_one(self.one(x)), 0.01)
        return F.leaky_relu(self.norm_two(self.two(y)) + self.norm_skip(self.skip(x)), 0.01)


class Gate(nn.Module):
    """What of the fine features the coarse ones ask for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine, self.coarse, self.weigh = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width, width // 2, 1), nn.Conv2d(width // 2, 1, 1)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        return fine * torch.sigmoid(self.weigh(F.relu(self.fine(fine) + self.coarse(coarse))))


class Vessels(nn.Module):
    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width * 2**n for n in range(levels)]
        self.begin = Residual(3, width)
        self.down = nn.ModuleList(Residual(a, b, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.gates = nn.ModuleList(Gate(a) for a in sizes[:-1])
        self.join = nn.ModuleList(Residual(2 * a, a) for a in sizes[:-1])
        self.end = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.begin(x)]
        for down in self.down:
            kept.append(down(kept[-1]))
        x = kept.pop()
        for up, gate, join in zip(reversed(self.up), reversed(self.gates), reversed(self.join), strict=True):
            x, fine = up(x), kept.pop()
            x = join(torch.cat([gate(fine, x), x], 1))
        return self.end(x)


def eroded(x: Tensor) -> Tensor:
    return torch.min(-F.max_pool2d(-x, (3, 1), 1, (1, 0)), -F.max_pool2d(-x, (1, 3), 1, (0, 1)))


def thinner(x: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    x = eroded(x)
    more = F.relu(x - F.max_pool2d(eroded(x), 3, 1, 1))
    return x, found + F.relu(more - found * more)


def skeleton(x: Tensor, times: int, thin: Callable[..., Any]) -> Tensor:
    found = F.relu(x - F.max_pool2d(eroded(x), 3, 1, 1))
    for _ in range(times):
        x, found = thin(x, found)
    return found


def unlike(logits: Tensor, true: Tensor, times: int, thin: Callable[..., Any]) -> Tensor:
    """Cross-entropy, Dice, and clDice."""
    guess = torch.sigmoid(logits)
    dice = 1.0 - (2.0 * (guess * true).sum() + 1.0) / (guess.sum() + true.sum() + 1.0)
    bones, true_bones = skeleton(guess, times, thin), skeleton(true, times, thin)
    exact = ((bones * true).sum() + 1.0) / (bones.sum() + 1.0)
    whole = ((true_bones * guess).sum() + 1.0) / (true_bones.sum() + 1.0)
    return F.binary_cross_entropy_with_logits(logits, true) + 0.5 * dice + 0.5 * (1.0 - 2.0 * exact * whole / (exact + whole))


def vessel_skeletons(
    s: Setup,
    *,
    last: bool = False,
    compiled: bool = False,
    fused: bool = False,
    ahead: bool = False,
    asked: bool = True,
) -> Step:
    """Training in bf16 autocast on eight pictures of 512 x 512, NCHW; each picture's Dice is read; SGD goes from tensor to tensor."""
    count, side, times = s.size(8, 2), s.size(512, 32), s.size(10, 2)
    with s.device:
        model: nn.Module = Vessels(s.size(32, 4), s.size(5, 3))
    if last:
        model = model.to(memory_format=torch.channels_last)
    network = s.compile(model, dynamic=False) if compiled else model
    thin = s.compile(thinner, dynamic=False) if compiled else thinner
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.99, nesterov=True, weight_decay=3e-5, foreach=None if fused else False, fused=fused or None
    )
    films = [(torch.rand(count, 3, side, side), (torch.rand(count, 1, side, side) < 0.2).float()) for _ in range(4)]
    queue = Prefetcher([(s.pin(film), s.pin(true)) for film, true in films], s) if ahead else None
    later, turn = None if asked else Later((1, count + 1), s), counter()
    scores: list[float] = []

    def overlap(guess: Tensor, true: Tensor) -> Tensor:
        return 2.0 * (guess * true).sum((-3, -2, -1)) / (guess.sum((-3, -2, -1)) + true.sum((-3, -2, -1)) + 1e-6)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        film, true = queue.next() if queue else (part.to(s.device) for part in films[next(turn) % len(films)])
        if last:
            film = film.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            logits = network(film)
        loss = unlike(logits.float(), true, times, thin)
        loss.backward()
        optimizer.step()
        guess = (logits.detach() > 0).float()
        if later is None:
            scores[:] = [loss.item(), *(overlap(guess[n], true[n]).item() for n in range(count))]
        else:
            scores[:] = later.put(torch.cat([loss.detach()[None], overlap(guess, true)])[None])[0]
        return loss.detach()

    return step


# Drugs: the last steps of a diffusion of atoms in space, by a network that turns with them (EDM).


def summed(x: Tensor, where: Tensor, count: int) -> Tensor:
    return x.new_zeros(count, x.shape[1]).scatter_add_(0, where[:, None].expand_as(x), x) / 100.0


class Pairs(nn.Module):
    """An MLP of two atoms and the distances between them."""

    def __init__(self, width: int, spare: int, nodes: bool) -> None:
        super().__init__()
        self.width, self.spare, self.nodes = width, spare, nodes
        self.one, self.two = nn.Linear(2 * width + 2, width), nn.Linear(width, width)
        if spare:
            self.one.weight = nn.Parameter(F.pad(self.one.weight.detach(), (0, spare)))

    def forward(self, h: Tensor, row: Tensor, col: Tensor, apart: Tensor) -> Tensor:
        if self.nodes:
            here, there, far = self.one.weight[:, : 2 * self.width + 2].split([self.width, self.width, 2], 1)
            y = F.linear(h, here, self.one.bias)[row] + F.linear(h, there)[col] + F.linear(apart, far)
        else:
            parts = [h[row], h[col], apart]
            if self.spare:
                parts.append(apart.new_zeros(len(apart), self.spare))
            y = self.one(torch.cat(parts, 1))
        return F.silu(self.two(F.silu(y)))


class Bonds(nn.Module):
    """One layer: what the atoms tell each other, and where they move."""

    def __init__(self, width: int, spare: int, nodes: bool) -> None:
        super().__init__()
        self.pairs, self.moves = Pairs(width, spare, nodes), Pairs(width, spare, nodes)
        self.weigh, self.far = nn.Linear(width, 1), nn.Linear(width, 1, bias=False)
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        nn.init.xavier_uniform_(self.far.weight, gain=0.001)

    def forward(self, h: Tensor, x: Tensor, row: Tensor, col: Tensor, first: Tensor, both: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        away = x[row] - x[col]
        square = away.square().sum(1, keepdim=True)
        away = away / (torch.sqrt(square + 1e-8) + 1.0)
        apart = torch.cat([square, first], 1)
        told = self.pairs(h, row, col, apart)
        told = told * torch.sigmoid(self.weigh(told)) * both
        h = (h + self.node(torch.cat([h, summed(told, row, len(h))], 1))) * real
        moved = away * torch.tanh(self.far(self.moves(h, row, col, apart))) * 15.0 * both
        return h, (x + summed(moved, row, len(x))) * real


class Atoms(nn.Module):
    def __init__(self, kinds: int, width: int, layers: int, spare: int, nodes: bool) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(kinds + 1, width), nn.Linear(width, kinds + 1)
        self.layers = nn.ModuleList(Bonds(width, spare, nodes) for _ in range(layers))


def joined_atoms(molecules: int, atoms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """All pairs of atoms in each molecule."""
    rows, cols = [], []
    for molecule in range(molecules):
        for i in range(atoms):
            for j in range(atoms):
                rows.append(i + molecule * atoms)
                cols.append(j + molecule * atoms)
    return torch.LongTensor(rows).to(device), torch.LongTensor(cols).to(device)


def joined_atoms_there(molecules: int, atoms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    place = torch.arange(molecules * atoms, device=device).view(molecules, atoms)
    return place[:, :, None].expand(-1, -1, atoms).flatten(), place[:, None].expand(-1, atoms, -1).flatten()


def drug_sketches(
    s: Setup,
    *,
    tf32: bool = False,
    padded: bool = False,
    there: bool = False,
    asked: bool = True,
    compiled: bool = False,
    nodes: bool = False,
) -> Step:
    """The last three steps for 100 molecules in FP32; pairs are listed by loops; after each step masks, centres and NaNs are asserted."""
    molecules, atoms, kinds, width = s.size(100, 3), s.size(29, 5), s.size(9, 4), s.size(256, 16)
    with s.device:
        model = Atoms(kinds, width, s.size(9, 2), 6 if padded else 0, nodes).eval()
        sizes = torch.randint(atoms // 2, atoms + 1, (molecules, 1))
        real = (torch.arange(atoms) < sizes).float().view(-1, 1)
        begin = torch.randn(molecules * atoms, 3 + kinds) * real
    layers = [s.compile(layer, dynamic=False) if compiled else layer for layer in model.layers]
    pairs, plan = joined_atoms_there if there else joined_atoms, (0.3, 0.2, 0.1, 0.0)

    def centred(x: Tensor) -> Tensor:
        mean = x.view(molecules, atoms, 3).sum(1, keepdim=True) / sizes[..., None]
        return (x.view(molecules, atoms, 3) - mean).flatten(0, 1) * real

    def noise(z: Tensor, time: float, row: Tensor, col: Tensor, both: Tensor) -> Tensor:
        x, h = z[:, :3], z[:, 3:]
        h = model.begin(torch.cat([h, torch.full_like(h[:, :1], time)], 1))
        first, moved = (x[row] - x[col]).square().sum(1, keepdim=True), x
        for layer in layers:
            h, moved = layer(h, moved, row, col, first, both, real)
        speed = moved - x
        if not asked:
            speed = torch.where(speed.isnan().any(), torch.zeros_like(speed), speed)
        elif torch.any(torch.isnan(speed)):
            speed = torch.zeros_like(speed)
        return torch.cat([centred(speed), model.end(h)[:, :kinds] * real], 1)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        row, col = pairs(molecules, atoms, s.device)
        both = real[row] * real[col] * (row != col).float()[:, None]
        z = torch.cat([centred(begin[:, :3]), begin[:, 3:]], 1)
        worst = []
        for now, after in pairwise(plan):
            alpha, beta = math.cos(now * math.pi / 2), math.cos(after * math.pi / 2)
            guess = noise(z, now, row, col, both)
            clean = (z - math.sqrt(1.0 - alpha**2) * guess) / alpha
            fresh = torch.randn_like(z) * real
            fresh = torch.cat([centred(fresh[:, :3]), fresh[:, 3:]], 1)
            spread = math.sqrt(1.0 - beta**2)
            z = beta * clean + spread * (0.8 * guess + 0.6 * fresh)
            outside, centre = (z * (1.0 - real)).abs().max(), z[:, :3].view(molecules, atoms, 3).sum(1).abs().max()
            if asked:
                assert outside.item() < 1e-4, "atoms that are not there"
                assert centre.item() < 1e-1 * max(1.0, z[:, :3].abs().max().item()), "not in the centre"
            else:
                worst.append(torch.stack([outside, centre, z[:, :3].abs().max()]))
        if not asked:
            for outside, centre, most in torch.stack(worst).tolist():
                assert outside < 1e-4, "atoms that are not there"
                assert centre < 1e-1 * max(1.0, most), "not in the centre"
        return z.cpu()

    return step


# Ocean: eddies in two layers of water, by spectra (quasi-geostrophic).


class Ocean:
    """An ensemble of two layers in a periodic box, and what drives them."""

    def __init__(self, side: int, half: bool, s: Setup, compiled: bool) -> None:
        self.side, self.half = side, half
        with s.device:
            k = torch.fft.fftfreq(side, 1.0 / side)
            wide = torch.fft.rfftfreq(side, 1.0 / side) if half else k
            ky, kx = torch.meshgrid(k, wide, indexing="ij")
            square = kx.square() + ky.square()
            self.square, self.ix, self.iy = square, 1j * kx, 1j * ky
            self.drag = 0.1 * square
            whole = torch.where(square > 0, square * (square + 50.0), 1.0)
            self.own = torch.where(square > 0, -(square + 25.0) / whole, 0.0)
            self.cross = torch.where(square > 0, -25.0 / whole, 0.0)
            cut = square.sqrt() / (side / 3.0)
            self.filter = torch.where(cut < 0.65, 1.0, torch.exp(-23.6 * (cut - 0.65).clamp(min=0.0) ** 4 / 0.35**4)) * (cut < 1.0)
            self.bins = (square.sqrt() / 4.0).round().long().clamp(max=side // 8)
            twice = torch.where((kx > 0) & (kx < side // 2), 2.0, 1.0) if half else torch.ones_like(kx)
            self.share = twice / side**4
            self.shear = torch.tensor([0.5, -0.5])[:, None, None]
            self.slope = torch.tensor([10.0 + 25.0, 10.0 - 25.0])[:, None, None]
            self.bottom = torch.tensor([0.0, 1.0])[:, None, None]
            self.top = torch.tensor([1.0, 0.0])[:, None, None]
        fuse = s.compile if compiled else lambda f, **_: f
        self.flux, self.paced = fuse(self._flux, dynamic=False), fuse(self._paced, dynamic=False)
        self.streams, self.change = fuse(self._streams, dynamic=False), fuse(self._change, dynamic=False)

    def there(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(x) if self.half else torch.fft.fft2(x)

    def back(self, x: Tensor) -> Tensor:
        return torch.fft.irfft2(x, s=(self.side, self.side)) if self.half else torch.fft.ifft2(x).real

    def _streams(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two = q[:, 0], q[:, 1]
        psi = torch.stack([self.own * one + self.cross * two, self.cross * one + self.own * two], 1)
        return psi, -self.iy * psi, self.ix * psi

    def _flux(self, u: Tensor, v: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return (u + self.shear) * q, v * q

    def _change(self, along: Tensor, across: Tensor, psi: Tensor, wind: Tensor) -> Tensor:
        change = -self.ix * along - self.iy * across - self.slope * (self.ix * psi)
        return (change + self.bottom * (self.drag * psi) + self.top * wind) * self.filter

    def _paced(self, u: Tensor, v: Tensor) -> Tensor:
        return torch.maximum((u + self.shear).abs().amax(), v.abs().amax())

    def tendency(self, q: Tensor, wind: Tensor) -> Tensor:
        psi, u, v = self.streams(q)
        along, across = self.flux(self.back(u), self.back(v), self.back(q))
        return self.change(self.there(along), self.there(across), psi, wind)

    def fastest(self, q: Tensor) -> Tensor:
        _, u, v = self.streams(q)
        return self.paced(self.back(u), self.back(v))

    def advanced(self, q: Tensor, pace: float | Tensor, wind: Tensor) -> Tensor:
        """One step of Runge and Kutta's method."""
        wind = self.there(wind)
        one = self.tendency(q, wind)
        two = self.tendency(q + 0.5 * pace * one, wind)
        three = self.tendency(q + 0.5 * pace * two, wind)
        four = self.tendency(q + pace * three, wind)
        return self.filter * (q + pace / 6.0 * (one + 2.0 * two + 2.0 * three + four))

    def energy(self, q: Tensor) -> Tensor:
        psi = self.streams(q)[0]
        return 0.5 * (self.square * self.share * psi.abs().square()).mean(0).sum(0)


def ocean_eddies(
    s: Setup,
    *,
    members: int = 4,
    asked: bool = True,
    kept: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    half: bool = False,
) -> Step:
    """Ten steps of an ensemble in FP32 with whole FFTs, a pace that is read and a wind from the host; then a spectrum by masks."""
    count, side, steps = s.size(members, min(members, 3)), s.size(256, 16), s.size(10, 2)
    ocean, rng = Ocean(side, half, s, compiled), np.random.default_rng(5)
    winds: list[Any] = [0.1 * rng.standard_normal((side, side), dtype=np.float32) for _ in range(24)]
    if kept:
        winds = list(torch.from_numpy(np.stack(winds)).to(s.device))
    start = 4.0 * torch.from_numpy(rng.standard_normal((1, 2, side, side), dtype=np.float32)) + 0.01 * torch.randn(count, 2, side, side)
    q = ocean.there(start.to(s.device)) * torch.exp(-ocean.square / 200.0) * ocean.filter
    pace, gust, turn = torch.zeros((), device=s.device), torch.zeros(side, side, device=s.device), counter()

    def inner() -> None:
        q.copy_(ocean.advanced(q, pace, gust))

    before = q.clone()
    replay = capture(inner, s) if graphed else None
    q.copy_(before)
    limit, gap = 0.005, 0.5 * 2.0 * math.pi / side

    def spectrum() -> list[float]:
        energy = ocean.energy(q)
        if asked:
            return [energy[ocean.bins == k].sum().item() for k in range(side // 8)]
        total = energy.new_zeros(side // 8 + 1).index_add_(0, ocean.bins.flatten(), energy.flatten())
        return total[:-1].tolist()

    @torch.no_grad()
    def step() -> list[float]:
        for _ in range(steps):
            wind = winds[next(turn) % len(winds)]
            wind = wind if kept else torch.from_numpy(wind).to(s.device)
            speed = ocean.fastest(q)
            now: float | Tensor = min(limit, gap / max(speed.item(), 1e-6)) if asked else (gap / speed.clamp(min=1e-6)).clamp(max=limit)
            if replay:
                pace.fill_(now)
                gust.copy_(wind)
                replay()
            else:
                q.copy_(ocean.advanced(q, now, wind))
        return spectrum()

    return step


WORKLOADS = (
    written(
        "vessel_skeletons", "Attention U-Net in training with clDice, bf16 autocast, NCHW; pageable batches; each picture's Dice is read.",
        "channels_last; torch.compile of network and skeletons; scores a step later; pinned batches ahead; fused SGD", vessel_skeletons,
        {
            "memory-layout": {"last": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False},
            "memcpy": {"ahead": True}, "optimizer-foreach": {"fused": True},
        },
    ),
    written(
        "drug_sketches", "Three steps of EDM for 100 molecules, FP32: pairs listed by loops, 514 numbers a pair, asserts after each step.",
        "TF32; 520 numbers a pair; pairs made on the GPU; asserts at the end; torch.compile; atoms' products before pairs'", drug_sketches,
        {
            "precision": {"tf32": True}, "gemm-alignment": {"padded": True}, "host-bound": {"there": True}, "sync-stall": {"asked": False},
            "unfused-elementwise": {"compiled": True}, "other/nodes": {"nodes": True},
        },
    ),
    written(
        "ocean_eddies", "Ten steps of four oceans of two layers, FP32, whole FFTs; a pace that is read, host winds, a spectrum by masks.",
        "one read at the end; winds on the GPU; torch.compile; a step as a CUDA graph; 12 oceans; FFTs of real numbers", ocean_eddies,
        {
            "sync-stall": {"asked": False}, "memcpy": {"kept": True}, "unfused-elementwise": {"compiled": True},
            "graph-candidate": {"graphed": True}, "launch-gap": {"members": 12}, "other/rfft": {"half": True},
        }, shared={"launch-gap": 3.0},
    ),
)  # fmt: skip
