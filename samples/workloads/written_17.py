"""Programs by an author who has not read the rules, the twelfth set: signs of the deaf, a monkey's arm, recipes of chemists, magnetic films.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Sign language: which word is signed, by how hands, arms and face move (an adaptive graph network over skeletons).


class Signs(Dataset[tuple[Tensor, int]]):
    """Clips of points on a signer, each turned, mirrored and stretched in time as it is asked for."""

    def __init__(self, count: int, joints: int, moments: int, words: int) -> None:
        draw = np.random.default_rng(0)
        self.moments = moments
        lengths = draw.integers(moments // 2, 2 * moments, count)
        self.clips = [draw.standard_normal((length, joints, 3), dtype=np.float32).cumsum(0, dtype=np.float32) * 0.05 for length in lengths]
        self.words = draw.integers(0, words, count)

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        draw = np.random.default_rng(index)
        clip = self.clips[index]
        angle, size = draw.uniform(-0.3, 0.3), draw.uniform(0.8, 1.2)
        turn = size * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], np.float32)
        place = clip[..., :2] @ turn + draw.uniform(-0.1, 0.1, 2).astype(np.float32)
        if draw.random() < 0.5:
            place[..., 0] *= -1.0
        known = np.concatenate([place, clip[..., 2:]], -1)
        first, last = draw.uniform(0.0, 0.1), draw.uniform(0.9, 1.0)
        old = np.arange(len(clip))
        new = np.linspace(first * len(clip), last * len(clip), self.moments)
        even = np.empty((3, self.moments, clip.shape[1]), np.float32)
        for part in range(3):
            for joint in range(clip.shape[1]):
                even[part, :, joint] = np.interp(new, old, known[:, joint, part])
        return torch.from_numpy(even), int(self.words[index])


def _bones(joints: int) -> Tensor:
    """Who a joint is joined to: itself, what is nearer to the body, what is farther."""
    inward = torch.zeros(joints, joints)
    for joint in range(1, joints):
        inward[joint, (joint - 1) // 2] = 1.0
    bones = torch.stack([torch.eye(joints), inward, inward.T])
    return bones / bones.sum(1, keepdim=True).clamp(min=1.0)


def _written_softmax(x: Tensor) -> Tensor:
    weight = torch.exp(x - x.amax(-2, keepdim=True))
    return weight / weight.sum(-2, keepdim=True)


class JointsAndMoments(nn.Module):
    """Joints hear those they are joined to, or that move alike; then each joint hears itself over nine moments."""

    bones: Tensor

    def __init__(self, inner: int, outer: int, stride: int, joints: int, library: bool) -> None:
        super().__init__()
        self.library, narrow = library, max(outer // 4, 1)
        self.register_buffer("bones", _bones(joints))
        self.learnt = nn.Parameter(torch.full((3, joints, joints), 1e-6))
        self.one, self.two, self.out = (nn.ModuleList(nn.Conv2d(inner, width, 1) for _ in range(3)) for width in (narrow, narrow, outer))
        self.past = nn.Identity() if inner == outer else nn.Sequential(nn.Conv2d(inner, outer, 1), nn.BatchNorm2d(outer))
        self.norm = nn.BatchNorm2d(outer)
        self.moments = nn.Sequential(nn.Conv2d(outer, outer, (9, 1), (stride, 1), (4, 0)), nn.BatchNorm2d(outer))
        same = inner == outer and stride == 1
        self.around = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, outer, 1, (stride, 1)), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        count, channels, moments, joints = x.shape
        parts = []
        for k in range(3):
            a = self.one[k](x).permute(0, 3, 1, 2).reshape(count, joints, -1)
            b = self.two[k](x).reshape(count, -1, joints)
            alike = a @ b / a.shape[-1]
            near = torch.softmax(alike, -2) if self.library else _written_softmax(alike)
            heard = x.reshape(count, channels * moments, joints) @ (near + self.bones[k] + self.learnt[k])
            parts.append(self.out[k](heard.view(count, channels, moments, joints)))
        y = torch.relu(self.norm(parts[0] + parts[1] + parts[2]) + self.past(x))
        return torch.relu(self.moments(y) + self.around(x))


class Signer(nn.Module):
    def __init__(self, joints: int, widths: tuple[int, ...], words: int, library: bool, layout: torch.memory_format) -> None:
        super().__init__()
        self.layout = layout
        self.start = nn.BatchNorm1d(3 * joints)
        pairs = zip((3, *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(JointsAndMoments(a, b, 2 if b > a > 3 else 1, joints, library) for a, b in pairs))
        self.head = nn.Linear(widths[-1], words)

    def forward(self, x: Tensor) -> Tensor:
        count, parts, moments, joints = x.shape
        x = self.start(x.permute(0, 3, 1, 2).reshape(count, joints * parts, moments))
        x = x.view(count, joints, parts, moments).permute(0, 2, 3, 1).contiguous(memory_format=self.layout)
        return self.head(self.blocks(x).mean((2, 3)))


def sign_skeletons(s: Setup, *, autocast: bool = False, last: bool = False, workers: bool = False, read: bool = True, library: bool = False) -> Step:
    """Points of hands, arms and face were found before; clips lie in memory."""
    joints, moments, words, batch = s.size(27, 5), s.size(128, 8), s.size(2000, 7), s.size(64, 4)
    widths = tuple(s.size(width, width // 16) for width in (64, 64, 64, 128, 128, 256, 256)[: s.size(7, 4)])
    layout = torch.channels_last if last else torch.contiguous_format
    model = Signer(joints, widths, words, library, layout).to(s.device)
    if last:
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    clips = Signs(s.size(2000, 12), joints, moments, words)
    order = RandomSampler(clips, replacement=True, num_samples=1 << 30, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(clips, batch, sampler=order, num_workers=s.size(8, 1) if workers else 0, pin_memory=workers and s.cuda)
    batches: Iterator[tuple[Tensor, Tensor]] = iter(loader)
    losses: list[float] = []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        x, word = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(x)
            loss = F.cross_entropy(guess, word, label_smoothing=0.1)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if read:
            losses.append(loss.item())
        return loss.detach()

    return step


# Brains: what a monkey's motor cortex does while it reaches, from spikes alone (LFADS: a generator, its start and its nudges are inferred).


class BothWays(nn.Module):
    """A gated unit over all moments, forwards and backwards; cell by cell as it was first written, or by the library."""

    def __init__(self, inner: int, width: int, library: bool) -> None:
        super().__init__()
        there, back = nn.GRUCell(inner, width), nn.GRUCell(inner, width)
        self.width, self.whole = width, nn.GRU(inner, width, bidirectional=True) if library else None
        if self.whole is None:
            self.there, self.back = there, back
        else:
            cells = {"": there, "_reverse": back}
            self.whole.load_state_dict({f"{name}_l0{end}": value for end, cell in cells.items() for name, value in cell.state_dict().items()})

    def forward(self, x: Tensor) -> Tensor:
        if self.whole is not None:
            return self.whole(x)[0]
        told = []
        for cell, moments in ((self.there, list(x)), (self.back, list(x)[::-1])):
            h, heard = x.new_zeros(x.shape[1], self.width), []
            for moment in moments:
                h = cell(moment, h)
                heard.append(h)
            told.append(heard)
        return torch.cat([torch.stack(told[0]), torch.stack(told[1][::-1])], -1)


class Reaches(nn.Module):
    """Spikes give a start and, moment by moment, nudges to a network that goes on by itself; its few factors give rates."""

    def __init__(self, neurons: int, width: int, inner: int, factors: int, nudges: int, library: bool) -> None:
        super().__init__()
        self.inner, self.nudges = inner, nudges
        self.for_start, self.for_nudges = BothWays(neurons, width, library), BothWays(neurons, width, library)
        self.start = nn.Linear(2 * width, 2 * inner)
        self.controller, self.generator = nn.GRUCell(2 * width + factors, width), nn.GRUCell(nudges, inner)
        self.nudge = nn.Linear(width, 2 * nudges)
        self.factors, self.rates = nn.Linear(inner, factors, bias=False), nn.Linear(factors, neurons)
        self.hidden = nn.Parameter(torch.zeros(width))

    def forward(self, spikes: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of rates, and how far what was inferred is from what was expected."""
        x = F.dropout(spikes, 0.05, self.training)
        ends = self.for_start(x)
        mean, log_variance = self.start(torch.cat([ends[-1, :, : ends.shape[-1] // 2], ends[0, :, ends.shape[-1] // 2 :]], -1)).chunk(2, -1)
        apart = [self.apart(mean, log_variance)]
        g = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        c, factor, told = self.hidden.expand(len(mean), -1), self.factors(torch.tanh(g)), []
        noise = torch.randn(len(x), len(mean), self.nudges, device=x.device)
        for moment, luck in zip(self.for_nudges(x), noise, strict=True):
            c = self.controller(torch.cat([moment, factor], -1), c)
            mean, log_variance = self.nudge(c).chunk(2, -1)
            apart.append(self.apart(mean, log_variance))
            g = self.generator(mean + torch.exp(0.5 * log_variance) * luck, g).clamp(-5.0, 5.0)
            factor = self.factors(g)
            told.append(factor)
        return self.rates(torch.stack(told)), torch.stack(apart).sum(0)

    @staticmethod
    def apart(mean: Tensor, log_variance: Tensor) -> Tensor:
        return 0.5 * (torch.exp(log_variance.float()) + mean.float() ** 2 - 1.0 - log_variance.float()).sum(-1)


def reach_spikes(s: Setup, *, library: bool = False, graphed: bool = False, autocast: bool = False, fused: bool = False, read: bool = True) -> Step:
    """All reaches lie on the GPU; what is expected weighs more and more at the beginning."""
    neurons, moments, batch, reaches = s.size(182, 6), s.size(70, 4), s.size(128, 3), s.size(2295, 9)
    model = Reaches(neurons, s.size(100, 5), s.size(200, 6), s.size(40, 3), s.size(4, 2), library).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4, fused=True if fused else None, capturable=graphed and s.cuda)
    spikes = torch.poisson(torch.full((moments, reaches, neurons), 0.2, device=s.device))
    ramp, seen = torch.zeros((), device=s.device), torch.zeros(3, device=s.device)
    losses: list[tuple[float, float, float]] = []

    def train() -> None:
        torch.set_float32_matmul_precision("high")
        these = torch.randint(reaches, (batch,), device=s.device)
        counted = spikes[:, these]
        ramp.add_(5e-4).clamp_(max=1.0)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            log_rates, apart = model(counted)
        wrong = F.poisson_nll_loss(log_rates.float(), counted, reduction="none").sum((0, 2)).mean()
        loss = wrong + ramp * apart.mean()
        loss.backward()
        grown = nn.utils.clip_grad_norm_(model.parameters(), 200.0)
        optimizer.step()
        seen.copy_(torch.stack([wrong.detach(), apart.detach().mean(), grown]))

    go: Callable[[], object] = capture(train, s) if graphed else train

    def step() -> Tensor:
        go()
        if read:
            losses.append((seen[0].item(), seen[1].item(), seen[2].item()))
        return seen

    return step


# Chemistry: from what a molecule can be made, by which of 46,175 known recipes may be undone on it.


WORD = (1 << 64) - 1
STIR, BOND, OWN = 0xFF51AFD7ED558CCD, 0x9E3779B97F4A7C15, 3


class Molecule:
    """Atoms in a chain with a few branches and rings; whom each is bound to, and how often."""

    def __init__(self, atoms: int, draw: np.random.Generator) -> None:
        self.atoms = draw.choice([6, 6, 6, 6, 7, 8, 9, 16, 17], atoms).tolist()
        self.bound: list[list[tuple[int, int]]] = [[] for _ in range(atoms)]
        ends = [(int(draw.integers(max(0, atom - 3), atom)), atom) for atom in range(1, atoms)]
        ends += [(atom, atom + 5) for atom in range(0, atoms - 5, 9)]
        for one, two in ends:
            times = int(draw.integers(1, 3))
            self.bound[one].append((two, times))
            self.bound[two].append((one, times))
        flat = [(atom, other, times) for atom, near in enumerate(self.bound) for other, times in near]
        self.at, self.other, self.times = (np.array(column, np.uint64) for column in zip(*flat, strict=True))


def _stirred(x: int) -> int:
    x = ((x ^ (x >> 33)) * STIR) & WORD
    return x ^ (x >> 29)


def _counted(molecule: Molecule, reach: int, size: int) -> list[float]:
    """How often each kind of surroundings occurs, up to `reach` bonds away, atom by atom."""
    counts = [0.0] * size
    marks = [_stirred(atom) for atom in molecule.atoms]
    for far in range(reach + 1):
        if far:
            new = []
            for mark, near in zip(marks, molecule.bound, strict=True):
                total = mark * OWN
                for other, times in near:
                    total += _stirred((marks[other] + times * BOND) & WORD)
                new.append(_stirred(total & WORD))
            marks = new
        for mark in marks:
            counts[mark % size] += 1.0
    return counts


def _stirred_array(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(33))) * np.uint64(STIR)
    return x ^ (x >> np.uint64(29))


def _counted_array(molecule: Molecule, reach: int, size: int) -> np.ndarray:
    """The same by numpy, all atoms at once."""
    marks = _stirred_array(np.array(molecule.atoms, np.uint64))
    at, other, bond = molecule.at.astype(np.int64), molecule.other.astype(np.int64), molecule.times * np.uint64(BOND)
    places = [marks]
    for _ in range(reach):
        total = marks * np.uint64(OWN)
        np.add.at(total, at, _stirred_array(marks[other] + bond))
        marks = _stirred_array(total)
        places.append(marks)
    return np.bincount((np.concatenate(places) % np.uint64(size)).astype(np.int64), minlength=size).astype(np.float32)


class Highway(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.new, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.elu(self.new(x)) + (1.0 - gate) * x


def recipe_expansion(s: Setup, *, vectorised: bool = False, fetched: bool = False, half: bool = False, pinned: bool = False, molecules: int = 1) -> Step:
    """One node of a tree search: three networks have to agree, and the fifty best recipes are listed until they cover all chances."""
    size, width, recipes, best = s.size(8192, 32), s.size(4096, 8), s.size(46_175, 60), s.size(50, 5)
    molecules = min(molecules, s.size(molecules, 2))

    def network() -> nn.Sequential:
        with torch.device(s.device):
            layers = [nn.Linear(size, width), nn.ELU(), *(Highway(width) for _ in range(s.size(4, 1))), nn.Linear(width, recipes)]
            return nn.Sequential(*layers).eval().requires_grad_(False)

    kind = BF16 if half else torch.float32
    networks = [network().to(kind) for _ in range(3)]
    draw = np.random.default_rng(0)
    asked = [Molecule(s.size(56, 8), draw) for _ in range(32)]
    names = [f"T{recipe:05d}" for recipe in range(recipes)]
    staging = torch.zeros(molecules, size)
    if pinned:
        staging = s.pin(staging)
    turn = [0]

    def listed(chances: list[float], which: list[int]) -> list[tuple[str, float]]:
        total, found = 0.0, []
        for chance, recipe in zip(chances, which, strict=True):
            found.append((names[recipe], chance))
            total += chance
            if total > 0.995:
                break
        return found

    def listed_one_by_one(chances: Tensor, which: Tensor) -> list[tuple[str, float]]:
        total, found = 0.0, []
        for rank in range(best):
            chance = chances[rank].item()
            found.append((names[int(which[rank].item())], chance))
            total += chance
            if total > 0.995:
                break
        return found

    @torch.inference_mode()
    def step() -> list[list[tuple[str, float]]]:
        torch.set_float32_matmul_precision("highest")
        these = [asked[(turn[0] + more) % len(asked)] for more in range(molecules)]
        turn[0] += molecules
        if vectorised:
            counts = torch.from_numpy(np.stack([_counted_array(molecule, 3, size) for molecule in these]))
        else:
            counts = torch.tensor([_counted(molecule, 3, size) for molecule in these])
        x = staging.copy_(counts).to(s.device, non_blocking=True) if pinned else counts.to(s.device)
        x = torch.log1p(x).to(kind)
        chances = torch.stack([torch.softmax(network(x).float(), -1) for network in networks]).mean(0)
        top = chances.topk(best)
        if fetched:
            return [listed(*row) for row in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
        return [listed_one_by_one(values, which) for values, which in zip(top.values, top.indices, strict=True)]

    return step


# Magnets: how a film of small grains turns to a new field (the equation of Landau, Lifshitz and Gilbert, stray fields by FFT).


def _cross(a: Tensor, b: Tensor) -> Tensor:
    ax, ay, az = a
    bx, by, bz = b
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx])


def _stray(waves: Tensor, shape: Tensor) -> Tensor:
    """The film's own field, wave by wave; in and out of its plane are apart."""
    shape = shape.float()[..., None]
    x, y, z = waves
    return -torch.stack([shape[0] * x + shape[1] * y, shape[1] * x + shape[2] * y, shape[3] * z])


def _turning(m: Tensor, stray: Tensor, axes: Tensor, hardness: Tensor, applied: Tensor, heat: Tensor) -> Tensor:
    """Neighbours pull each other along, each grain has an axis that it likes; then all turn around the field and towards it."""
    axes, hardness = axes.float(), hardness.float()
    pull = -4.0 * m
    for dim in (1, 2):
        for way in (-1, 1):
            pull = pull + torch.roll(m, way, dim)
    liked = hardness * (m * axes).sum(0) * axes
    field = 0.4 * pull + liked + 0.8 * stray + applied[:, None, None] + 0.02 * heat
    around = _cross(m, field)
    return -(around + 0.1 * _cross(m, around))


def magnetic_film(s: Setup, *, compiled: bool = False, once: bool = False, ahead: bool = False, checked: bool = True, graphed: bool = False) -> Step:
    """Moments by Runge and Kutta's rule; constants were worked out in FP64, and a film that turns too fast is an error."""
    side, moments, dt = s.size(2048, 16), s.size(3, 2), 0.05
    kx = 2.0 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64, device=s.device)[:, None]
    ky = 2.0 * math.pi * torch.fft.rfftfreq(side, dtype=torch.float64, device=s.device)
    k2 = (kx * kx + ky * ky).clamp(min=1e-12)
    thick = 4.0 * k2.sqrt()
    out = -torch.expm1(-thick) / thick
    shape = torch.stack([kx * kx / k2 * (1.0 - out), kx * ky / k2 * (1.0 - out), ky * ky / k2 * (1.0 - out), out])

    def grains(parts: int) -> Tensor:
        few = torch.randn(1, parts, side // 8, side // 8, dtype=torch.float64, device=s.device)
        return F.interpolate(few, size=(side, side), mode="nearest")[0]

    axes, hardness = F.normalize(grains(3), dim=0), 0.5 + 0.1 * grains(1)[0]
    if once:
        shape, axes, hardness = shape.float(), axes.float(), hardness.float()
    applied = torch.tensor([0.0, 0.3, -0.9], device=s.device)
    m = F.normalize(torch.randn(3, side, side, device=s.device) + torch.tensor([0.0, 0.0, 5.0], device=s.device)[:, None, None], dim=0)
    fastest = torch.zeros((), device=s.device)
    of_waves = s.compile(_stray) if compiled else _stray
    turning = s.compile(_turning) if compiled else _turning

    def slope(now: Tensor, heat: Tensor) -> Tensor:
        waves = torch.view_as_real(torch.fft.rfft2(now))
        stray = torch.fft.irfft2(torch.view_as_complex(of_waves(waves, shape)), s=(side, side))
        return turning(now, stray, axes, hardness, applied, heat)

    @torch.no_grad()
    def advance() -> None:
        now = m
        for _ in range(moments):
            heat = torch.randn_like(now)
            one = slope(now, heat)
            two = slope(now + 0.5 * dt * one, heat)
            three = slope(now + 0.5 * dt * two, heat)
            four = slope(now + dt * three, heat)
            moved = now + dt / 6.0 * (one + 2.0 * two + 2.0 * three + four)
            now = moved / moved.norm(dim=0, keepdim=True)
            fastest.copy_(one.abs().max())
        m.copy_(now)

    go: Callable[[], object] = capture(advance, s) if graphed else advance
    pictures = [s.pin(torch.zeros(3, side, side)) if ahead else torch.zeros(0) for _ in range(4)]
    beside = torch.cuda.Stream() if ahead and s.cuda else None
    turn = [0]

    def step() -> Tensor:
        go()
        if checked and fastest.item() > 1e3:
            raise RuntimeError("the moments are too long")
        turn[0] += 1
        if not ahead:
            pictures[turn[0] % 4] = m.cpu()
        elif beside is None:
            pictures[turn[0] % 4].copy_(m)
        else:
            shot = m.clone()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                pictures[turn[0] % 4].copy_(shot, non_blocking=True)
            shot.record_stream(beside)
        return m

    return step


WORKLOADS = (
    written(
        "sign_skeletons", "An adaptive graph network over 64 clips of 27 joints, training in FP32 with TF32 convolutions, NCHW; numpy stretches clips in this process; the loss is read.",
        "bf16 autocast; channels_last; eight workers and pinned memory; the loss is not read; torch.softmax", sign_skeletons,
        {
            "precision": {"autocast": True}, "memory-layout": {"last": True}, "data-loading": {"workers": True}, "sync-stall": {"read": False},
            "unfused-norm": {"library": True},
        },
        gpu_bound=True,
    ),
    written(
        "reach_spikes", "LFADS on 70 moments of 128 reaches, training in FP32 with TF32 products: two encoders both ways, cell by cell; three numbers are read.",
        "nn.GRU for the encoders; the training step as a CUDA graph; bf16 autocast; Adam(fused=True); nothing is read", reach_spikes,
        {
            "launch-gap": {"library": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True},
            "optimizer-foreach": {"fused": True}, "sync-stall": {"read": False},
        },
    ),
    written(
        "recipe_expansion", "Three highway networks of 46,175 recipes in FP32 on one molecule a call; Python counts its surroundings, the fifty best are read one by one.",
        "surroundings counted by numpy; the fifty best fetched at once; weights in bf16; a pinned row; sixteen molecules together", recipe_expansion,
        {
            "host-bound": {"vectorised": True}, "sync-stall": {"fetched": True}, "precision": {"half": True}, "memcpy": {"pinned": True},
            "low-arithmetic-intensity": {"molecules": 16},
        },
        shared={"low-arithmetic-intensity": 16.0},
    ),
    written(
        "magnetic_film", "Three moments of a magnetic film of 2048 x 2048, by chains and FFTs in FP32; constants are FP64, each step's film is fetched, its speed read.",
        "torch.compile of both chains; constants made FP32 once; pinned pictures on a side stream; the speed is not read; moments as a CUDA graph", magnetic_film,
        {
            "unfused-elementwise": {"compiled": True}, "dtype-casts": {"once": True}, "memcpy": {"ahead": True}, "sync-stall": {"checked": False},
            "graph-candidate": {"graphed": True},
        },
        gpu_bound=True,
    ),
)  # fmt: skip
