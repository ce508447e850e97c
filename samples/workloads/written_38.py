"""Three programs in their authors' own code: a hot planet's air, a belt of waste under a camera of 160 colours, a glove that feels muscles.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# A hot planet's air: how hot each layer is and what it is made of, by what starlight it lets through in transit.


def opacity(table: Tensor, low: Tensor, part: Tensor, log_mix: Tensor, density: Tensor, log_cloud: Tensor, turned: bool) -> Tensor:
    """What each layer takes from each wavelength: cross sections between two rows of a table, by substance."""
    below, above = table[:, low], table[:, low + 1]
    log_cross = (1 - part)[None, :, None] * below + part[None, :, None] * above
    cross = torch.exp((log_cross + log_mix[:, None, None]) * math.log(10.0))
    if turned:
        total = cross.transpose(0, 1).contiguous().sum(1)
    else:
        total = cross.sum(0)
    return (total + torch.exp(log_cloud)) * density[:, None]


def shadow(tau: Tensor, ring: Tensor) -> Tensor:
    """The share of the star that the rings of air hide, by wavelength."""
    through = torch.exp(-tau.clamp(max=80.0))
    return ((1 - through) * ring[:, None]).sum(0)


def sums_by_parts(x: Tensor, parts: int) -> Tensor:
    """Running sums along rows, in parts first and then over the parts."""
    inner = x.view(x.shape[0], parts, -1).cumsum(-1)
    ends = inner[:, :, -1].cumsum(1)
    return (inner + F.pad(ends[:, :-1], (1, 0))[:, :, None]).flatten(1)


def rings_on_host(heat: np.ndarray, step_p: float, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Ways of light through shells of air, and how much of the star each ring is; ray after ray."""
    layers = len(heat)
    r = [1.0]
    for kelvin in heat:
        r.append(r[-1] + 4.0e-6 * float(kelvin) * step_p)
    ways, ring = np.zeros((layers, layers)), np.zeros(layers)
    for i in range(layers):
        middle = 0.5 * (r[i] + r[i + 1])
        ring[i] = 2 * middle * (r[i + 1] - r[i]) / radius**2
        for j in range(i, layers):
            inner = math.sqrt(max(r[j] ** 2 - middle**2, 0.0))
            ways[i, j] = 2 * (math.sqrt(max(r[j + 1] ** 2 - middle**2, 0.0)) - inner)
    return ways.astype(np.float32), ring.astype(np.float32)


def rings_on_device(heat: Tensor, step_p: float, radius: float) -> tuple[Tensor, Tensor]:
    r = 1.0 + F.pad((4.0e-6 * step_p * heat.double()).cumsum(0), (1, 0))
    middle = 0.5 * (r[1:] + r[:-1])
    ring = 2 * middle * (r[1:] - r[:-1]) / radius**2
    reach = torch.sqrt((r[None, :] ** 2 - middle[:, None] ** 2).clamp(min=0.0))
    return (2 * (reach[:, 1:] - reach[:, :-1])).float(), ring.float()


def exoplanet_air(
    s: Setup,
    *,
    compiled: bool = False,
    turned: bool = True,
    on_device: bool = False,
    by_parts: bool = False,
    asked: bool = True,
    emptied: bool = True,
    fused: bool = False,
    tf32: bool = False,
) -> Step:
    """A step of Adam towards four instruments' spectra: 393,216 wavelengths by 40 layers by 4 substances, ways of light by Python, sums in FP64."""
    waves, layers, kinds, rows = s.size(393_216, 96), s.size(40, 5), s.size(4, 2), s.size(16, 4)
    instruments, bins, parts = s.size(4, 2), s.size(600, 6), s.size(512, 8)
    coldest, between, step_p, radius = 400.0, 150.0, 8.0 / layers, 9.5
    with s.device:
        lines = torch.rand(kinds, 1, waves) ** 24 * 4.0
        table = lines + 0.1 * torch.arange(rows)[None, :, None] / rows * torch.randn(kinds, 1, waves) - 1.0
        density = torch.exp(-step_p * torch.arange(layers)) * 4.0
        response = torch.rand(instruments, waves) * 0.5 + 0.5
        heat = nn.Parameter(torch.linspace(1700.0, 900.0, layers) / 1000.0)
        log_mix = nn.Parameter(torch.full((kinds,), -1.0))
        log_cloud = nn.Parameter(torch.full((), -3.0))
        edges = torch.randint(1, waves, (instruments, bins + 1)).sort(1).values
        observed = 0.002 * torch.rand(instruments, bins) + 0.002
        observed[torch.rand(instruments, bins) < 0.05] = float("nan")
    good, seen = ~torch.isnan(observed), torch.nan_to_num(observed)
    weighed = response.double().cumsum(1)
    weight = (weighed.gather(1, edges[:, 1:]) - weighed.gather(1, edges[:, :-1])).clamp(min=1e-3)
    options = {"fused": True} if fused and s.cuda else {"foreach": False}
    optimizer = torch.optim.Adam([heat, log_mix, log_cloud], lr=1e-3, **options)  # type: ignore[arg-type]
    taken = s.compile(opacity, dynamic=False) if compiled else opacity
    hidden = s.compile(shadow, dynamic=False) if compiled else shadow
    diary: list[object] = []

    def model() -> Tensor:
        kelvin = heat * 1000.0
        place = ((kelvin - coldest) / between).clamp(0.0, rows - 1.001)
        low = place.detach().floor().long()
        if on_device:
            ways, ring = rings_on_device(kelvin.detach(), step_p, radius)
        else:
            found = rings_on_host(kelvin.detach().cpu().numpy(), step_p, radius)
            ways, ring = (torch.from_numpy(x).to(s.device) for x in found)
        kappa = taken(table, low, place - low, log_mix, density, log_cloud, turned)
        depth = hidden(ways @ kappa, ring)
        flux = (depth * response).double()
        sums = sums_by_parts(flux, parts) if by_parts else flux.cumsum(1)
        return ((sums.gather(1, edges[:, 1:]) - sums.gather(1, edges[:, :-1])) / weight).float()

    def step() -> object:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad()
        off = (model() - seen) / 2e-4
        chi = (off[good] ** 2).sum() if asked else torch.where(good, off, 0.0).square().sum()
        bend = (heat[2:] - 2 * heat[1:-1] + heat[:-2]).square().sum()
        loss = chi / (instruments * bins) + 30.0 * bend
        if asked and torch.isnan(loss):
            raise FloatingPointError("the air is gone")
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            heat.clamp_(0.45, 2.5)
        diary[:] = [loss.item(), heat.max().item(), *log_mix.tolist()] if asked else [loss.detach()]
        if emptied and s.cuda:
            torch.cuda.empty_cache()
        return diary

    return step


# A belt of waste: of what each thing is, by 160 colours of near infrared in each pixel.


class Spectra(nn.Module):
    """Names the matter of each pixel."""

    def __init__(self, bands: int, width: int, kinds: int) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(bands, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, kinds)
        for layer in (self.first, self.second, self.third, self.head):
            nn.init.zeros_(layer.bias)

    def widen(self, spare: int) -> None:
        self.first.weight = nn.Parameter(F.pad(self.first.weight.detach(), (0, spare)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        x = F.relu(self.third(x))
        return self.head(x)


def absorbed(raw: Tensor, dark: Tensor, white: Tensor) -> Tensor:
    """From counts to the logarithm of Kubelka's and Munk's ratio."""
    light = (raw.float() - dark) / (white - dark)
    light = torch.where(light > 0.995, 0.995, light)
    light = light.clamp(min=0.004)
    return torch.log1p((1 - light) ** 2 / (2 * light))


def waste_belt(
    s: Setup,
    *,
    repaired_there: bool = False,
    ahead: bool = False,
    compiled: bool = False,
    copied: bool = True,
    normed: bool = False,
    padded: bool = False,
    autocast: bool = False,
    at_once: bool = False,
) -> Step:
    """384 lines of 640 pixels of 160 bands: NumPy mends dead spots, pageable, norms written out, a network in TF32 on 127 slopes, each thing is read."""
    lines, columns, bands, kept = s.size(384, 16), s.size(640, 20), s.size(160, 12), s.size(127, 7)
    kinds, width, things, window = s.size(12, 4), s.size(768, 16), s.size(24, 3), s.size(48, 4)
    rng = np.random.default_rng(41)
    films, places = [], []
    for _ in range(3):
        film = torch.randint(200, 3600, (lines, columns, bands), dtype=torch.int16)
        films.append(s.pin(film) if ahead else film)
        places.append([(int(y * (lines - window)), int(x * (columns - window))) for y, x in rng.random((things, 2))])
    bad_x, bad_b = rng.integers(0, columns, s.size(400, 5)), 2 * rng.integers(0, bands // 2 - 1, s.size(400, 5)) + 1
    chosen = [*range(2, bands - 2)]
    chosen = chosen[: kept // 2] + chosen[len(chosen) - (kept - kept // 2) :]
    slopes = torch.zeros(bands, kept)
    for column, band in enumerate(chosen):
        slopes[band - 2 : band + 3, column] = torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2])
    spare = -kept % 16 if padded else 0
    slopes = F.pad(slopes, (0, spare)).to(s.device)
    with s.device:
        network = Spectra(kept, width, kinds).eval()
        dark, white = torch.rand(columns, bands) * 50 + 100, torch.rand(columns, bands) * 200 + 3700
        near = torch.arange(window)
        spots, rows = torch.tensor(bad_x), torch.tensor(bad_b)
        corners = torch.tensor(places)
    if spare:
        network.widen(spare)
    absorb = s.compile(absorbed, dynamic=False) if compiled else absorbed
    turn = counter()

    def mend(film: Tensor) -> None:
        x = film.numpy()
        x[:, bad_x, bad_b] = (x[:, bad_x, bad_b - 1] + x[:, bad_x, bad_b + 1]) // 2

    if ahead and not repaired_there:
        mend(films[0])
    loader = Prefetcher([(film,) for film in films], s) if ahead else None

    def standard(x: Tensor) -> Tensor:
        if normed:
            return F.layer_norm(x, (bands,), eps=1e-6)
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        var = centred.pow(2).mean(-1, keepdim=True)
        return centred / torch.sqrt(var + 1e-6)

    def smooth(x: Tensor) -> Tensor:
        if copied:
            image = x.permute(2, 0, 1).contiguous()[None]
            return F.avg_pool2d(image, 3, 1, 1)[0].permute(1, 2, 0).contiguous()
        return F.avg_pool2d(x[None].permute(0, 3, 1, 2), 3, 1, 1)[0].permute(1, 2, 0)

    def bring(n: int) -> Tensor:
        film = films[(n + 1 if ahead else n) % len(films)]
        if not repaired_there:
            mend(film)
        raw = loader.next()[0] if loader else film.to(s.device)
        if repaired_there:
            raw[:, spots, rows] = (raw[:, spots, rows - 1] + raw[:, spots, rows + 1]) // 2
        return raw

    @torch.no_grad()
    def step() -> list[tuple[int, float]]:
        torch.set_float32_matmul_precision("high")
        n = next(turn)
        x = standard(smooth(absorb(bring(n), dark, white)))
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(x.reshape(-1, bands) @ slopes)
        labels = logits.argmax(-1).view(lines, columns)
        if at_once:
            corner = corners[n % len(films)]
            y, z = corner[:, 0, None, None] + near[:, None], corner[:, 1, None, None] + near
            piece = labels[y, z].flatten(1)
            counts = torch.zeros(things, kinds, dtype=torch.long, device=s.device).scatter_add_(1, piece, torch.ones_like(piece))
            share, kind = (counts[:, 1:].float() / window**2).max(1)
            answer = torch.stack([kind + 1.0, share]).tolist()
            return [(int(k), v) for k, v in zip(*answer, strict=True)]
        verdicts = []
        for top, left in places[n % len(films)]:
            piece = labels[top : top + window, left : left + window].flatten()
            counts = torch.bincount(piece, minlength=kinds)[1:]
            best = counts.argmax()
            verdicts.append((int(best.item()) + 1, (counts[best] / window**2).item()))
        return verdicts

    return step


# A glove that feels muscles: where five fingers are, from a ring of eight electrodes (each has an encoder of its own; Lion, looking ahead).


class Ear(nn.Module):
    """Encoders of `members` electrodes in one: each convolution is grouped."""

    def __init__(self, width: int, members: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(members, members * width, 9, stride=2, padding=4, groups=members, bias=False)
        self.norm1 = nn.BatchNorm1d(members * width)
        self.second = nn.Conv1d(members * width, members * 2 * width, 5, stride=2, padding=2, groups=members, bias=False)
        self.norm2 = nn.BatchNorm1d(members * 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.norm1(self.first(x)))
        return F.elu(self.norm2(self.second(x)))


class Gate(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.inner = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.outer = nn.Conv1d(width, width, 1)
        self.gain = nn.Parameter(torch.full((width, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        signal, gate = self.inner(self.norm(x)).chunk(2, 1)
        y = torch.tanh(signal) * torch.sigmoid(gate)
        return x + self.gain * F.dropout(self.outer(y), 0.1, self.training)


class Glove(nn.Module):
    def __init__(self, electrodes: int, width: int, depth: int, bins: int, together: bool) -> None:
        super().__init__()
        self.together = together
        self.ears = nn.ModuleList([Ear(width, electrodes)] if together else [Ear(width, 1) for _ in range(electrodes)])
        self.mix = nn.Conv1d(electrodes * 2 * width, 4 * width, 1)
        self.gates = nn.ModuleList(Gate(4 * width, 2 ** (n % 4)) for n in range(depth))
        self.fingers = nn.ModuleList(nn.Sequential(nn.Linear(4 * width, 2 * width), nn.ELU(), nn.Linear(2 * width, bins)) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.together:
            x = self.ears[0](x)
        else:
            x = torch.cat([ear(x[:, n : n + 1]) for n, ear in enumerate(self.ears)], 1)
        x = self.mix(x)
        for gate in self.gates:
            x = gate(x)
        x = x.mean(2)
        return torch.stack([finger(x) for finger in self.fingers], 1)


def glove_gestures(
    s: Setup,
    *,
    foreach: bool = False,
    compiled: bool = False,
    together: bool = False,
    graphed: bool = False,
    batched: bool = False,
    asked: bool = True,
    autocast: bool = False,
    pinned: bool = False,
) -> Step:
    """128 windows of a small network of eight encoders, FP32 with TF32 convolutions: NumPy bends each window, Lion goes tensor by tensor, losses are read."""
    batch, electrodes, moments, bins, stock = s.size(128, 4), s.size(8, 3), s.size(512, 32), s.size(24, 5), s.size(4096, 16)
    lapse, limit, decay, beta1, beta2 = 5, 0.5, 0.05, 0.9, 0.98
    rng = np.random.default_rng(17)
    records = rng.standard_normal((stock, electrodes, moments)).astype(np.float32)
    angles = rng.integers(0, bins, (stock, 5))
    with s.device:
        net = Glove(electrodes, s.size(16, 4), s.size(6, 2), bins, together).train()
        still_x, still_y = torch.zeros(batch, electrodes, moments), torch.zeros(batch, 5, dtype=torch.long)
        rate, losses = torch.zeros(()), torch.zeros(5)
        ring, clock, each = torch.arange(electrodes), torch.arange(moments), torch.arange(batch)[:, None, None]
    params = list(net.parameters())
    momenta, slow = [torch.zeros_like(p) for p in params], [p.detach().clone() for p in params]
    model = s.compile(net, dynamic=False) if compiled else net
    room = (s.pin(torch.zeros(batch, electrodes, moments)), s.pin(torch.zeros(batch, 5, dtype=torch.long))) if pinned else None
    turn = counter()

    def bent(x: np.ndarray) -> np.ndarray:
        """Slipped around the arm, slower or faster, louder or softer, silent for a while, with noise."""
        out = np.empty_like(x)
        for n in range(len(x)):
            one = np.roll(x[n], rng.integers(-1, 2), axis=0)
            at = np.clip(np.arange(moments) * rng.uniform(0.9, 1.1) + rng.uniform(-8, 8), 0, moments - 1).astype(np.int64)
            one = one[:, at] * rng.uniform(0.8, 1.2, (electrodes, 1)).astype(np.float32)
            begin = rng.integers(0, moments - moments // 8)
            one[:, begin : begin + moments // 8] = 0.0
            out[n] = one + 0.02 * rng.standard_normal(one.shape, dtype=np.float32)
        return out

    def bent_there(x: Tensor) -> Tensor:
        slip = torch.randint(-1, 2, (batch, 1), device=s.device)
        speed, late = torch.rand(2, batch, 1, device=s.device)
        at = (clock * (0.9 + 0.2 * speed) + 16 * late - 8).clamp(0, moments - 1).long()
        x = x[each, ((ring - slip) % electrodes)[:, :, None], at[:, None, :]]
        x = x * (0.8 + 0.4 * torch.rand(batch, electrodes, 1, device=s.device))
        begin = torch.randint(0, moments - moments // 8, (batch, 1, 1), device=s.device)
        return x.masked_fill((clock >= begin) & (clock < begin + moments // 8), 0.0) + 0.02 * torch.randn_like(x)

    def bring() -> tuple[Tensor, Tensor]:
        pick = rng.integers(0, stock, batch)
        x, y = records[pick], angles[pick]
        if not batched:
            x = bent(x)
        if room is not None:
            room[0].numpy()[:], room[1].numpy()[:] = x, y
            x_there, y_there = (part.to(s.device, non_blocking=True) for part in room)
        else:
            x_there, y_there = torch.from_numpy(x).to(s.device), torch.from_numpy(y).to(s.device)
        return (bent_there(x_there) if batched else x_there), y_there

    @torch.no_grad()
    def lion(pace: float | Tensor) -> None:
        if foreach:
            grads = [p.grad for p in params if p.grad is not None]
            scale = (limit / (torch.stack(torch._foreach_norm(grads)) + 1e-6)).clamp(max=1)
            torch._foreach_mul_(grads, list(scale.unbind()))
            signs = torch._foreach_lerp(momenta, grads, 1 - beta1)
            torch._foreach_sign_(signs)
            torch._foreach_mul_(signs, pace)
            torch._foreach_mul_(params, 1 - pace * decay)
            torch._foreach_sub_(params, signs)
            torch._foreach_lerp_(momenta, grads, 1 - beta2)
            return
        for p, m in zip(params, momenta, strict=True):
            assert p.grad is not None
            g = p.grad * (limit / (p.grad.norm() + 1e-6)).clamp(max=1)
            sign = torch.sign(m * beta1 + g * (1 - beta1))
            p.mul_(1 - pace * decay)
            p.sub_(sign * pace)
            m.mul_(beta2).add_(g, alpha=1 - beta2)

    @torch.no_grad()
    def look_back() -> None:
        if foreach:
            torch._foreach_lerp_(slow, params, 0.5)
            torch._foreach_copy_(params, slow)
            return
        for p, q in zip(params, slow, strict=True):
            q.add_(p - q, alpha=0.5)
            p.copy_(q)

    def learn(x: Tensor, y: Tensor, pace: float | Tensor) -> Tensor:
        for p in params:
            p.grad = None
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(x)
        each_loss = torch.stack([F.cross_entropy(logits[:, n].float(), y[:, n], label_smoothing=0.1) for n in range(5)])
        each_loss.sum().backward()
        lion(pace)
        return each_loss.detach()

    def still() -> None:
        losses.copy_(learn(still_x, still_y, rate))

    torch.set_float32_matmul_precision("highest")
    work = capture(still, s) if graphed else None

    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        n = next(turn)
        pace = 3e-4 * min(1.0, (n + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * (n % 2000) / 2000))
        x, y = bring()
        if work is not None:
            still_x.copy_(x)
            still_y.copy_(y)
            rate.fill_(pace)
            work()
            found = losses
        else:
            found = learn(x, y, pace)
        if n % lapse == lapse - 1:
            look_back()
        return [loss.item() for loss in found] if asked else found

    return step


WORKLOADS = (
    written(
        "exoplanet_air", "Adam on the air of a planet: 393,216 wavelengths, 40 layers, 4 substances, pointwise; ways of light by Python, empty_cache(), reads.",
        "torch.compile of both chains; sum over substances where they lie; ways of light on the GPU; running sums in parts; no reads; no empty_cache(); "
        "fused Adam; TF32 product",
        exoplanet_air,
        {
            "unfused-elementwise": {"compiled": True}, "memory-layout": {"turned": False}, "host-bound": {"on_device": True},
            "small-grid": {"by_parts": True}, "sync-stall": {"asked": False}, "allocator": {"emptied": False}, "optimizer-foreach": {"fused": True},
            "precision": {"tf32": True},
        },
    ),
    written(
        "waste_belt", "384 lines of 640 pixels of 160 bands: NumPy mends dead spots, pageable, norm written out, TF32 network on 127 slopes, 24 things read.",
        "dead spots mended on the GPU; pinned films copied ahead; torch.compile of the chain; smoothing without transposes; layer_norm; 127 padded to 128; "
        "bf16 autocast; all things at once and one read",
        waste_belt,
        {
            "host-bound": {"repaired_there": True}, "memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": True},
            "memory-layout": {"copied": False}, "unfused-norm": {"normed": True}, "gemm-alignment": {"padded": True}, "precision": {"autocast": True},
            "sync-stall": {"at_once": True},
        },
    ),
    written(
        "glove_gestures", "Eight small encoders of muscles' signals in training on 128 windows: NumPy bends each window, Lion tensor by tensor, five reads.",
        "Lion by foreach; torch.compile of the network; eight encoders as one of groups; CUDA graph of the step; windows bent on the GPU; no reads; "
        "bf16 autocast; pinned windows",
        glove_gestures,
        {
            "optimizer-foreach": {"foreach": True}, "launch-gap": {"compiled": True}, "launch-gap/encoders": {"together": True},
            "graph-candidate": {"graphed": True}, "host-bound": {"batched": True}, "sync-stall": {"asked": False}, "precision": {"autocast": True},
            "memcpy": {"pinned": True},
        },
    ),
)  # fmt: skip
