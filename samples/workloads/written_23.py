"""Programs by an author who has not read the rules: merging black holes, a pulsar search, traffic lights that learn, sheared galaxies.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16, FP16 = torch.bfloat16, torch.float16


# Mergers: posteriors of two black holes' masses, spins and place, from what two detectors heard (neural posterior estimation).


def knots(raw: Tensor, bound: float, least: float = 1e-3) -> tuple[Tensor, Tensor]:
    """Where bins begin and end, and how wide each is."""
    parts = least + (1.0 - least * raw.shape[-1]) * torch.softmax(raw, -1)
    edges = 2.0 * bound * F.pad(torch.cumsum(parts, -1), (1, 0)) - bound
    edges[..., 0] = -bound
    edges[..., -1] = bound
    return edges, edges[..., 1:] - edges[..., :-1]


def rational_quadratic(x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """A monotone spline of ratios of quadratics, and the logarithm of its slope; x must lie within the bound."""
    across, widths = knots(widths, bound)
    up, heights = knots(heights, bound)
    slopes = 1e-3 + F.softplus(F.pad(slopes, (1, 1), value=math.log(math.expm1(1.0 - 1e-3))))
    place = (x[..., None] >= across[..., :-1]).sum(-1, keepdim=True) - 1
    left, wide = across.gather(-1, place)[..., 0], widths.gather(-1, place)[..., 0]
    low, high = up.gather(-1, place)[..., 0], heights.gather(-1, place)[..., 0]
    begin, end = slopes.gather(-1, place)[..., 0], slopes.gather(-1, place + 1)[..., 0]
    steep = high / wide
    part = (x - left) / wide
    mixed = part * (1.0 - part)
    bottom = steep + (begin + end - 2.0 * steep) * mixed
    y = low + high * (steep * part.pow(2) + begin * mixed) / bottom
    rise = steep.pow(2) * (end * part.pow(2) + 2.0 * steep * mixed + begin * (1.0 - part).pow(2))
    return y, torch.log(rise) - 2.0 * torch.log(bottom)


def inside_only(x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The spline within the bound; what lies outside stays as it is."""
    inside = (x >= -bound) & (x <= bound)
    y, steepness = torch.zeros_like(x), torch.zeros_like(x)
    y[~inside] = x[~inside]
    if torch.any(inside):
        y[inside], steepness[inside] = rational_quadratic(x[inside], widths[inside], heights[inside], slopes[inside], bound)
    return y, steepness


def everywhere(x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The same by a mask."""
    inside = (x >= -bound) & (x <= bound)
    y, steepness = rational_quadratic(x.clamp(-bound, bound), widths, heights, slopes, bound)
    return torch.where(inside, y, x), torch.where(inside, steepness, 0.0)


class Residue(nn.Module):
    def __init__(self, width: int, told: int) -> None:
        super().__init__()
        self.one, self.two, self.gate = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(told, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        y = self.two(F.relu(self.one(F.relu(x))))
        return x + F.glu(torch.cat([y, self.gate(context)], -1), -1)


class Conditioner(nn.Module):
    def __init__(self, inner: int, told: int, width: int, out: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inner + told, width), nn.Linear(width, out)
        self.blocks = nn.ModuleList(Residue(width, told) for _ in range(2))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = self.first(torch.cat([x, context], -1))
        for block in self.blocks:
            x = block(x, context)
        return self.last(x)


class Coupling(nn.Module):
    """Moves every other parameter by splines that depend on the rest and on what was heard."""

    def __init__(self, size: int, told: int, width: int, bins: int, odd: bool, masked: bool) -> None:
        super().__init__()
        places = torch.arange(size)
        self.register_buffer("kept", places[places % 2 == int(odd)])
        self.register_buffer("moved", places[places % 2 != int(odd)])
        self.bins, self.width, self.bounded = bins, width, everywhere if masked else inside_only
        self.network = Conditioner(len(self.kept), told, width, len(self.moved) * (3 * bins - 1))

    def forward(self, theta: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        still, moving = theta[:, self.kept], theta[:, self.moved]
        raw = self.network(still, context).view(len(theta), -1, 3 * self.bins - 1)
        widths, heights, slopes = raw.split([self.bins, self.bins, self.bins - 1], -1)
        widths, heights = widths / math.sqrt(self.width), heights / math.sqrt(self.width)
        moving, steepness = self.bounded(moving, widths, heights, slopes, 3.0)
        out = torch.empty_like(theta)
        out[:, self.kept] = still
        out[:, self.moved] = moving
        return out, steepness.sum(-1)


class Listener(nn.Module):
    """Sums up the strain of the detectors."""

    def __init__(self, width: int, length: int, told: int) -> None:
        super().__init__()
        sizes = [2, width, 2 * width, 4 * width, 4 * width]
        self.layers = nn.ModuleList(nn.Conv1d(a, b, 8, 4, 2) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:])
        self.out = nn.Linear(4 * width * (length // 4 ** len(self.layers)), told)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.gelu(norm(layer(x)))
        return F.gelu(self.out(x.flatten(1)))


def merger_posteriors(
    s: Setup, *, masked: bool = False, fused: bool = False, ahead: bool = False, tf32: bool = False
) -> Step:
    """Training in FP32 on 1024 signals of 4096 samples, to which new noise is added; eight couplings of twelve parameters."""
    count, length, size, told = s.size(1024, 8), s.size(4096, 512), s.size(12, 4), s.size(128, 8)
    with s.device:
        listener = Listener(s.size(32, 2), length, told)
        flow = nn.ModuleList(
            Coupling(size, told, s.size(256, 8), s.size(8, 4), n % 2 == 1, masked) for n in range(s.size(8, 2))
        )
    weights = [*listener.parameters(), *flow.parameters()]
    optimizer = torch.optim.Adam(weights, lr=2e-4, fused=fused or None)
    batches = [(0.3 * torch.randn(count, 2, length), torch.randn(count, size)) for _ in range(4)]
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    turn, log, noted = counter(), [0.0, 0.0], torch.zeros(2, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        strain, theta = queue.next() if queue else (part.to(s.device) for part in batches[next(turn) % len(batches)])
        context = listener(strain + torch.randn_like(strain))
        steepness = torch.zeros(count, device=s.device)
        for coupling in flow:
            theta, more = coupling(theta, context)
            steepness = steepness + more
        likely = -0.5 * theta.pow(2).sum(-1) - 0.5 * size * math.log(2.0 * math.pi) + steepness
        loss = -likely.mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()
        if masked:
            noted.copy_(torch.stack([loss.detach(), norm]))
        else:
            log[0], log[1] = loss.item(), norm.item()
        return loss.detach()

    return step


# Pulsars: a block of a radio telescope's filterbank, searched for what repeats and for what flashes.


def dedispersed(x: Tensor, delays: Tensor, bands: int) -> Tensor:
    """Channels moved by their delays and averaged within bands."""
    samples = x.shape[-1]
    place = (torch.arange(samples, device=x.device) + delays[:, None]) % samples
    return x.gather(-1, place).unflatten(0, (bands, -1)).mean(1)


def cleaned(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Channels of mean 0 and deviation 1; those with interference are silenced."""
    x = raw.float()
    x = x - x.mean(-1, keepdim=True)
    x = x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-3)
    bad = (x.pow(4).mean(-1) - 3.0).abs() > 1.5
    return x * (~bad).float()[:, None], bad


def accelerated(series: Tensor, pull: Tensor) -> Tensor:
    """As seen from a star that is pulled by a companion."""
    samples = series.shape[-1]
    time = torch.arange(samples, device=series.device, dtype=torch.float32)
    bent = time + pull * (time / samples) * (time / samples - 1.0)
    return series[:, bent.round().clamp(0, samples - 1).long()]


def running(x: Tensor) -> Tensor:
    return F.pad(torch.cumsum(x, -1), (1, 0))


def whitened(power: Tensor, summed: Tensor, width: int) -> Tensor:
    """The power over the mean of its neighbourhood."""
    local = (summed[..., width:] - summed[..., :-width]) / width
    local = F.pad(local, (width // 2, width - 1 - width // 2), mode="replicate")
    return power / local.clamp(min=1e-3)


def harmonics(white: Tensor, spots: list[Tensor]) -> Tensor:
    """How far the sum of one, two, four and eight harmonics stands out, whichever is the most."""
    total, best, spots = white, white - 1.0, list(spots)
    for order in (2, 4, 8):
        for _ in range(order // 2):
            total = total + white[:, spots.pop(0)]
        best = torch.maximum(best, (total - order) / math.sqrt(order))
    return best


def flashes(summed: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The brightest flash of each width in each series, and when it came."""
    peaks, times = [], []
    for width in widths:
        boxes = (summed[:, width:] - summed[:, :-width]) / math.sqrt(width)
        bright = (boxes - boxes.mean(-1, keepdim=True)) / boxes.std(-1, keepdim=True)
        peak, time = bright.max(-1)
        peaks.append(peak)
        times.append(time)
    return torch.stack(peaks), torch.stack(times)


def pulsar_search(
    s: Setup, *, ahead: bool = False, compiled: bool = False, read: bool = True, graphed: bool = False, divided: bool = False
) -> Step:
    """256 channels of 131,072 samples: 64 dispersions by way of bands, eleven accelerations of each; candidates are read one by one."""
    channels, samples, bands = s.size(256, 8), s.size(131_072, 256), s.size(32, 4)
    coarse, fine, pulls, near = s.size(8, 2), s.size(8, 2), s.size(11, 3), s.size(64, 8)
    widths = (1, 2, 4, 8, 16, 32, 64)[: s.size(7, 3)]
    clean, move, bend, white_of, comb, flash = cleaned, dedispersed, accelerated, whitened, harmonics, flashes
    if compiled:
        clean, move, bend, white_of, comb, flash = (
            s.compile(part, dynamic=False) for part in (cleaned, dedispersed, accelerated, whitened, harmonics, flashes)
        )
    sums = s.compile(running, dynamic=False) if divided else running
    rng = np.random.default_rng(4)
    blocks = [(96.0 + 12.0 * rng.standard_normal((channels, samples), np.float32)).astype(np.uint8) for _ in range(3)]
    queue = Prefetcher([(s.pin(torch.from_numpy(block)),) for block in blocks], s) if ahead else None
    with s.device:
        late = torch.linspace(1.5, 1.2, channels).pow(-2) - 1.5**-2
        slow = (torch.linspace(0.0, s.size(9000, 90), coarse)[:, None] * late).long()
        rest = (torch.linspace(0.0, s.size(1200, 12), fine)[:, None] * late.view(bands, -1).mean(1)).long()
        bends = torch.linspace(-s.size(600.0, 6.0), s.size(600.0, 6.0), pulls)
        bins = torch.arange(samples // 2 + 1)
        spots = [(bins * part + order // 2) // order for order in (2, 4, 8) for part in range(1, order, 2)]
        still = torch.zeros(channels, samples, dtype=torch.uint8)
    turn = counter()
    found: list[tuple[int, int, float, int]] = []
    asked = read and not graphed

    def note(pull: int, score: list[float], place: list[int]) -> None:
        found.extend((pull, trial, value, spot) for trial, (value, spot) in enumerate(zip(score, place, strict=True)) if value > 12.0)

    def search(raw: Tensor) -> tuple[Tensor, ...]:
        x, bad = clean(raw)
        if asked and int(bad.sum()) > 0.9 * channels:
            return (bad,)
        series = []
        for delays in slow:
            parts = move(x, delays, bands)
            series.extend(move(parts, more, 1) for more in rest)
        folded = torch.cat(series)
        folded = folded / folded.std(-1, keepdim=True)
        scores, places = [], []
        for number, pull in enumerate(bends):
            seen = torch.fft.rfft(bend(folded, pull), norm="ortho")
            power = torch.view_as_real(seen).pow(2).sum(-1)
            score, place = comb(white_of(power, sums(power), near), spots).max(-1)
            if asked:
                note(number, score.tolist(), place.tolist())
            scores.append(score)
            places.append(place)
        return bad, torch.stack(scores), torch.stack(places), *flash(sums(folded), widths)

    out: list[Tensor] = []

    def static() -> None:
        out[:] = search(still)

    with torch.no_grad():
        work = capture(static, s) if graphed else None

    @torch.no_grad()
    def step() -> list[Tensor]:
        found.clear()
        raw = queue.next()[0] if queue else torch.from_numpy(blocks[next(turn) % len(blocks)])
        if work:
            still.copy_(raw)
            work()
            seen = out
        else:
            seen = list(search(raw if queue else raw.to(s.device)))
        if not asked:
            for number, (score, place) in enumerate(zip(seen[1].tolist(), seen[2].tolist(), strict=True)):
                note(number, score, place)
        return [part.cpu() for part in seen]

    return step


# Junctions: sixteen sets of traffic lights learn together from episodes that were kept (QMIX with recurrent agents).


class Lights(nn.Module):
    """The same network for each junction; it remembers."""

    def __init__(self, size: int, width: int, phases: int, at_once: bool) -> None:
        super().__init__()
        self.see = nn.Linear(size, width)
        self.memory = nn.GRU(width, width) if at_once else nn.GRUCell(width, width)
        self.say = nn.Linear(width, phases)
        self.width, self.at_once = width, at_once

    def unrolled(self, views: Tensor, before: Tensor, who: Tensor) -> Tensor:
        """What each phase is worth; views: episodes, moments, junctions, what is seen."""
        count, moments, lights = views.shape[:3]
        if self.at_once:
            x = torch.cat([views, before, who.expand(count, moments, -1, -1)], -1).transpose(0, 1).flatten(1, 2)
            worth = self.say(self.memory(F.relu(self.see(x)))[0])
            return worth.unflatten(1, (count, lights)).transpose(0, 1)
        hidden = views.new_zeros(count * lights, self.width)
        said = []
        for moment in range(moments):
            x = torch.cat([views[:, moment], before[:, moment], who.expand(count, -1, -1)], -1)
            hidden = self.memory(F.relu(self.see(x.reshape(count * lights, -1))), hidden)
            said.append(self.say(hidden).view(count, lights, -1))
        return torch.stack(said, 1)


class Mixer(nn.Module):
    """The city's worth from that of its junctions, in which it never falls; its weights depend on the city."""

    def __init__(self, lights: int, state: int, width: int, hyper: int) -> None:
        super().__init__()
        self.lights, self.width = lights, width
        self.first = nn.Sequential(nn.Linear(state, hyper), nn.ReLU(), nn.Linear(hyper, lights * width))
        self.last = nn.Sequential(nn.Linear(state, hyper), nn.ReLU(), nn.Linear(hyper, width))
        self.shift, self.base = nn.Linear(state, width), nn.Sequential(nn.Linear(state, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, worth: Tensor, city: Tensor) -> Tensor:
        shape, city = worth.shape[:2], city.flatten(0, 1)
        first = self.first(city).abs().view(-1, self.lights, self.width)
        hidden = F.elu(torch.bmm(worth.reshape(-1, 1, self.lights), first) + self.shift(city)[:, None])
        mixed = torch.bmm(hidden, self.last(city).abs().view(-1, self.width, 1)) + self.base(city)[:, None]
        return mixed.view(*shape)


def junction_lights(
    s: Setup,
    *,
    graphed: bool = False,
    at_once: bool = False,
    kept: bool = False,
    each: bool = True,
    read: bool = True,
    tf32: bool = False,
) -> Step:
    """One update in FP32 from 64 episodes of 40 moments, drawn from what the host keeps; five numbers are read."""
    count, moments, lights, size, phases = s.size(64, 4), s.size(40, 3), s.size(16, 3), s.size(40, 5), s.size(8, 3)
    stored, state, width = s.size(1024, 12), s.size(128, 6), s.size(128, 8)
    with s.device:
        agent, mixer = Lights(size + phases + lights, width, phases, at_once), Mixer(lights, state, s.size(32, 4), s.size(64, 4))
        old_agent = Lights(size + phases + lights, width, phases, at_once)
        old_mixer = Mixer(lights, state, s.size(32, 4), s.size(64, 4))
        who = torch.eye(lights)
    old_agent.load_state_dict(agent.state_dict())
    old_mixer.load_state_dict(mixer.state_dict())
    weights, old = [*agent.parameters(), *mixer.parameters()], [*old_agent.parameters(), *old_mixer.parameters()]
    optimizer = torch.optim.RMSprop(weights, lr=5e-4, alpha=0.99, eps=1e-5, capturable=graphed and s.cuda)
    rng, draw = np.random.default_rng(6), torch.Generator().manual_seed(6)
    ends = torch.randint(moments // 2 + 1, moments + 1, (stored, 1), generator=draw)
    past = torch.arange(moments)
    episodes = {
        "views": torch.rand(stored, moments + 1, lights, size, generator=draw),
        "city": torch.rand(stored, moments + 1, state, generator=draw),
        "allowed": torch.rand(stored, moments + 1, lights, phases, generator=draw) > 0.2,
        "chosen": torch.randint(phases, (stored, moments + 1, lights), generator=draw),
        "reward": -torch.rand(stored, moments, generator=draw),
        "ended": (past == ends - 1).float(),
        "filled": (past < ends).float(),
    }
    episodes["allowed"][..., 0] = True
    if kept:
        episodes = {name: part.to(s.device) for name, part in episodes.items()}
    still = {name: torch.zeros_like(part[:count], device=s.device) for name, part in episodes.items()} if graphed else {}
    log = [0.0] * 5

    def update(batch: dict[str, Tensor]) -> Tensor:
        done = F.one_hot(batch["chosen"], phases).float()
        before = torch.cat([torch.zeros_like(done[:, :1]), done[:, :-1]], 1)
        worth = agent.unrolled(batch["views"], before, who)
        taken = worth[:, :-1].gather(-1, batch["chosen"][:, :-1, :, None])[..., 0]
        with torch.no_grad():
            later = old_agent.unrolled(batch["views"], before, who)[:, 1:]
            likes = worth.detach().masked_fill(~batch["allowed"], -9999999.0)
            best = later.gather(-1, likes[:, 1:].argmax(-1, keepdim=True))[..., 0]
            goal = batch["reward"] + 0.99 * (1.0 - batch["ended"]) * old_mixer(best, batch["city"][:, 1:])
        mixed = mixer(taken, batch["city"][:, :-1])
        mask = batch["filled"]
        wrong = (mixed - goal) * mask
        loss = wrong.pow(2).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(weights, 10.0)
        optimizer.step()
        with torch.no_grad():
            if each:
                for new, target in zip(weights, old, strict=True):
                    target.data.copy_(0.005 * new.data + (1.0 - 0.005) * target.data)
            else:
                torch._foreach_lerp_(old, weights, 0.005)
            many = mask.sum()
            return torch.stack([
                loss.detach(), norm, wrong.abs().sum() / many, (mixed.detach() * mask).sum() / many, (goal * mask).sum() / many,
            ])  # fmt: skip

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    noted = torch.zeros(5, device=s.device)

    def static() -> None:
        noted.copy_(update(still))

    work = None
    if graphed:
        for name, part in episodes.items():
            still[name].copy_(part[:count])
        work = capture(static, s)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        these = torch.from_numpy(rng.choice(stored, count, replace=False))
        these = these.to(s.device) if kept else these
        drawn = {name: part[these] for name, part in episodes.items()}
        if work:
            for name, part in drawn.items():
                still[name].copy_(part)
            work()
        else:
            noted.copy_(update({name: part.to(s.device) for name, part in drawn.items()}))
        if read:
            for place, value in enumerate(noted):
                log[place] = value.item()
        return noted

    return step


# Galaxies: three networks learn how much lensing has sheared galaxies that are drawn as they are needed, each with its own doubt.


def drawn_galaxies(grid: Tensor, light: Tensor, radius: Tensor, index: Tensor, shape: Tensor, middle: Tensor) -> Tensor:
    """Sersic's profiles, three times as fine as the camera's pixels."""
    one, two = shape[:, 0, None, None], shape[:, 1, None, None]
    x, y = grid - middle[:, 0, None, None], grid[:, None] - middle[:, 1, None, None]
    u, v = (1.0 - one) * x - two * y, (1.0 + one) * y - two * x
    away = torch.sqrt((u**2 + v**2) / (1.0 - one**2 - two**2) + 1e-3) / radius[:, None, None]
    steep = 1.9992 * index[:, None, None] - 0.3271
    profile = torch.exp(-steep * (away ** (1.0 / index[:, None, None]) - 1.0))
    return light[:, None, None] * profile / profile.sum((-2, -1), keepdim=True)


def smeared(picture: Tensor, blur: Tensor) -> Tensor:
    """A convolution by way of Fourier space."""
    side = picture.shape[-1]
    seen = torch.fft.rfft2(picture, s=(2 * side, 2 * side)) * torch.fft.rfft2(blur, s=(2 * side, 2 * side))
    return torch.fft.irfft2(seen, s=(2 * side, 2 * side))[:, side // 2 : side // 2 + side, side // 2 : side // 2 + side]


def moffat(grid: np.ndarray, width: np.ndarray, beta: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How the air and the telescope smear a star in each exposure."""
    width, beta, first, second = (part[:, None, None] for part in (width, beta, first, second))
    x, y = grid[None, None, :], grid[None, :, None]
    away = ((1.0 - first) * x - second * y) ** 2 + ((1.0 + first) * y - second * x) ** 2
    core = width / (2.0 * np.sqrt(2.0 ** (1.0 / beta) - 1.0))
    star = (1.0 + away / core**2) ** -beta
    return (star / star.sum((1, 2), keepdims=True)).astype(np.float32)


def moffat_tensor(grid: Tensor, width: Tensor, beta: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The same on the GPU."""
    width, beta, first, second = (part[:, None, None] for part in (width, beta, first, second))
    away = ((1.0 - first) * grid - second * grid[:, None]) ** 2 + ((1.0 + first) * grid[:, None] - second * grid) ** 2
    core = width / (2.0 * torch.sqrt(2.0 ** (1.0 / beta) - 1.0))
    star = (1.0 + away / core**2) ** -beta
    return star / star.sum((1, 2), keepdim=True)


class Patch(nn.Module):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm, self.norm_too = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.past = nn.Identity() if stride == 1 and inner == width else nn.Conv2d(inner, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.norm(self.one(x)))
        return F.gelu(self.norm_too(self.two(y)) + self.past(x))


class Shear(nn.Module):
    """Two numbers and the doubt about each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 5, 1, 2)
        self.patches = nn.Sequential(
            Patch(width, width, 1), Patch(width, 2 * width, 2), Patch(2 * width, 2 * width, 1),
            Patch(2 * width, 4 * width, 2), Patch(4 * width, 4 * width, 1),
        )  # fmt: skip
        self.say = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patches(F.gelu(self.stem(x)))
        shear, doubt = self.say(x.mean((2, 3))).chunk(2, -1)
        return shear, doubt


def galaxy_shear(
    s: Setup, *, last: bool = False, compiled: bool = False, fused: bool = False, on_gpu: bool = False, filled: bool = True
) -> Step:
    """Training in FP16 autocast with a scaler on 256 stamps of 32 exposures; NumPy works out how each exposure is smeared."""
    count, exposures, side, many = s.size(256, 4), s.size(32, 2), s.size(64, 16), s.size(3, 2)
    with s.device:
        members = nn.ModuleList(Shear(s.size(64, 4)) for _ in range(many))
        grid = (torch.arange(3 * side) - 0.5 * (3 * side - 1)) / 3.0
        pixels = torch.arange(side) - 0.5 * side
    if last:
        members = members.to(memory_format=torch.channels_last)
    draw = s.compile(drawn_galaxies, dynamic=False) if compiled else drawn_galaxies
    networks = [s.compile(member, dynamic=False) if compiled else member for member in members]
    optimizer = torch.optim.AdamW(members.parameters(), lr=5e-4, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    rng, places, half = np.random.default_rng(7), pixels.cpu().numpy(), FP16 if s.cuda else BF16
    noted = torch.zeros((), device=s.device)

    def blurs() -> Tensor:
        known = [rng.uniform(low, high, exposures) for low, high in ((2.5, 4.0), (2.5, 4.5), (-0.05, 0.05), (-0.05, 0.05))]
        if on_gpu:
            return moffat_tensor(pixels, *torch.from_numpy(np.stack(known).astype(np.float32)).to(s.device))
        return torch.from_numpy(moffat(places, *known)).to(s.device)

    @torch.no_grad()
    def observed() -> tuple[Tensor, Tensor]:
        blur = blurs().repeat_interleave(count // exposures, 0)
        light, radius, index, noise = torch.rand(4, count, device=s.device)
        true = 0.05 * torch.randn(count, 2, device=s.device)
        own = 0.2 * torch.randn(count, 2, device=s.device)
        middle = torch.rand(count, 2, device=s.device) - 0.5
        shape = (own + true).clamp(-0.6, 0.6)
        fine = draw(grid, 200.0 + 2000.0 * light, 2.0 + 6.0 * radius, 0.7 + 3.0 * index, shape, middle)
        picture = smeared(9.0 * F.avg_pool2d(fine[:, None], 3)[:, 0], blur)
        picture = picture + (0.5 + noise[:, None, None]) * torch.randn_like(picture)
        return torch.stack([torch.asinh(picture), 30.0 * blur], 1), true

    def step() -> Tensor:
        x, true = observed()
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=not filled)
        loss = torch.zeros((), device=s.device)
        for network in networks:
            with torch.autocast(s.device.type, half):
                shear, doubt = network(x)
            doubt = doubt.float().clamp(-8.0, 8.0)
            loss = loss + 0.5 * (doubt + (shear.float() - 20.0 * true).pow(2) * torch.exp(-doubt)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(members.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        noted.lerp_(loss.detach() / many, 0.01)
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "merger_posteriors", "Neural posterior estimation on 1024 signals, FP32: splines by boolean indexing; two numbers read; pageable.",
        "masks by torch.where, nothing is read; fused Adam; pinned strain on a side stream; TF32", merger_posteriors,
        {
            "sync-stall": {"masked": True}, "optimizer-foreach": {"fused": True}, "memcpy": {"ahead": True}, "precision/tf32": {"tf32": True},
        },
    ),
    written(
        "pulsar_search", "A pulsar search in a block of filterbank, FP32: indices worked out anew, running sums, candidates read one by one.",
        "pinned blocks ahead; torch.compile; candidates read at the end; the search as a CUDA graph; compiled running sums", pulsar_search,
        {
            "memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"read": False},
            "graph-candidate": {"graphed": True}, "small-grid": {"divided": True},
        },
    ),
    written(
        "junction_lights", "QMIX with recurrent agents on 64 kept episodes, FP32: a loop over moments, targets one by one; five numbers read.",
        "the update as a CUDA graph; nn.GRU over all moments; episodes on the GPU; _foreach_lerp_; nothing is read; TF32", junction_lights,
        {
            "graph-candidate": {"graphed": True}, "launch-gap/sequence": {"at_once": True}, "memcpy": {"kept": True},
            "optimizer-foreach": {"each": False}, "sync-stall": {"read": False}, "precision/tf32": {"tf32": True},
        },
    ),
    written(
        "galaxy_shear", "Three networks on 256 galaxies drawn on the GPU, FP16 with a scaler, NCHW; NumPy smears; gradients filled with zeros.",
        "channels_last; torch.compile; fused AdamW; smeared on the GPU; set_to_none", galaxy_shear,
        {
            "memory-layout": {"last": True}, "unfused-elementwise": {"compiled": True}, "amp-scaler-sync": {"fused": True},
            "host-bound": {"on_gpu": True}, "grad-zeroing": {"filled": False},
        }, gpu_bound=True,
    ),
)  # fmt: skip
