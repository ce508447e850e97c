"""Programs by an author who has not read the rules, the seventh set: clinics, families of species, faces, hearts, harbours, lungs, cloth, slides, football.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


# Privacy: X-rays of a clinic, where each picture's gradient is clipped by itself and noise is added to their sum.


def _clipped(grads: list[Tensor], limit: float, noise: float) -> list[Tensor]:
    """What all pictures together are allowed to say."""
    norms = torch.stack([each.flatten(1).norm(dim=1) for each in grads]).norm(dim=0)
    weight = (limit / (norms + 1e-6)).clamp(max=1.0)
    together = []
    for each in grads:
        total = (each * weight.view(-1, *[1] * (each.dim() - 1))).sum(0)
        together.append((total + noise * limit * torch.randn_like(total)) / len(weight))
    return together


def private_xrays(s: Setup, *, autocast: bool = False, compiled: bool = False) -> Step:
    """DP-SGD by torch.func, without a library for it."""
    count, side, width = s.size(256, 3), s.size(64, 16), s.size(32, 4)
    model = nn.Sequential(
        nn.Conv2d(1, width, 5, 2, 2), nn.GroupNorm(4, width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 2, 1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * width * (side // 8) ** 2, 4 * width), nn.ReLU(), nn.Linear(4 * width, 14),
    ).to(s.device)  # fmt: skip
    params = {name: param.detach() for name, param in model.named_parameters()}
    velocity = {name: torch.zeros_like(param) for name, param in params.items()}
    pictures, found = torch.randn(count, 1, side, side, device=s.device), torch.rand(count, 14, device=s.device).round()
    clipped = s.compile(_clipped) if compiled else _clipped

    def loss_of_one(params: dict[str, Tensor], picture: Tensor, found: Tensor) -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast, cache_enabled=False):
            logits = functional_call(model, params, (picture[None],))
        return F.binary_cross_entropy_with_logits(logits.float(), found[None])

    grads_of_each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        grads = grads_of_each(params, pictures, found)
        for (name, param), slope in zip(params.items(), clipped(list(grads.values()), 1.0, 0.8), strict=True):
            velocity[name].mul_(0.9).add_(slope)
            param.sub_(0.05 * velocity[name])

    return step


# Magnetic resonance: how fast each point of a slice relaxes, by Levenberg and Marquardt's method.


def _signal(point: Tensor, times: Tensor) -> Tensor:
    """Height, depth and rate of one point's recovery."""
    return torch.abs(point[0] - point[1] * torch.exp(-times * torch.exp(point[2])))


def _inverse3(matrix: Tensor) -> Tensor:
    a, b, c = matrix.unbind(-1)
    rows = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], -2)
    return rows / (a * rows[:, 0]).sum(-1)[:, None, None]


def _relaxed(points: Tensor, damping: Tensor, seen: Tensor, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A round: new points, their damping, and by how much each has moved."""
    slopes = vmap(jacrev(_signal), (0, None))(points, times)
    rest = seen - vmap(_signal, (0, None))(points, times)
    square = slopes.mT @ slopes
    square = square + damping[:, None, None] * torch.diag_embed(square.diagonal(dim1=-2, dim2=-1) + 1e-6)
    move = (_inverse3(square) @ (slopes.mT @ rest[..., None]))[..., 0].clamp(-0.5, 0.5)
    then = seen - vmap(_signal, (0, None))(points + move, times)
    better = (then * then).sum(-1) < (rest * rest).sum(-1)
    points = torch.where(better[:, None], points + move, points)
    return points, torch.where(better, damping * 0.3, damping * 2.0).clamp(1e-6, 1e6), (move * better[:, None]).abs()


def relaxation_maps(s: Setup, *, asked: bool = True, graphed: bool = False, compiled: bool = False) -> Step:
    count, rounds = s.size(192 * 192, 9), s.size(15, 3)
    times = torch.linspace(0.05, 4.0, s.size(11, 5), device=s.device)
    truth = torch.stack([torch.rand(count, device=s.device) + shift for shift in (1.0, 1.8, -0.5)], -1)
    seen = vmap(_signal, (0, None))(truth, times) + 0.02 * torch.randn(count, len(times), device=s.device)
    start = torch.tensor([1.0, 2.0, 0.0], device=s.device).repeat(count, 1)
    relaxed = s.compile(_relaxed, mode="reduce-overhead") if compiled else _relaxed

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        points, damping = start, torch.full((count,), 0.01, device=s.device)
        for _ in range(rounds):
            points, damping, moved = relaxed(points, damping, seen, times)
            if compiled:
                points, damping, moved = points.clone(), damping.clone(), moved.clone()
            if asked and bool((moved < 1e-9).all()):
                break
        return points

    return capture(step, s) if graphed else step


# Faces: a head with an angular margin over everybody in a large collection.


def _margins(cosines: Tensor, names: Tensor, margin: float, scale: float) -> Tensor:
    """ArcFace's logits, as its first code in PyTorch wrote them."""
    sines = torch.sqrt((1.0 - cosines * cosines).clamp(0.0, 1.0))
    wider = cosines * math.cos(margin) - sines * math.sin(margin)
    wider = torch.where(cosines > math.cos(math.pi - margin), wider, cosines - math.sin(math.pi - margin) * margin)
    own = torch.zeros_like(cosines).scatter_(1, names[:, None], 1.0)
    return (own * wider + (1.0 - own) * cosines) * scale


class Head(nn.Module):
    def __init__(self, width: int, people: int, margins: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight, self.margins = nn.Parameter(torch.empty(people, width)), margins
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, names: Tensor) -> Tensor:
        return self.margins(F.linear(F.normalize(x), F.normalize(self.weight)), names, 0.5, 64.0)


def face_margins(s: Setup, *, compiled: bool = False, people: int = 85_742, filled: bool = True) -> Step:
    """The network's features of 512 faces are learnt with it; the network is two layers here."""
    count, width, known = s.size(512, 4), s.size(512, 16), s.size(people, 30 + people % 8)
    margins = s.compile(_margins) if compiled else _margins
    body = nn.Sequential(nn.Linear(2 * width, width), nn.BatchNorm1d(width), nn.PReLU(), nn.Linear(width, width)).to(s.device)
    head = Head(width, known, margins).to(s.device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=5e-4)
    pooled, names = torch.randn(count, 2 * width, device=s.device), torch.randint(30, (count,), device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad(set_to_none=not filled)
        F.cross_entropy(head(body(pooled), names), names).backward()
        optimizer.step()

    return step


# Families of species: how likely a tree is, by Felsenstein's pruning.


def _born(leaves: int, rng: random.Random) -> list[tuple[int, int, int]]:
    """Who comes from whom: (parent, child, child), children first."""
    alone = list(range(leaves))
    tree: list[tuple[int, int, int]] = []
    while len(alone) > 1:
        one, other = (alone.pop(rng.randrange(len(alone))) for _ in range(2))
        tree.append((leaves + len(tree), one, other))
        alone.append(tree[-1][0])
    return tree


def _generations(leaves: int, tree: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Those who can be worked out at once, one generation after another."""
    age = dict.fromkeys(range(leaves), 0)
    for parent, one, other in tree:
        age[parent] = 1 + max(age[one], age[other])
    return [[birth for birth in tree if age[birth[0]] == when] for when in range(1, max(age.values()) + 1)]


def species_tree(s: Setup, *, asked: bool = True, together: bool = False, tf32: bool = False) -> Step:
    """The likelihood of 3000 sites and its gradient by the branches' lengths; what gets too small is scaled, if anything does."""
    leaves, sites = s.size(56, 5), s.size(3000, 12)
    tree = _born(leaves, random.Random(1))
    rates = torch.tensor([0.14, 0.48, 1.0, 2.4], device=s.device)
    exchange = torch.tensor([[-1.0, 0.2, 0.6, 0.2], [0.2, -1.0, 0.2, 0.6], [0.6, 0.2, -1.0, 0.2], [0.2, 0.6, 0.2, -1.0]])
    values, vectors = (part.to(s.device) for part in torch.linalg.eigh(exchange))
    letters = F.one_hot(torch.randint(4, (leaves, sites)), 4).float().mT.to(s.device)[:, None].expand(-1, 4, -1, -1)
    lengths = nn.Parameter(torch.full((2 * leaves - 2,), -2.0, device=s.device))
    optimizer = torch.optim.Adam([lengths], lr=0.05)
    births = _generations(leaves, tree) if together else [[birth] for birth in tree]
    rows = [(torch.tensor([b[1] for b in some], device=s.device), torch.tensor([b[2] for b in some], device=s.device)) for some in births]

    def scaled(up: Tensor) -> tuple[Tensor, Tensor]:
        high = up.amax((-3, -2), keepdim=True).detach()
        return up / high, torch.log(high).flatten(0, -2).sum(0)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad()
        decay = torch.exp(values * rates[:, None] * torch.exp(lengths)[:, None, None])
        change = torch.einsum("ik,brk,jk->brij", vectors, decay, vectors)
        below, offset = list(letters.unbind(0)), torch.zeros(sites, device=s.device)
        for turn, (some, (ones, others)) in enumerate(zip(births, rows, strict=True)):
            if together:
                left, right = (torch.stack([below[birth[child]] for birth in some]) for child in (1, 2))
                up = (change[ones] @ left) * (change[others] @ right)
            else:
                _, one, other = some[0]
                up = (change[one] @ below[one]) * (change[other] @ below[other])
            if bool((up.amax((-3, -2)) < 1e-8).any()) if asked else turn % 4 == 3:
                up, logs = scaled(up)
                offset = offset + logs
            below.extend([torch.empty(0)] * (max(birth[0] for birth in some) + 1 - len(below)))
            for birth, each in zip(some, up.unbind(0) if together else (up,), strict=True):
                below[birth[0]] = each
        loss = -(torch.log(below[-1].mean((0, 1))) + offset).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


# Hearts: a service that looks at one electrocardiogram a call.


class Beat(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(inner, outer, 15, stride, 7, bias=False), nn.Conv1d(outer, outer, 15, 1, 7, bias=False)
        self.norms, self.skip = nn.ModuleList(nn.BatchNorm1d(outer) for _ in range(2)), nn.Conv1d(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.skip(x))


def _lead(lead: np.ndarray, wide: int) -> np.ndarray:
    """One lead without its drift and spikes."""
    drift = np.convolve(lead, np.full(wide, 1.0 / wide), mode="same")
    flat = lead - drift
    flat = np.clip(flat, *np.percentile(flat, (0.1, 99.9)))
    return (flat - flat.mean()) / (flat.std() + 1e-6)


def _leads(leads: np.ndarray, wide: int) -> np.ndarray:
    """All leads at once, by running sums, kept in FP32; the limits come from a partition."""
    sums = np.cumsum(np.pad(leads, ((0, 0), (wide // 2 + 1, wide // 2))), axis=1, dtype=np.float64)
    flat = leads - ((sums[:, wide:] - sums[:, :-wide]) / wide).astype(np.float32)
    edge = max(1, leads.shape[1] // 1000)
    ordered = np.partition(flat, (edge, -edge), axis=1)
    flat = np.clip(flat, ordered[:, edge : edge + 1], ordered[:, -edge : -edge + 1 or None])
    return (flat - flat.mean(1, keepdims=True)) / (flat.std(1, keepdims=True) + 1e-6)


def heart_service(s: Setup, *, patients: int = 1, at_once: bool = False, pinned: bool = False) -> Step:
    length, width, wide = s.size(5000, 256), s.size(64, 4), s.size(301, 21)
    blocks = [Beat(inner, outer, 2) for inner, outer in ((width, width), (width, 2 * width), (2 * width, 3 * width), (3 * width, 4 * width))]
    model = nn.Sequential(nn.Conv1d(12, width, 15, 2, 7), nn.ReLU(), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * width, 27))
    model = model.to(s.device).eval()
    arrived = np.random.default_rng(0).standard_normal((16, 12, length)).astype(np.float32)
    turn = [0]

    @torch.inference_mode()
    def step() -> list[list[float]]:
        torch.set_float32_matmul_precision("highest")
        cleaned = []
        for _ in range(patients):
            turn[0] += 1
            leads = arrived[turn[0] % 16]
            cleaned.append(_leads(leads, wide) if at_once else np.stack([_lead(lead, wide) for lead in leads]).astype(np.float32))
        waves = torch.from_numpy(np.stack(cleaned))
        waves = s.pin(waves).to(s.device, non_blocking=True) if pinned else waves.to(s.device)
        return torch.sigmoid(model(waves)).tolist()

    return step


# Harbours: which ship goes by, heard by hydrophones, whichever of them it was.


class Reversed(torch.autograd.Function):
    """Nothing forwards, the gradient turned round backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * slopes[0], None


class Stage(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.skip = nn.Conv2d(inner, outer, 1, bias=False) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Ships(nn.Module):
    def __init__(self, width: int, ships: int, hydrophones: int) -> None:
        super().__init__()
        wide = [width * 2**level for level in range(4)]
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.stages = nn.ModuleList(nn.Sequential(Stage(inner, outer), Stage(outer, outer)) for inner, outer in zip([width, *wide[:-1]], wide, strict=True))
        self.ship, self.hydrophone = nn.Linear(wide[-1], ships), nn.Sequential(nn.Linear(wide[-1], 128), nn.ReLU(), nn.Linear(128, hydrophones))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(x)
        for level, stage in enumerate(self.stages):
            x = stage(F.avg_pool2d(x, 2) if level else x)
        x = x.mean((2, 3))
        return self.ship(x), self.hydrophone(Reversed.apply(x, 0.1))  # type: ignore[no-untyped-call]


class Passages(Dataset[tuple[Tensor, int, int]]):
    """Two seconds each, int16, all in memory."""

    def __init__(self, s: Setup) -> None:
        self.sounds = torch.randint(-8000, 8000, (s.size(2000, 24), s.size(32_768, 2048)), dtype=torch.int16)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        return self.sounds[index % len(self.sounds)], index % 11, index % 4


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def harbour_sounds(s: Setup, *, last: bool = False, scaled: bool = True, workers: bool = False) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    model = Ships(s.size(64, 8), 11, 4).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches = _without_end(DataLoader(Passages(s), s.size(64, 4), shuffle=True, drop_last=True, **options))
    window, dtype = torch.hann_window(512, device=s.device), torch.float16 if scaled and s.cuda else BF16

    def step() -> None:
        sounds, ships, hydrophones = (part.to(s.device, non_blocking=workers) for part in next(batches))
        with torch.no_grad():
            spectrum = torch.stft(sounds.float() / 32768, 512, 256, window=window, return_complex=True).abs()
            picture = torch.log(spectrum + 1e-4)[:, None, :256, :128].contiguous(memory_format=layout)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, dtype):
            ship, hydrophone = model(picture)
            loss = F.cross_entropy(ship, ships) + F.cross_entropy(hydrophone, hydrophones)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


# Lungs: breathing in laid upon breathing out, by a field of shifts.


def _edges(volume: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = F.pad(volume[..., 1:] - volume[..., :-1], (0, 1))
    y = F.pad(volume[..., 1:, :] - volume[..., :-1, :], (0, 0, 0, 1))
    z = F.pad(volume[..., 1:, :, :] - volume[..., :-1, :, :], (0, 0, 0, 0, 0, 1))
    return x, y, z


def _unlike(warped: Tensor, fixed: Tensor, shifts: Tensor, soft: float) -> Tensor:
    """How little the edges of both point the same way, and how much the field bends and folds."""
    ours, theirs = _edges(warped), _edges(fixed)
    inner = sum((a * b for a, b in zip(ours, theirs, strict=True)), torch.zeros_like(warped))
    first = torch.sqrt(ours[0] ** 2 + ours[1] ** 2 + ours[2] ** 2 + soft**2)
    second = torch.sqrt(theirs[0] ** 2 + theirs[1] ** 2 + theirs[2] ** 2 + soft**2)
    alike = ((inner + soft**2) / (first * second)) ** 2
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (_edges(shifts[:, axis : axis + 1]) for axis in range(3))
    volume = (1 + xx) * ((1 + yy) * (1 + zz) - yz * zy) - xy * (yx * (1 + zz) - yz * zx) + xz * (yx * zy - (1 + yy) * zx)
    folds = F.relu(0.1 - volume) ** 2
    bends = sum((part * part for part in (xx, xy, xz, yx, yy, yz, zx, zy, zz)), torch.zeros_like(xx))
    return (1 - alike).mean() + 10.0 * folds.mean() + 0.1 * bends.mean()


def lung_motion(s: Setup, *, compiled: bool = False, read: bool = True) -> Step:
    """Adam moves the field; the curve of the loss is kept for a figure."""
    shape = (s.size(224, 8), s.size(192, 8), s.size(224, 8))
    fixed, moving = (F.avg_pool3d(torch.rand(1, 1, *shape, device=s.device), 5, 1, 2) for _ in range(2))
    grid = F.affine_grid(torch.eye(3, 4, device=s.device)[None], [1, 1, *shape], align_corners=True)
    voxels = torch.tensor([2.0 / (size - 1) for size in reversed(shape)], device=s.device)
    shifts = nn.Parameter(torch.zeros(1, 3, *shape, device=s.device))
    optimizer, curve = torch.optim.Adam([shifts], lr=0.1), [0.0]
    unlike = s.compile(_unlike) if compiled else _unlike

    def step() -> None:
        optimizer.zero_grad()
        warped = F.grid_sample(moving, grid + shifts.permute(0, 2, 3, 4, 1) * voxels, align_corners=True)
        loss = unlike(warped, fixed, shifts, 0.01)
        loss.backward()
        optimizer.step()
        if read:
            curve[0] = 0.9 * curve[0] + 0.1 * loss.item()

    return step


# Cells on a map of two dimensions: t-SNE, all pairs, as its author's numpy does it.


def _pull(y: Tensor, p: Tensor, ones: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of each cell's place, and how far the map is from the data."""
    square = (y * y).sum(1)
    near = 1.0 / (1.0 + (square[:, None] - 2.0 * (y @ y.T) + square[None]).clamp(min=0.0))
    near = near * (1.0 - ones)
    q = (near / near.sum()).clamp(min=1e-12)
    pull = (p - q) * near
    slope = 4.0 * (pull.sum(1)[:, None] * y - pull @ y)
    return slope, (p * torch.log(p / q)).sum()


def cell_map(s: Setup, *, compiled: bool = False, empties: bool = True, tf32: bool = False) -> Step:
    """Four rounds; the notebook once ran out of memory, and has given it back after each round since."""
    cells, rounds = s.size(8192, 20), s.size(4, 2)
    p = torch.rand(cells, cells, device=s.device) ** 8
    p = ((p + p.T) / (2 * p.sum())).clamp(min=1e-12)
    y, same = torch.randn(cells, 2, device=s.device) * 1e-2, torch.eye(cells, device=s.device)
    velocity, gains = torch.zeros_like(y), torch.ones_like(y)
    pull, costs = s.compile(_pull) if compiled else _pull, torch.zeros(rounds, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for turn in range(rounds):
            slope, costs[turn] = pull(y, p, same)
            apart = (slope > 0) != (velocity > 0)
            gains.copy_(torch.where(apart, gains + 0.2, gains * 0.8).clamp(min=0.01))
            velocity.mul_(0.8).sub_(200.0 * gains * slope)
            y.add_(velocity)
            y.sub_(y.mean(0))
            if empties and s.cuda:
                torch.cuda.empty_cache()
        return costs

    return step


# Graphics: a cloth falls on a ball; each thread is pulled back to its length, colour by colour.


def _threads(place: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both ends of threads that share no knot."""
    for start in (0, 1):
        across, down = place[:, start:], place[start:]
        many, rows = across.shape[1] // 2, down.shape[0] // 2
        yield across[:, 0 : 2 * many : 2], across[:, 1 : 2 * many : 2]
        yield down[0 : 2 * rows : 2], down[1 : 2 * rows : 2]


def falling_cloth(s: Setup, *, asked: bool = True, graphed: bool = False) -> Step:
    """One frame: eight moments, in each of which threads are pulled three times."""
    side, moments, pulls = s.size(160, 8), s.size(8, 2), s.size(3, 1)
    line = torch.linspace(-1, 1, side, device=s.device)
    flat = torch.stack([*torch.meshgrid(line, line, indexing="xy"), torch.ones(side, side, device=s.device)], -1)
    place, speed, rest, dt = flat.clone(), torch.zeros_like(flat), 2.0 / (side - 1), 1.0 / 480
    weight = torch.tensor([0.0, 0.0, -9.81], device=s.device)

    @torch.no_grad()
    def frame() -> None:
        for _ in range(moments):
            before = place.clone()
            speed.add_(weight * dt).mul_(0.999)
            place.add_(speed * dt)
            for _ in range(pulls):
                for one, other in _threads(place):
                    apart = other - one
                    length = apart.norm(dim=-1, keepdim=True)
                    back = 0.5 * (1.0 - rest / length.clamp(min=1e-6)) * apart
                    one.add_(back)
                    other.sub_(back)
            away = place.norm(dim=-1, keepdim=True)
            if not asked or bool((away < 1.0).any()):
                place.copy_(torch.where(away < 1.0, place / away.clamp(min=1e-6), place))
            torch.sub(place, before, out=speed)
            speed.div_(dt)

    run = capture(frame, s) if graphed else frame

    def step() -> np.ndarray:
        place.copy_(flat)
        speed.zero_()
        run()
        return place.cpu().numpy()

    return step


# Slides: pieces of a tissue, cut from a scan one after another, become features for another program.


class Bottleneck(nn.Module):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        wider = nn.Sequential(nn.Conv2d(inner, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.skip = wider if inner != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Tissue(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem, inner = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)), width
        self.blocks = nn.ModuleList()
        for level in range(3):
            for block in range(depth):
                self.blocks.append(Bottleneck(inner, width << level, 2 if level and not block else 1))
                inner = 4 * width << level
        self.middle: Tensor
        self.register_buffer("middle", torch.tensor([0.70, 0.55, 0.69])[:, None, None])

    def forward(self, pieces: Tensor) -> Tensor:
        x = self.stem((pieces / 255 - self.middle) / 0.2)
        for block in self.blocks:
            x = block(x)
        return x.mean((2, 3))


def slide_pieces(s: Setup, *, together: bool = False, last: bool = False, pinned: bool = False) -> Step:
    side, across, down = s.size(224, 32), s.size(6, 2), s.size(4, 1)
    layout = torch.channels_last if last else torch.contiguous_format
    model = Tissue(s.size(64, 8), s.size(4, 1)).to(s.device, BF16).eval()
    if last:
        model = model.to(memory_format=torch.channels_last)
    scan = torch.randint(256, (3, down * side, across * side), dtype=torch.uint8)
    cuts = [(slice(None), slice(y * side, (y + 1) * side), slice(x * side, (x + 1) * side)) for y in range(down) for x in range(across)]
    features = s.pin(torch.empty(len(cuts), s.size(1024, 128))) if pinned else None

    @torch.inference_mode()
    def step() -> Tensor:
        if together:
            pieces = torch.stack([scan[cut] for cut in cuts]).to(s.device).to(BF16, memory_format=layout)
            return model(pieces).float().cpu()
        if features is not None:
            for row, cut in zip(features, cuts, strict=True):
                piece = s.pin(scan[cut].contiguous()).to(s.device, non_blocking=True)[None].to(BF16, memory_format=layout)
                row.copy_(model(piece)[0].float(), non_blocking=True)
            s.synchronize()
            return features
        return torch.stack([model(scan[cut].to(s.device)[None].to(BF16, memory_format=layout))[0].float().cpu() for cut in cuts])

    return step


# Football: where twenty-two players and a ball go next, by attention among those of one moment.


Params = dict[str, Tensor]


def _match_params(s: Setup, width: int, heads: int, layers: int) -> Params:
    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, device=s.device) / math.sqrt(shape[0])).requires_grad_()

    params = {"enter": random(7, width), "leave": random(width, 2)}
    for i in range(layers):
        params |= {f"{i}.qkv": random(width, 3 * width), f"{i}.out": random(width, width), f"{i}.up": random(width, 4 * width)}
        params |= {f"{i}.down": random(4 * width, width), f"{i}.near": random(8, heads)}
        params |= {f"{i}.scale{j}": torch.ones(width, device=s.device, requires_grad=True) for j in range(2)}
        params |= {f"{i}.shift{j}": torch.zeros(width, device=s.device, requires_grad=True) for j in range(2)}
    return params


def _evened(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-6) * scale + shift


def _match(params: Params, players: Tensor, heads: int, layers: int, norms: bool, fused: bool) -> Tensor:
    apart = torch.cdist(players[..., :2], players[..., :2])[..., None]
    rings = torch.exp(-((apart - torch.linspace(0, 3, 8, device=players.device)) ** 2) * 4)
    x = torch.einsum("bpf,fd->bpd", players, params["enter"])
    for i in range(layers):
        scale, shift, again, moved = (params[f"{i}.{name}"] for name in ("scale0", "shift0", "scale1", "shift1"))
        y = F.layer_norm(x, scale.shape, scale, shift, 1e-6) if norms else _evened(x, scale, shift)
        q, k, v = torch.einsum("bpd,de->bpe", y, params[f"{i}.qkv"]).unflatten(-1, (3, heads, -1)).unbind(2)
        near = torch.einsum("bpqr,rh->bhpq", rings, params[f"{i}.near"])
        if fused:
            seen = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), near.contiguous()).transpose(1, 2)
        else:
            weights = torch.softmax(torch.einsum("bphc,bqhc->bhpq", q, k) / math.sqrt(q.shape[-1]) + near, -1)
            seen = torch.einsum("bhpq,bqhc->bphc", weights, v)
        x = x + torch.einsum("bpd,de->bpe", seen.flatten(2), params[f"{i}.out"])
        y = F.layer_norm(x, again.shape, again, moved, 1e-6) if norms else _evened(x, again, moved)
        x = x + F.gelu(y @ params[f"{i}.up"]) @ params[f"{i}.down"]
    return x @ params["leave"]


def football_runs(s: Setup, *, sdpa: bool = False, norms: bool = False) -> Step:
    moments, width, heads, layers = s.size(3072, 3), s.size(128, 16), s.size(8, 2), s.size(4, 1)
    params = _match_params(s, width, heads, layers)
    optimizer = torch.optim.AdamW(params.values(), lr=1e-3)
    players, moved = torch.randn(moments, 23, 7, device=s.device), torch.randn(moments, 23, 2, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        F.smooth_l1_loss(_match(params, players, heads, layers, norms, sdpa), moved).backward()
        optimizer.step()

    return step


WORKLOADS = (
    written(
        "private_xrays", "DP-SGD by vmap(grad) on 256 X-rays, FP32 with TF32: clipping and noise written out over each picture's gradients.",
        "bf16 autocast of the network; torch.compile of clipping and noise", private_xrays,
        {"precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written(
        "relaxation_maps", "Fifteen rounds of Levenberg and Marquardt's method for 36,864 points by vmap(jacrev), with a test for the end in each.",
        "a CUDA graph of all rounds; torch.compile(mode='reduce-overhead') of a round; no test for the end", relaxation_maps,
        {"graph-candidate": {"asked": False, "graphed": True}, "launch-gap": {"compiled": True}, "sync-stall": {"asked": False}},
    ),
    written(
        "face_margins", "ArcFace's head over 85,742 people, training with TF32 products: the margin is a chain over all of them, gradients are filled with zeros.",
        "torch.compile of the margin; 85,744 people; zero_grad(set_to_none=True)", face_margins,
        {"unfused-elementwise": {"compiled": True}, "gemm-alignment": {"people": 85_744}, "grad-zeroing": {"filled": False}}, gpu_bound=True,
    ),
    written(
        "species_tree", "Felsenstein's pruning over a tree of 56 species, node by node, and its gradient, FP32; each node is asked whether it must be scaled.",
        "scale each fourth node unasked; a generation's nodes together; TF32 products", species_tree,
        {"sync-stall": {"asked": False}, "host-bound": {"together": True}, "precision/tf32": {"tf32": True}},
    ),
    written(
        "heart_service", "A residual network in FP32 on one electrocardiogram a call; numpy takes drift and spikes out of lead after lead.",
        "sixteen patients a call; all leads at once by running sums; pinned memory and non_blocking", heart_service,
        {"low-arithmetic-intensity": {"patients": 16}, "host-bound": {"at_once": True}, "memcpy": {"pinned": True}},
        shared={"low-arithmetic-intensity": 16.0},
    ),
    written(
        "harbour_sounds", "A residual network on 64 spectrograms with a reversed gradient for the hydrophones, fp16 with a GradScaler, NCHW, a loader without workers.",
        "channels_last; bf16 without a scaler; num_workers=8 and pin_memory", harbour_sounds,
        {"memory-layout": {"last": True}, "amp-scaler-sync": {"scaled": False}, "data-loading": {"workers": True}}, gpu_bound=True,
    ),
    written(
        "lung_motion", "A field of shifts over 9.6 million voxels, fitted by edges, bends and folds, all written out; the loss is read in each step.",
        "torch.compile of the loss; the loss not read", lung_motion, {"unfused-elementwise": {"compiled": True}, "sync-stall": {"read": False}}, gpu_bound=True,
    ),
    written(
        "cell_map", "Four rounds of t-SNE over all pairs of 8192 cells in FP32, with torch.cuda.empty_cache() after each.",
        "torch.compile of a round's gradient; no empty_cache(); TF32 products", cell_map,
        {"unfused-elementwise": {"compiled": True}, "allocator": {"empties": False}, "precision/tf32": {"tf32": True}}, gpu_bound=True,
    ),
    written(
        "falling_cloth", "A frame of a cloth of 160 x 160 knots: eight moments, threads pulled colour by colour, and a question whether the ball is touched.",
        "a CUDA graph of the frame; pushed out of the ball unasked", falling_cloth,
        {"graph-candidate": {"asked": False, "graphed": True}, "sync-stall": {"asked": False}},
    ),
    written(
        "slide_pieces", "Features of 24 pieces of a slide in bf16, NCHW, one after another, each from pageable memory and fetched by .cpu().",
        "all pieces together; channels_last; pinned memory, non_blocking both ways", slide_pieces,
        {"low-arithmetic-intensity": {"together": True}, "memory-layout": {"last": True}, "memcpy": {"pinned": True}},
    ),
    written(
        "football_runs", "Attention among 23 on a field, by einsum with a learnt bias of distances, layer norm written out, training with TF32 products.",
        "F.scaled_dot_product_attention with the bias as its mask; F.layer_norm", football_runs,
        {"unfused-attention": {"sdpa": True}, "unfused-norm": {"norms": True}}, gpu_bound=True,
    ),
)  # fmt: skip
