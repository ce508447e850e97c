"""Programs by an author who has not read the rules: rain for films, a pond in dreams, an auction of ads, stems of a choir.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import OneHotCategoricalStraightThrough

from .base import Prefetcher, Setup, Step, capture, written

BF16, FP16 = torch.bfloat16, torch.float16


# Rain: sounds for films by flow matching; a diffusion transformer over latents of an audio codec.


class HeadNorm(nn.Module):
    """RMSNorm of queries and keys."""

    def __init__(self, size: int, library: bool) -> None:
        super().__init__()
        self.scale, self.library = nn.Parameter(torch.ones(size)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.scale.to(x.dtype), 1e-6)
        h = x.float()
        h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)
        return (h * self.scale).to(x.dtype)


class FlowBlock(nn.Module):
    """adaLN-Zero block of DiT."""

    def __init__(self, dim: int, heads: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2 = (nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = HeadNorm(dim // heads, library), HeadNorm(dim // heads, library)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulation = nn.Linear(dim, 6 * dim)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.sdpa:
            out = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
            out = attn.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(c))[:, None].chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class RainFlow(nn.Module):
    def __init__(self, channels: int, frames: int, kinds: int, dim: int, heads: int, depth: int, sdpa: bool, library: bool) -> None:
        super().__init__()
        self.dim = dim
        self.embed, self.kind = nn.Linear(channels, dim), nn.Embedding(kinds + 1, dim)
        self.position = nn.Parameter(0.02 * torch.randn(1, frames, dim))
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(FlowBlock(dim, heads, sdpa, library) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim, elementwise_affine=False), nn.Linear(dim, channels)

    def forward(self, x: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(10_000.0) * torch.arange(self.dim // 2, device=x.device) / (self.dim // 2))
        angle = 1000.0 * t[:, None] * freqs
        c = self.time(torch.cat([angle.cos(), angle.sin()], -1)) + self.kind(kind)
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x, c)
        return self.out(self.norm(x))


def rain_foley(
    s: Setup,
    *,
    sdpa: bool = False,
    library: bool = False,
    compiled: bool = False,
    foreach: bool = False,
    read: bool = True,
    ahead: bool = False,
) -> Step:
    """Flow-matching training of a 1-D DiT on 32 clips of 512 latent frames, bf16 autocast; EMA by a loop over the parameters."""
    clips, frames, channels, kinds = s.size(32, 2), s.size(512, 12), s.size(64, 4), s.size(50, 3)
    dim, heads, depth = s.size(768, 16), s.size(12, 2), s.size(6, 2)
    rng = np.random.default_rng(1)
    stored = [(rng.standard_normal((clips, frames, channels), np.float32), rng.integers(0, kinds, clips)) for _ in range(4)]
    with s.device:
        model = RainFlow(channels, frames, kinds, dim, heads, depth, sdpa, library)
        mean, std = torch.randn(channels) * 0.1, torch.rand(channels) + 0.5
    if compiled:
        for n, block in enumerate(model.blocks):
            model.blocks[n] = s.compile(block, dynamic=False)
    params = list(model.parameters())
    ema = [p.detach().clone() for p in params]
    opt = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01)
    queue = Prefetcher([tuple(s.pin(torch.from_numpy(part)) for part in batch) for batch in stored], s) if ahead else None
    turn, running = counter(), [0.0]

    @torch.no_grad()
    def follow(decay: float = 0.9995) -> None:
        if foreach:
            torch._foreach_lerp_(ema, params, 1.0 - decay)
            return
        for e, p in zip(ema, params, strict=True):
            e.mul_(decay).add_(p.detach(), alpha=1.0 - decay)

    def step() -> tuple[float, float] | None:
        torch.set_float32_matmul_precision("high")
        if queue:
            latents, kind = queue.next()
        else:
            latents, kind = (torch.from_numpy(part).to(s.device) for part in stored[next(turn) % len(stored)])
        x1 = (latents - mean) / std
        x0 = torch.randn_like(x1)
        t = torch.sigmoid(torch.randn(clips, device=s.device))
        kind = torch.where(torch.rand(clips, device=s.device) < 0.1, torch.full_like(kind, kinds), kind)
        xt = torch.lerp(x0, x1, t[:, None, None])
        with torch.autocast(s.device.type, BF16):
            v = model(xt, t, kind)
        loss = F.mse_loss(v.float(), x1 - x0)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        follow()
        if read:
            running[0] = 0.98 * running[0] + 0.02 * loss.item()
            return running[0], norm.item()
        return None

    return step


# Pond: the world model of DreamerV3 for a swimmer that feels its joints.


class Rms(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.scale, self.library = nn.Parameter(torch.ones(dim)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.scale, 1e-4)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-4) * self.scale


def mlp(inp: int, hidden: int, out: int, layers: int, library: bool) -> nn.Sequential:
    parts: list[nn.Module] = []
    for n in range(layers):
        parts += [nn.Linear(inp if n == 0 else hidden, hidden), Rms(hidden, library), nn.SiLU()]
    return nn.Sequential(*parts, nn.Linear(hidden, out))


def symlog(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(torch.abs(x))


class RSSM(nn.Module):
    """Recurrent state-space model with categorical latents."""

    def __init__(self, actions: int, embed: int, deter: int, hidden: int, groups: int, classes: int, library: bool) -> None:
        super().__init__()
        self.groups, self.classes, stoch = groups, classes, groups * classes
        self.initial = nn.Parameter(torch.zeros(deter))
        self.inp, self.inp_norm = nn.Linear(stoch + actions, hidden), Rms(hidden, library)
        self.gru, self.gru_norm = nn.Linear(hidden + deter, 3 * deter, bias=False), Rms(3 * deter, library)
        self.prior, self.posterior = mlp(deter, hidden, stoch, 1, library), mlp(deter + embed, hidden, stoch, 1, library)

    def mixed(self, logits: Tensor) -> Tensor:
        """Logits with 1 % of a uniform distribution."""
        probs = logits.unflatten(-1, (self.groups, self.classes)).softmax(-1)
        return torch.log(0.99 * probs + 0.01 / self.classes)

    def advance(self, stoch: Tensor, deter: Tensor, action: Tensor, first: Tensor, embed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep = 1.0 - first[:, None]
        deter = deter * keep + torch.tanh(self.initial) * (1.0 - keep)
        x = torch.cat([stoch * keep, action * keep], -1)
        x = F.silu(self.inp_norm(self.inp(x)))
        reset, cand, update = self.gru_norm(self.gru(torch.cat([x, deter], -1))).chunk(3, -1)
        cand = torch.tanh(torch.sigmoid(reset) * cand)
        update = torch.sigmoid(update - 1.0)
        deter = update * cand + (1.0 - update) * deter
        return deter, self.mixed(self.prior(deter)), self.mixed(self.posterior(torch.cat([deter, embed], -1)))


class WorldModel(nn.Module):
    def __init__(self, senses: int, actions: int, deter: int, hidden: int, groups: int, classes: int, bins: int, library: bool) -> None:
        super().__init__()
        feat = deter + groups * classes
        self.encoder, self.decoder = mlp(senses, hidden, hidden, 2, library), mlp(feat, hidden, senses, 2, library)
        self.rssm = RSSM(actions, hidden, deter, hidden, groups, classes, library)
        self.reward, self.cont = mlp(feat, hidden, bins, 1, library), mlp(feat, hidden, 1, 1, library)
        self.register_buffer("bins", torch.linspace(-20.0, 20.0, bins))

    def two_hot(self, x: Tensor) -> Tensor:
        width = self.bins[1] - self.bins[0]
        return (1.0 - (x[..., None] - self.bins).abs() / width).clamp(min=0.0)


class LaProp:
    """LaProp with adaptive gradient clipping, as DreamerV3 has it."""

    def __init__(self, params: list[nn.Parameter], lr: float, foreach: bool) -> None:
        self.params, self.lr, self.foreach = params, lr, foreach
        self.nu, self.mu = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
        self.count = torch.zeros((), device=params[0].device)

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        right1, right2 = 1 - 0.9**self.count, 1 - 0.999**self.count
        if self.foreach:
            grads: Any = [p.grad for p in self.params]
            limits = torch._foreach_norm(self.params)
            torch._foreach_clamp_min_(limits, 1e-3)
            torch._foreach_mul_(limits, 0.3)
            norms = torch._foreach_norm(grads)
            torch._foreach_clamp_min_(norms, 1e-6)
            torch._foreach_div_(limits, norms)
            torch._foreach_clamp_max_(limits, 1.0)
            torch._foreach_mul_(grads, limits)
            torch._foreach_mul_(self.nu, 0.999)
            torch._foreach_addcmul_(self.nu, grads, grads, 0.001)
            scales = torch._foreach_div(self.nu, right2)
            torch._foreach_sqrt_(scales)
            torch._foreach_add_(scales, 1e-20)
            torch._foreach_div_(grads, scales)
            torch._foreach_lerp_(self.mu, grads, 0.1)
            torch._foreach_add_(self.params, torch._foreach_div(self.mu, right1), alpha=-self.lr)
            return
        for p, nu, mu in zip(self.params, self.nu, self.mu, strict=True):
            grad = p.grad
            limit = 0.3 * p.norm().clamp(min=1e-3)
            grad = grad * (limit / grad.norm().clamp(min=1e-6)).clamp(max=1.0)
            nu.mul_(0.999).addcmul_(grad, grad, value=0.001)
            grad = grad / ((nu / right2).sqrt() + 1e-20)
            mu.mul_(0.9).add_(grad, alpha=0.1)
            p.sub_(self.lr * mu / right1)


def pond_dreams(
    s: Setup,
    *,
    library: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    checked: bool = True,
    foreach: bool = False,
    tf32: bool = False,
) -> Step:
    """World-model training of DreamerV3 on 16 pieces of 24 moments, FP32; distributions check their arguments, metrics are read."""
    batch, length, senses, actions = s.size(16, 2), s.size(24, 4), s.size(78, 5), s.size(12, 2)
    deter, hidden, groups, classes, bins = s.size(1024, 8), s.size(512, 8), s.size(32, 3), s.size(32, 4), s.size(255, 7)
    rng = np.random.default_rng(2)
    shapes = {"obs": (batch, length, senses), "action": (batch, length, actions), "reward": (batch, length)}
    replay = [{name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()} for _ in range(4)]
    for piece in replay:
        piece["first"] = (rng.random((batch, length)) < 0.03).astype(np.float32)
        piece["cont"] = (rng.random((batch, length)) < 0.98).astype(np.float32)
    with s.device:
        model = WorldModel(senses, actions, deter, hidden, groups, classes, bins, library)
        held = {name: torch.zeros(part.shape) for name, part in replay[0].items()}
        notes = torch.zeros(6)
    optimizer, turn = LaProp(list(model.parameters()), 4e-5, foreach), counter()
    advance = s.compile(model.rssm.advance, dynamic=False) if compiled else model.rssm.advance
    checks = checked and not graphed

    def drawn(logits: Tensor) -> Tensor:
        if checks:
            return OneHotCategoricalStraightThrough(logits=logits).rsample().flatten(1)
        probs = logits.softmax(-1)
        with torch.no_grad():
            hot = F.one_hot((probs / torch.empty_like(probs).exponential_()).argmax(-1), classes).to(probs.dtype)
        return (hot + (probs - probs.detach())).flatten(1)

    def divergence(one: Tensor, two: Tensor) -> Tensor:
        return (one.exp() * (one - two)).sum((-1, -2)).clamp(min=1.0).mean()

    def learned() -> None:
        obs = symlog(held["obs"])
        embeds = model.encoder(obs)
        state = torch.tanh(model.rssm.initial).expand(batch, -1).contiguous()
        stoch = drawn(model.rssm.mixed(model.rssm.prior(state)))
        features, priors, posteriors = [], [], []
        for t in range(length):
            state, prior, posterior = advance(stoch, state, held["action"][:, t], held["first"][:, t], embeds[:, t])
            stoch = drawn(posterior)
            features.append(torch.cat([state, stoch], -1))
            priors.append(prior)
            posteriors.append(posterior)
        feature, prior, posterior = (torch.stack(part, 1) for part in (features, priors, posteriors))
        recon = (model.decoder(feature) - obs).square().sum(-1).mean()
        reward = -(model.two_hot(symlog(held["reward"])) * model.reward(feature).log_softmax(-1)).sum(-1).mean()
        cont = F.binary_cross_entropy_with_logits(model.cont(feature)[..., 0], held["cont"])
        dyn, rep = divergence(posterior.detach(), prior), divergence(posterior, prior.detach())
        loss = recon + reward + cont + dyn + 0.1 * rep
        for p in model.parameters():
            p.grad = None
        loss.backward()
        optimizer.step()
        notes.copy_(torch.stack([loss, recon, reward, cont, dyn, rep]).detach())

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    work = capture(learned, s) if graphed else learned

    def step() -> dict[str, float]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for name, part in replay[next(turn) % len(replay)].items():
            held[name].copy_(torch.from_numpy(part))
        work()
        if not checks:
            return {}
        names = ("loss", "recon", "reward", "cont", "dyn", "rep")
        return {name: notes[n].item() for n, name in enumerate(names)}

    return step


# Auction: ads for a page, ranked by DCN-v2 with experts for clicks, sales and complaints.


class Cross(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


class AdRanker(nn.Module):
    def __init__(self, sizes: list[int], width: int, numbers: int, experts: int, tasks: int, hidden: int, padded: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.history = nn.Embedding(sizes[0], width)
        self.full = (len(sizes) + 1) * width + numbers
        wide = -(-self.full // 64) * 64 if padded else self.full
        self.more = wide - self.full
        self.norm, self.cross = nn.BatchNorm1d(numbers), Cross(wide, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 4), nn.ReLU()) for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(wide, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(hidden // 4, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(tasks))

    def forward(self, ids: Tensor, numbers: Tensor, seen: Tensor) -> Tensor:
        parts = [table(ids[n]) for n, table in enumerate(self.tables)]
        mask = (seen > 0)[..., None].float()
        liked = (self.history(seen) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        parts.append(liked.repeat_interleave(len(numbers) // len(seen), 0))
        parts.append(self.norm(torch.log1p(numbers.clamp(min=0.0))))
        if self.more:
            parts.append(numbers.new_zeros(len(numbers), self.more))
        x = self.cross(torch.cat(parts, 1))
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        out = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = torch.softmax(gate(x), 1)
            out.append(torch.sigmoid(tower((weights[..., None] * answers).sum(1)))[:, 0])
        return torch.stack(out, 1)


def ad_auction(
    s: Setup,
    *,
    requests: int = 1,
    at_once: bool = False,
    graphed: bool = False,
    asked: bool = True,
    tf32: bool = False,
    padded: bool = False,
) -> Step:
    """Inference of DCN-v2 with four experts in FP32 on 1500 ads for one page; 26 columns are copied alone, six places are read in turn."""
    ads, fields, width, counts, past = s.size(1500, 12), s.size(26, 3), s.size(32, 4), s.size(13, 3), s.size(50, 4)
    experts, hidden, places, firms = s.size(4, 2), s.size(512, 8), s.size(6, 2), s.size(300, 5)
    rng = np.random.default_rng(3)
    sizes = [int(size) for size in rng.integers(20, s.size(200_000, 40), fields)]
    rows, turn = requests * ads, counter()
    traffic = []
    for _ in range(4):
        columns = {f"c{n}": rng.integers(0, size, rows) for n, size in enumerate(sizes)}
        traffic.append((columns, rng.gamma(1.0, 20.0, (rows, counts)).astype(np.float32), rng.integers(0, sizes[0], (requests, past))))
    with s.device:
        model = AdRanker(sizes, width, counts, experts, 3, hidden, padded).eval()
        held_ids, held_numbers = torch.zeros(fields, rows, dtype=torch.long), torch.zeros(rows, counts)
        held_seen, rates = torch.zeros(requests, past, dtype=torch.long), torch.zeros(rows, 3)
        bids, firm = torch.rand(requests, ads) * 4.0 + 0.1, torch.randint(firms, (requests, ads))
    staged = [s.pin(torch.zeros_like(place, device="cpu")) for place in (held_ids, held_numbers, held_seen)]

    def rated() -> None:
        rates.copy_(model(held_ids, held_numbers, held_seen))

    def brought(columns: dict[str, np.ndarray], numbers: np.ndarray, seen: np.ndarray) -> None:
        if at_once:
            np.stack([columns[f"c{n}"] for n in range(fields)], out=staged[0].numpy())
            staged[1].copy_(torch.from_numpy(numbers))
            staged[2].copy_(torch.from_numpy(seen))
            for place, host in zip((held_ids, held_numbers, held_seen), staged, strict=True):
                place.copy_(host, non_blocking=True)
            return
        for n in range(fields):
            held_ids[n] = torch.from_numpy(columns[f"c{n}"]).to(s.device)
        held_numbers.copy_(torch.from_numpy(numbers))
        held_seen.copy_(torch.from_numpy(seen))

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    with torch.no_grad():
        work = capture(rated, s) if graphed else rated

    @torch.no_grad()
    def step() -> list[list[float]]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        brought(*traffic[next(turn) % len(traffic)])
        work()
        click, sale, complaint = rates.view(requests, ads, 3).unbind(-1)
        value = bids * click * (1.0 + 3.0 * sale) - 0.5 * complaint
        sold, prices = [], []
        for _ in range(places):
            best, who = value.max(1)
            owner = firm.gather(1, who[:, None])
            value = value.masked_fill(firm == owner, -1.0)
            price = (value.amax(1) / best.clamp(min=1e-6)).clamp(0.0, 1.0) * bids.gather(1, who[:, None])[:, 0]
            sold.append(who.tolist() if asked else who)
            prices.append(price.tolist() if asked else price)
        if asked:
            return [*sold, *prices]
        return torch.stack([*(who.float() for who in sold), *prices]).tolist()

    return step


# Choir: voices and the room apart, by a transformer over bands of the spectrum (BS-RoFormer).


class ScaledNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.gamma


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of neighbouring pairs."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


class BandLayer(nn.Module):
    """Gated attention along one axis, then a feed-forward."""

    def __init__(self, dim: int, heads: int, size: int, length: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa, inner = heads, sdpa, heads * size
        self.norm, self.qkv, self.gates = ScaledNorm(dim), nn.Linear(dim, 3 * inner, bias=False), nn.Linear(dim, heads)
        self.out = nn.Linear(inner, dim, bias=False)
        self.feed = nn.Sequential(ScaledNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        angle = torch.arange(length)[:, None] * 10_000.0 ** -(torch.arange(0, size, 2) / size)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).to(self.qkv.weight.dtype)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = turned(q, self.cos, self.sin), turned(k, self.cos, self.sin)
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v)
        else:
            sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
            seen = torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v)
        seen = seen * torch.sigmoid(self.gates(h)).transpose(1, 2)[..., None]
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class ChoirBands(nn.Module):
    def __init__(self, bands: list[int], frames: int, dim: int, heads: int, size: int, depth: int, stems: int, sdpa: bool) -> None:
        super().__init__()
        self.widths = [4 * band for band in bands]
        self.split = nn.ModuleList(nn.Sequential(ScaledNorm(width), nn.Linear(width, dim)) for width in self.widths)
        self.layers = nn.ModuleList(
            nn.ModuleList([BandLayer(dim, heads, size, frames, sdpa), BandLayer(dim, heads, size, len(bands), sdpa)]) for _ in range(depth)
        )
        self.last = ScaledNorm(dim)
        self.masks = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(dim, 2 * dim), nn.Tanh(), nn.Linear(2 * dim, 2 * width), nn.GLU(-1)) for width in self.widths)
            for _ in range(stems)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Frames x (frequencies, channels, parts) to stems x frames x the same."""
        x = torch.stack([split(part) for split, part in zip(self.split, x.split(self.widths, -1), strict=True)], 1)
        for along_time, along_bands in self.layers:
            x = along_time(x.transpose(0, 1)).transpose(0, 1)
            x = along_bands(x)
        x = self.last(x).to(x.dtype)
        return torch.stack([torch.cat([mask(part) for mask, part in zip(masks, x.unbind(1), strict=True)], -1) for masks in self.masks])


def choir_stems(
    s: Setup,
    *,
    sdpa: bool = False,
    halved: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    later: bool = False,
) -> Step:
    """Inference of a BS-RoFormer with 62 bands on eight seconds of stereo, FP32 weights under fp16 autocast; stems go to the host."""
    fft, hop, frames, stems = s.size(2048, 32), s.size(512, 8), s.size(690, 9), s.size(2, 2)
    bands = [2, 3, 4, 8] if s.tiny else [2] * 24 + [4] * 12 + [12] * 8 + [24] * 8 + [48] * 8 + [128, 129]
    dim, heads, size, depth = s.size(256, 8), s.size(8, 2), s.size(64, 4), s.size(4, 1)
    length, low = hop * (frames - 1), FP16 if s.cuda else BF16
    rng = np.random.default_rng(4)
    pieces, turn = [torch.from_numpy(rng.standard_normal((2, length), np.float32) * 0.1) for _ in range(3)], counter()
    with s.device:
        model = ChoirBands(bands, frames, dim, heads, size, depth, stems, sdpa).eval()
        window = torch.hann_window(fft)
        spectrum = torch.zeros(frames, fft // 2 + 1, 2, 2)
        masked = torch.zeros(stems, frames, fft // 2 + 1, 2, 2)
    if halved:
        model.to(low)
    if compiled:
        for pair in model.layers:
            for n, layer in enumerate(pair):
                pair[n] = s.compile(layer, dynamic=False)
    hosts, events = [s.pin(torch.zeros(stems, 2, length)) for _ in range(2)], [torch.cuda.Event() for _ in range(2)] if s.cuda else []

    def parted() -> None:
        with torch.autocast(s.device.type, low, enabled=not halved, cache_enabled=not graphed):
            mask = model(spectrum.flatten(1).to(low) if halved else spectrum.flatten(1))
        mask = torch.view_as_complex(mask.float().unflatten(-1, (-1, 2, 2)))
        masked.copy_(torch.view_as_real(torch.view_as_complex(spectrum) * mask))

    torch.set_float32_matmul_precision("high")
    with torch.no_grad():
        work = capture(parted, s) if graphed else parted

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        now = next(turn)
        sound = pieces[now % len(pieces)].to(s.device)
        level = sound.std() + 1e-5
        spec = torch.stft(sound / level, fft, hop, window=window, return_complex=True)
        spectrum.copy_(torch.view_as_real(spec.permute(2, 1, 0)))
        work()
        heard = torch.view_as_complex(masked).permute(0, 3, 2, 1).flatten(0, 1)
        voices = torch.istft(heard, fft, hop, window=window, length=length).unflatten(0, (stems, 2)) * level
        if not later:
            return voices.cpu()
        hosts[now % 2].copy_(voices, non_blocking=True)
        if events:
            events[now % 2].record()
            events[(now + 1) % 2].synchronize()
        return hosts[(now + 1) % 2]

    return step


WORKLOADS = (
    written(
        "rain_foley", "Flow matching with a 1-D DiT in training on 32 x 512 latents, bf16 autocast; attention written out, EMA by a loop.",
        "SDPA; F.rms_norm; torch.compile of the blocks; EMA by foreach; the loss is not read; pinned batches ahead", rain_foley,
        {
            "unfused-attention": {"sdpa": True}, "unfused-norm": {"library": True}, "unfused-elementwise": {"compiled": True},
            "optimizer-foreach": {"foreach": True}, "sync-stall": {"read": False}, "memcpy": {"ahead": True},
        },
    ),
    written(
        "pond_dreams", "DreamerV3's world model in training on 16 x 24 moments, FP32: RSSM by a loop, LaProp by hand, samples are checked.",
        "F.rms_norm; torch.compile of a moment; CUDA graph; nothing checked or read; LaProp by foreach; TF32", pond_dreams,
        {
            "unfused-norm": {"library": True}, "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True},
            "sync-stall": {"checked": False}, "optimizer-foreach": {"foreach": True}, "precision": {"tf32": True},
        },
    ),
    written(
        "ad_auction", "DCN-v2 with four experts ranks 1500 ads, FP32: 26 columns copied one by one; places of the page are read in turn.",
        "one pinned copy; CUDA graph of the network; one read; TF32; 877 inputs padded to 896; eight pages at once", ad_auction,
        {
            "memcpy": {"at_once": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"asked": False},
            "precision": {"tf32": True}, "gemm-alignment": {"padded": True}, "low-arithmetic-intensity": {"requests": 8},
        },
        shared={"low-arithmetic-intensity": 8},
    ),
    written(
        "choir_stems", "BS-RoFormer parts eight seconds of stereo, FP32 weights under fp16 autocast: 62 bands in turn, attention written out.",
        "SDPA; fp16 weights; torch.compile of the layers; CUDA graph of the network; stems fetched a step later", choir_stems,
        {
            "unfused-attention": {"sdpa": True}, "dtype-casts": {"halved": True}, "unfused-elementwise": {"compiled": True},
            "graph-candidate": {"graphed": True}, "memcpy": {"later": True},
        },
    ),
)  # fmt: skip
