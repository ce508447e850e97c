"""Programs written to test predictions, set D: once more other fields and habits, by an author to whom the rules are unknown.

As in the sets before, one change between the sides, further changes timed alone, and global switches set in the step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written_pair
from .written_3 import BF16, _mlp

FP16 = torch.float16


# Reinforcement learning: one update of a soft actor-critic.


def sac_update(s: Setup, *, graphed: bool = False, fused: bool = False, zeros: bool = True, together: bool = False, autocast: bool = False) -> Step:
    seen, acts, width, batch = s.size(48, 4), s.size(12, 2), s.size(256, 8), s.size(256, 4)
    actor = _mlp(seen, width, width, 2 * acts).to(s.device)
    critics, targets = (nn.ModuleList(_mlp(seen + acts, width, width, 1) for _ in range(2)).to(s.device) for _ in range(2))
    targets.load_state_dict(critics.state_dict())
    targets.requires_grad_(False)
    log_alpha = torch.zeros(1, device=s.device, requires_grad=True)
    how: dict[str, Any] = {"lr": 3e-4, "capturable": graphed and s.cuda} | ({"fused": True} if fused else {})
    optimizers = [torch.optim.Adam(parameters, **how) for parameters in (critics.parameters(), actor.parameters(), [log_alpha])]
    many = s.size(100_000, 50)
    state, after, taken = (torch.randn(many, dim, device=s.device) for dim in (seen, seen, acts))
    reward, going = torch.randn(many, 1, device=s.device), torch.rand(many, 1, device=s.device).gt(0.01).float()
    totals = torch.zeros(4, device=s.device)

    def act(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(x).float().chunk(2, 1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        log_p = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), log_p.sum(1, keepdim=True)

    def judge(nets: nn.ModuleList, x: Tensor, action: Tensor) -> list[Tensor]:
        pair = torch.cat([x, action], 1)
        return [net(pair).float() for net in nets]

    def improve(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none=not zeros)
        loss.backward()
        optimizer.step()

    def step() -> None:
        rows = torch.randint(many, (batch,), device=s.device)
        x, a, r, y, more = (column[rows] for column in (state, taken, reward, after, going))
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            with torch.no_grad():
                action, log_p = act(y)
                value = torch.minimum(*judge(targets, y, action)) - log_alpha.exp() * log_p
                wanted = r + 0.99 * more * value
            critic_loss = sum(F.mse_loss(q, wanted) for q in judge(critics, x, a))
        assert isinstance(critic_loss, Tensor)
        improve(critic_loss, optimizers[0])
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            action, log_p = act(x)
            actor_loss = (log_alpha.exp().detach() * log_p - torch.minimum(*judge(critics, x, action))).mean()
        improve(actor_loss, optimizers[1])
        alpha_loss = -(log_alpha * (log_p.detach() - acts)).mean()
        improve(alpha_loss, optimizers[2])
        with torch.no_grad():
            if together:
                torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)
            else:
                for old, new in zip(targets.parameters(), critics.parameters(), strict=True):
                    old.copy_(0.995 * old + 0.005 * new)
            totals.add_(torch.stack([critic_loss.detach(), actor_loss.detach(), alpha_loss.detach(), log_p.detach().mean()]))

    return capture(step, s) if graphed else step


# A guided diffusion transformer: the network is asked twice in each step.


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift


def gated(x: Tensor, change: Tensor, gate: Tensor) -> Tensor:
    return x + gate * change


class PatchBlock(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool, modulate: Callable[..., Tensor], gate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim, act=nn.GELU)
        self.condition = nn.Linear(dim, 6 * dim)
        self.modulate, self.gate = modulate, gate

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(F.silu(c))[:, None].chunk(6, -1)
        x = self.gate(x, self.attend(self.modulate(x, shift1, scale1)), gate1)
        return self.gate(x, self.feed(self.modulate(x, shift2, scale2)), gate2)


def guided_patches(s: Setup, *, sdpa: bool = False, together: bool = False, compiled: bool = False, graphed: bool = False) -> Step:
    dim, rows, tokens, times = s.size(1024, 16), s.size(4, 1), s.size(1024, 4), s.size(4, 2)
    modulate, gate = (s.compile(part) if compiled else part for part in (modulated, gated))
    blocks = nn.ModuleList(PatchBlock(dim, s.size(16, 2), sdpa, modulate, gate) for _ in range(s.size(4, 1))).to(s.device, BF16)
    first, last = (nn.Linear(*sizes).to(s.device, BF16) for sizes in ((16, dim), (dim, 16)))
    noise = torch.randn(rows, tokens, 16, device=s.device, dtype=BF16)
    label, nothing = (torch.randn(rows, dim, device=s.device, dtype=BF16) for _ in range(2))
    clock = torch.randn(times, dim, device=s.device, dtype=BF16)

    def network(x: Tensor, c: Tensor) -> Tensor:
        h = first(x)
        for block in blocks:
            h = block(h, c)
        return last(h)

    @torch.no_grad()
    def step() -> Tensor:
        x = noise
        for t in range(times):
            if together:
                guided, free = network(torch.cat([x, x]), torch.cat([label, nothing]) + clock[t]).chunk(2)
            else:
                guided, free = network(x, label + clock[t]), network(x, nothing + clock[t])
            x = x - (free + 4.0 * (guided - free)) / times
        return x

    return capture(step, s) if graphed else step


# Poisson's equation in FP64 by conjugate gradients.


def against_neighbours(p: Tensor) -> Tensor:
    around = F.pad(p, (1, 1, 1, 1))
    return 4 * p - around[:-2, 1:-1] - around[2:, 1:-1] - around[1:-1, :-2] - around[1:-1, 2:]


def conjugate(x: Tensor, r: Tensor, p: Tensor, rr: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ap = against_neighbours(p)
    alpha = rr / (p * ap).sum()
    x, r = x + alpha * p, r - alpha * ap
    left = (r * r).sum()
    return x, r, r + left / rr * p, left


def poisson_gradients(s: Setup, *, compiled: bool = False, every: int = 1, single: bool = False, graphed: bool = False) -> Step:
    side, rounds = s.size(2048, 16), s.size(40, 3)
    charge = torch.randn(side, side, device=s.device, dtype=torch.float64).to(torch.float32 if single else torch.float64)
    one_round = s.compile(conjugate) if compiled else conjugate

    @torch.no_grad()
    def step() -> Tensor:
        x, r, p = torch.zeros_like(charge), charge, charge
        rr = (r * r).sum()
        for done in range(1, rounds + 1):
            x, r, p, rr = one_round(x, r, p, rr)
            if every and done % every == 0 and rr.sqrt().item() < 1e-9:
                break
        return x

    return capture(step, s) if graphed else step


# A speech front end, utterance by utterance.


def utterance_features(s: Setup, *, together: bool = False, pinned: bool = False, packed: bool = False, tf32: bool = False) -> Step:
    dice = random.Random(0)
    lengths = [dice.randrange(s.size(16_000, 800), s.size(48_000, 1600)) for _ in range(s.size(48, 3))]
    waves = [torch.randn(length) for length in lengths]
    waves = [s.pin(wave) for wave in waves] if pinned else waves
    window, bank = torch.hamming_window(400, device=s.device), torch.rand(257, 80, device=s.device)
    encoder = nn.Sequential(nn.Conv1d(80, 256, 5, 2, 2), nn.ReLU(), nn.Conv1d(256, 256, 5, 2, 2), nn.ReLU(), nn.Conv1d(256, 192, 1)).to(s.device).eval()

    def log_mel(x: Tensor) -> Tensor:
        x = torch.cat([x[..., :1], x[..., 1:] - 0.97 * x[..., :-1]], -1)
        frames = x.unfold(-1, 400, 160)
        frames = (frames - frames.mean(-1, keepdim=True)) * window
        return torch.log(torch.fft.rfft(frames, 512).abs().square() @ bank + 1e-6)

    def one_by_one() -> Tensor:
        if packed:
            sent: list[Tensor] | tuple[Tensor, ...] = torch.cat(waves).to(s.device).split(lengths)
        else:
            sent = [wave.to(s.device, non_blocking=pinned) for wave in waves]
        features = []
        for x in sent:
            mel = log_mel(x)
            features.append((mel - mel.mean(0)) / (mel.std(0) + 1e-5))
        return nn.utils.rnn.pad_sequence(features, batch_first=True)

    def all_at_once() -> Tensor:
        mel = log_mel(nn.utils.rnn.pad_sequence(waves, batch_first=True).to(s.device))
        frames = torch.tensor([(length - 400) // 160 + 1 for length in lengths], device=s.device)
        inside = (torch.arange(mel.shape[1], device=s.device) < frames[:, None])[..., None]
        counts = frames[:, None, None]
        centred = (mel - (mel * inside).sum(1, keepdim=True) / counts) * inside
        return centred / ((centred.square().sum(1, keepdim=True) / (counts - 1)).sqrt() + 1e-5)

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        found = encoder((all_at_once() if together else one_by_one()).mT)
        torch.set_float32_matmul_precision("high")
        return found

    return step


# Beam search whose cache grows by torch.cat and is put in order after each word.


class CachedLayer(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return q, k, v

    def finish(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(len(x), -1))
        return x + self.feed(self.norm2(x))


def growing_beams(s: Setup, *, lists: bool = True, sdpa: bool = False, one_cache: bool = False, autocast: bool = False) -> Step:
    dim, heads, words, length = s.size(512, 16), s.size(8, 2), s.size(8000, 20), s.size(12, 3)
    sentences, beams = s.size(8, 2), s.size(4, 2)
    rows = sentences * beams
    layers = nn.ModuleList(CachedLayer(dim, heads, sdpa) for _ in range(s.size(3, 1))).to(s.device).eval()
    embed, positions, head = nn.Embedding(words, dim).to(s.device), torch.randn(length, dim, device=s.device), nn.Linear(dim, words).to(s.device)
    starts = torch.arange(sentences, device=s.device)[:, None] * beams

    def decode() -> Tensor | list[list[int]]:
        token = torch.zeros(rows, dtype=torch.long, device=s.device)
        scores = torch.zeros(sentences, beams, device=s.device)
        dtype = BF16 if autocast else torch.float32
        whole = torch.zeros(rows, len(layers), 2, heads, length, dim // heads, device=s.device, dtype=dtype) if one_cache else None
        caches: list[tuple[Tensor, Tensor]] = []
        written = torch.zeros(rows, 0, dtype=torch.long, device=s.device)
        said: list[list[int]] = [[] for _ in range(rows)]
        for t in range(length):
            x = embed(token) + positions[t]
            for i, layer in enumerate(layers):
                q, k, v = layer.project(x)
                if whole is not None:
                    whole[:, i, 0, :, t : t + 1], whole[:, i, 1, :, t : t + 1] = k, v
                    k, v = whole[:, i, 0, :, : t + 1], whole[:, i, 1, :, : t + 1]
                elif t == 0:
                    caches.append((k, v))
                else:
                    k, v = torch.cat([caches[i][0], k], 2), torch.cat([caches[i][1], v], 2)
                    caches[i] = k, v
                x = layer.finish(x, q, k, v)
            log_p = F.log_softmax(head(x).float(), -1).view(sentences, beams, words)
            scores, best = (scores[..., None] + log_p).view(sentences, -1).topk(beams)
            parent, token = (starts + best // words).view(-1), (best % words).view(-1)
            if whole is not None:
                whole = whole.index_select(0, parent)
            else:
                caches = [(k.index_select(0, parent), v.index_select(0, parent)) for k, v in caches]
            if lists:
                said = [[*said[p], w] for p, w in zip(parent.tolist(), token.tolist(), strict=True)]
            else:
                written = torch.cat([written.index_select(0, parent), token[:, None]], 1)
        return said if lists else written.tolist()

    @torch.no_grad()
    def step() -> Tensor | list[list[int]]:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return decode()

    return step


# Retrieval from a corpus, then a re-ranker query by query.


def retrieve_rerank(s: Setup, *, batched: bool = False, late: bool = False, half: bool = False, empties: bool = True, queries: int = 16) -> Step:
    dim, many, kept, shown = s.size(384, 8), s.size(400_000, 60), s.size(100, 5), s.size(10, 2)
    queries = s.size(queries, queries // 8)
    corpus = F.normalize(torch.randn(many, dim, device=s.device), dim=1).to(FP16 if half else torch.float32)
    asked = F.normalize(torch.randn(queries, dim, device=s.device), dim=1)
    judge = _mlp(3 * dim, s.size(512, 8), s.size(256, 8), 1).to(s.device).eval()

    @torch.no_grad()
    def step() -> list[list[int]]:
        found = (asked.to(corpus.dtype) @ corpus.T).topk(kept).indices
        if batched:
            documents = corpus[found].float()
            query = asked[:, None].expand_as(documents)
            relevant = judge(torch.cat([query, documents, query * documents], -1)).squeeze(-1)
            answer: list[list[int]] = found.gather(1, relevant.topk(shown).indices).tolist()
        else:
            kept_back: list[Tensor] = []
            answer = []
            for i in range(queries):
                documents = corpus[found[i]].float()
                query = asked[i].expand_as(documents)
                relevant = judge(torch.cat([query, documents, query * documents], -1)).squeeze(-1)
                best = found[i][relevant.topk(shown).indices]
                if late:
                    kept_back.append(best)
                else:
                    answer.append(best.tolist())
            if late:
                answer = torch.stack(kept_back).tolist()
        if empties and s.cuda:
            torch.cuda.empty_cache()
        return answer

    return step


# Point clouds: edge convolutions over the nearest neighbours.


def edge_features(x: Tensor, near: Tensor) -> Tensor:
    rows, dim, points = x.shape
    flat = x.mT.reshape(rows * points, dim)
    at = (near + torch.arange(rows, device=x.device)[:, None, None] * points).view(-1)
    neighbour = flat[at].view(rows, points, -1, dim)
    centre = flat.view(rows, points, 1, dim).expand_as(neighbour)
    return torch.cat([neighbour - centre, centre], 3).permute(0, 3, 1, 2)


def nearest(x: Tensor, k: int) -> Tensor:
    inner = 2 * x.mT @ x
    norm = x.square().sum(1, keepdim=True)
    return (inner - norm - norm.mT).topk(k, -1).indices


def edge_convolutions(s: Setup, *, last: bool = False, autocast: bool = False, compiled: bool = False, fused: bool = False) -> Step:
    k, rows, points = s.size(20, 3), s.size(32, 2), s.size(1024, 12)
    widths = [3, s.size(64, 4), s.size(64, 4), s.size(128, 4)]

    def layer(inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(2 * inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2))

    layers = nn.ModuleList(layer(*pair) for pair in pairwise(widths)).to(s.device)
    head = _mlp(sum(widths[1:]), s.size(512, 8), 40).to(s.device)
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-3, fused=fused)
    cloud, labels = torch.randn(rows, 3, points, device=s.device), torch.randint(40, (rows,), device=s.device)
    features = s.compile(edge_features) if compiled else edge_features

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            x, pooled = cloud, []
            for layer in layers:
                edges = features(x, nearest(x.detach(), k))
                x = layer(edges if last else edges.contiguous()).amax(-1)
                pooled.append(x.amax(-1))
            loss = F.cross_entropy(head(torch.cat(pooled, 1)), labels, label_smoothing=0.2)
        loss.backward()
        optimizer.step()

    return step


# Differentiable rendering: a picture fitted by blurred ellipses.


def composite(pixels: Tensor, centre: Tensor, size: Tensor, angle: Tensor, opacity: Tensor, colour: Tensor, logs: bool) -> Tensor:
    away = pixels[:, None] - centre
    cos, sin = angle.cos(), angle.sin()
    u = (away[..., 0] * cos + away[..., 1] * sin) * torch.exp(-size[:, 0])
    v = (away[..., 1] * cos - away[..., 0] * sin) * torch.exp(-size[:, 1])
    alpha = (torch.sigmoid(opacity) * torch.exp(-0.5 * (u * u + v * v))).clamp(max=0.99)
    clear = torch.exp(torch.cumsum(torch.log1p(-alpha), 1)) if logs else torch.cumprod(1 - alpha, 1)
    seen = torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1)
    return (alpha * seen) @ torch.sigmoid(colour)


def ellipse_picture(s: Setup, *, compiled: bool = False, logs: bool = False, read: bool = True, fused: bool = False, autocast: bool = False) -> Step:
    side, many = s.size(256, 8), s.size(384, 6)
    line = torch.linspace(0, 1, side, device=s.device)
    pixels = torch.cartesian_prod(line, line)
    shapes = [torch.rand(many, 2, device=s.device), torch.full((many, 2), -3.0, device=s.device)]
    shapes += [torch.randn(many, device=s.device), torch.zeros(many, device=s.device), torch.randn(many, 3, device=s.device)]
    parameters = [shape.requires_grad_(True) for shape in shapes]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=fused)
    picture = torch.rand(side * side, 3, device=s.device)
    render = s.compile(composite) if compiled else composite
    quality: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.mse_loss(render(pixels, *parameters, logs).float(), picture)
        loss.backward()
        optimizer.step()
        if read:
            quality.append(-10 * math.log10(loss.item()))

    return step


# Low-rank adaptation written out, with accumulated gradients that are clipped by hand.


class LowRank(nn.Module):
    def __init__(self, inner: int, outer: int, rank: int, widen: bool) -> None:
        super().__init__()
        self.widen = widen
        self.weight = nn.Parameter(torch.randn(outer, inner, dtype=BF16) * inner**-0.5, requires_grad=False)
        self.a, self.b = nn.Parameter(torch.randn(rank, inner) * inner**-0.5), nn.Parameter(torch.zeros(outer, rank))

    def forward(self, x: Tensor) -> Tensor:
        if self.widen:
            return F.linear(x, self.weight) + (2.0 * F.linear(F.linear(x.float(), self.a), self.b)).to(x.dtype)
        return F.linear(x, self.weight) + 2.0 * F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))


class OwnRms(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.library, self.weight = library, nn.Parameter(torch.ones(dim, dtype=BF16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class AdaptedBlock(nn.Module):
    def __init__(self, dim: int, heads: int, rms: bool, widen: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = OwnRms(dim, rms), OwnRms(dim, rms)
        self.q, self.k, self.v, self.o = (LowRank(dim, dim, 16, widen) for _ in range(4))
        self.gate, self.up, self.down = LowRank(dim, 3 * dim, 16, widen), LowRank(dim, 3 * dim, 16, widen), LowRank(3 * dim, dim, 16, widen)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (part(h).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def low_rank_tuning(s: Setup, *, widen: bool = True, rms: bool = False, by_hand: bool = True, micro: int = 2, fused: bool = False) -> Step:
    dim, words, rows, length = s.size(2048, 16), s.size(16_000, 30), 4, s.size(1024, 4)
    embed = nn.Embedding(words, dim).to(s.device, BF16).requires_grad_(False)
    blocks = nn.Sequential(*(AdaptedBlock(dim, s.size(16, 2), rms, widen) for _ in range(s.size(2, 1)))).to(s.device)
    norm = OwnRms(dim, rms).to(s.device)
    trained = [parameter for parameter in blocks.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=fused)
    text = torch.randint(words, (rows, length + 1), device=s.device)
    history: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        total = 0.0
        for part in text.chunk(micro):
            logits = norm(blocks(embed(part[:, :-1]))) @ embed.weight.T
            loss = F.cross_entropy(logits.float().view(-1, words), part[:, 1:].reshape(-1)) / micro
            loss.backward()
            total += loss.item()
        if by_hand:
            norms = [parameter.grad.norm().item() for parameter in trained if parameter.grad is not None]
            scale = 1.0 / max(1.0, math.sqrt(sum(norm * norm for norm in norms)))
            for parameter in trained:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        else:
            nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        history.append(total)

    return step


# Training that knows it will be quantised.


def quantised(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    scale = (high - low).clamp(min=1e-8) / 255
    zero = torch.round(-low / scale)
    level = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return x + ((level - zero) * scale - x).detach()


class QuantisedConv(nn.Module):
    def __init__(self, inner: int, outer: int, rounded: Callable[..., Tensor], checked: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
        self.register_buffer("low", torch.tensor(-1.0))
        self.register_buffer("high", torch.tensor(1.0))
        self.checked, self.rounded = checked, rounded

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.low.lerp_(x.amin().float(), 0.01)
            self.high.lerp_(x.amax().float(), 0.01)
        if self.checked and self.low >= self.high:
            raise ValueError("the range is empty")
        weight = self.conv.weight
        weight = self.rounded(weight, weight.detach().amin(), weight.detach().amax())
        return F.relu(self.norm(F.conv2d(self.rounded(x, self.low, self.high), weight, padding=1)))


def quantisation_aware(s: Setup, *, compiled: bool = False, checked: bool = True, last: bool = False, autocast: bool = False) -> Step:
    width, side = s.size(128, 4), s.size(56, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    rounded = s.compile(quantised, dynamic=False) if compiled else quantised
    layers = [QuantisedConv(3 if i == 0 else width, width, rounded, checked) for i in range(s.size(6, 2))]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)).to(s.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(s.size(32, 2), 3, side, side, device=s.device).to(memory_format=layout)
    labels = torch.randint(100, (len(x),), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()

    return step


# Contrast against a queue of keys, whose pointer is a buffer on the GPU.


def picture_encoder(s: Setup) -> nn.Sequential:
    layers: list[nn.Module] = []
    widths = [3, s.size(64, 4), s.size(128, 4), s.size(256, 8), s.size(512, 8)]
    for i in range(1, len(widths)):
        layers += [nn.Conv2d(widths[i - 1], widths[i], 3, 1 if i == 1 else 2, 1, bias=False), nn.BatchNorm2d(widths[i]), nn.ReLU()]
        layers += [nn.Conv2d(widths[i], widths[i], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[i]), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _mlp(widths[-1], widths[-1], s.size(128, 8)))


def queue_contrast(s: Setup, *, autocast: bool = False, on_host: bool = False, together: bool = False, last: bool = False) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    query_net, key_net = (picture_encoder(s).to(s.device, memory_format=layout) for _ in range(2))
    key_net.load_state_dict(query_net.state_dict())
    key_net.requires_grad_(False)
    optimizer = torch.optim.SGD(query_net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    rows, side, many = s.size(256, 2), s.size(64, 16), s.size(65_536, 8)
    views = [torch.randn(rows, 3, side, side, device=s.device).to(memory_format=layout) for _ in range(2)]
    queue = F.normalize(torch.randn(s.size(128, 8), many, device=s.device), dim=0)
    pointer, place = torch.zeros(1, dtype=torch.long, device=s.device), 0
    zeros = torch.zeros(rows, dtype=torch.long, device=s.device)

    def step() -> None:
        nonlocal place
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            query = F.normalize(query_net(views[0]), dim=1)
            with torch.no_grad():
                if together:
                    torch._foreach_lerp_(list(key_net.parameters()), list(query_net.parameters()), 0.001)
                else:
                    for old, new in zip(key_net.parameters(), query_net.parameters(), strict=True):
                        old.data = old.data * 0.999 + new.data * 0.001
                shuffled = torch.randperm(rows, device=s.device)
                key = F.normalize(key_net(views[1][shuffled]), dim=1)[shuffled.argsort()]
            close = (query * key).sum(1, keepdim=True)
            logits = torch.cat([close, query @ queue.clone()], 1) / 0.07
            loss = F.cross_entropy(logits.float(), zeros)
        loss.backward()
        optimizer.step()
        start = place if on_host else int(pointer)
        queue[:, start : start + rows] = key.T
        if on_host:
            place = (start + rows) % many
        else:
            pointer[0] = (start + rows) % many

    return step


# Kalman filters of many tracks.


def kalman_tracks(s: Setup, *, how: str = "inv", single: bool = False, compiled: bool = False, graphed: bool = False) -> Step:
    tracks, moments, dtype = s.size(2048, 3), s.size(36, 3), torch.float32 if single else torch.float64
    eye = torch.eye(6, device=s.device, dtype=dtype)
    move = eye + torch.diag(torch.full((3,), 0.1, device=s.device, dtype=dtype), 3)
    see, wander, blur = eye[:3], 0.01 * eye, 0.1 * eye[:3, :3]
    seen = torch.randn(moments, tracks, 3, 1, device=s.device, dtype=torch.float64).to(dtype)

    def predicted(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, p = move @ x, move @ p @ move.T + wander
        return x, p, see @ p @ see.T + blur

    def updated(x: Tensor, p: Tensor, z: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        gain = p @ see.T @ inverse
        return x + gain @ (z - see @ x), (eye - gain @ see) @ p

    def by_cross_products(spread: Tensor) -> Tensor:
        a, b, c = spread.unbind(-1)
        rows = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], -2)
        return rows / (a * rows[:, 0]).sum(-1)[:, None, None]

    inverse: Callable[[Tensor], Tensor] = {
        "inv": torch.linalg.inv,
        "inv_ex": lambda spread: torch.linalg.inv_ex(spread).inverse,
        "cross": by_cross_products,
    }[how]
    predict, update = (s.compile(part) if compiled else part for part in (predicted, updated))

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        x, p = torch.zeros(tracks, 6, 1, device=s.device, dtype=dtype), eye.expand(tracks, 6, 6)
        path = []
        for z in seen:
            x, p, spread = predict(x, p)
            x, p = update(x, p, z, inverse(spread))
            path.append(x)
        torch.set_float32_matmul_precision("high")
        return torch.stack(path)

    return capture(step, s) if graphed else step


# A network that writes the weights of small networks, each run by itself.


def written_weights(s: Setup, *, batched: bool = False, graphed: bool = False, autocast: bool = False, fused: bool = False) -> Step:
    many, side, width, latent = s.size(20, 2), s.size(64, 4), s.size(64, 4), s.size(128, 4)
    shapes = [(2, width), (width, width), (width, width), (width, 3)]
    sizes = [part for inner, outer in shapes for part in (inner * outer, outer)]
    writer = _mlp(latent, s.size(256, 4), s.size(256, 4), sum(sizes)).to(s.device)
    codes = nn.Parameter(torch.randn(many, latent, device=s.device))
    optimizer = torch.optim.Adam([*writer.parameters(), codes], lr=1e-4, fused=fused, capturable=graphed and s.cuda)
    line = torch.linspace(-1, 1, side, device=s.device)
    places, pictures = torch.cartesian_prod(line, line), torch.rand(many, side * side, 3, device=s.device)

    def run_each(weights: Tensor) -> Tensor:
        drawn = []
        for row in weights:
            parts, x = row.split(sizes), places
            for i, (inner, outer) in enumerate(shapes):
                x = F.linear(x, parts[2 * i].view(outer, inner), parts[2 * i + 1])
                x = torch.sin(10 * x) if i + 1 < len(shapes) else x
            drawn.append(x)
        return torch.stack(drawn)

    def run_all(weights: Tensor) -> Tensor:
        parts, x = weights.split(sizes, 1), places.expand(many, -1, -1)
        for i, (inner, outer) in enumerate(shapes):
            x = torch.baddbmm(parts[2 * i + 1][:, None], x, parts[2 * i].reshape(many, outer, inner).mT)
            x = torch.sin(10 * x) if i + 1 < len(shapes) else x
        return x

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            weights = 0.1 * writer(codes)
            drawn = (run_all if batched else run_each)(weights)
        F.mse_loss(drawn.float(), pictures).backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Evaluation whose metrics are computed on the host, batch after batch.


def confusion_on_host(s: Setup, *, where: str = "host", pinned: bool = False, autocast: bool = False) -> Step:
    classes, side, width = 21, s.size(256, 8), s.size(64, 4)
    rows = s.size(4, 1)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(s.size(6, 1)):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    model = nn.Sequential(*layers, nn.Conv2d(width, classes, 1)).to(s.device).eval()
    pictures, truth = torch.rand(rows, 3, side, side, device=s.device), torch.randint(classes, (rows, side, side))
    on_gpu, on_host = truth.to(s.device), truth.numpy()
    held = s.pin(torch.zeros(rows, classes, side, side))
    table = np.zeros((classes, classes), dtype=np.int64)

    @torch.no_grad()
    def step() -> float:
        nonlocal table
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(pictures).float()
        if where == "gpu":
            pairs = (on_gpu * classes + logits.argmax(1)).view(-1)
            table = table + torch.bincount(pairs, minlength=classes**2).cpu().numpy().reshape(classes, classes)
        else:
            if where == "argmax":
                guess = logits.argmax(1).to(torch.uint8).cpu().numpy()
            else:
                guess = (held.copy_(logits) if pinned else logits.cpu()).numpy().argmax(1)
            table = table + np.bincount((on_host * classes + guess).ravel(), minlength=classes**2).reshape(classes, classes)
        right = np.diag(table)
        return float(np.mean(right / np.maximum(table.sum(0) + table.sum(1) - right, 1)))

    return step


# Time series cut into patches, a transformer over each channel, FP16 with a scaler.


class ChannelBlock(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.feed = _mlp(dim, 2 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (part(h).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.norm2(x))


def patch_forecast(s: Setup, *, sdpa: bool = False, scaled: bool = True, fused: bool = False) -> Step:
    dim, rows, channels, past, patch = s.size(128, 8), s.size(8, 2), s.size(321, 3), s.size(672, 64), 16
    first = nn.Linear(patch, dim).to(s.device)
    blocks = nn.Sequential(*(ChannelBlock(dim, s.size(16, 2), sdpa) for _ in range(s.size(3, 1)))).to(s.device)
    last = nn.Linear(past // patch * dim, 96).to(s.device)
    parameters = [*first.parameters(), *blocks.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, **({"fused": True} if fused else {"foreach": False}))
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    series, future = torch.randn(rows, past, channels, device=s.device), torch.randn(rows, 96, channels, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, FP16 if scaled and s.cuda else BF16):
            x = series.mT.reshape(-1, past)
            level, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
            x = blocks(first(((x - level) / spread).unfold(1, patch, patch)))
            y = last(x.flatten(1)) * spread + level
        loss = F.mse_loss(y.float().view(rows, channels, 96).mT, future)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


# Tabular data: a dataset that reads each row from a list of dicts.


class Customers(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, many: int) -> None:
        dice = random.Random(0)
        self.cities = {f"city {i}": i for i in range(200)}
        names = list(self.cities)
        self.rows = [{"city": dice.choice(names), "amounts": [dice.random() for _ in range(24)], "left": dice.random() < 0.2} for _ in range(many)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        row: dict[str, Any] = self.rows[at]
        amounts = [math.log1p(amount) for amount in row["amounts"]]
        return {"city": torch.tensor(self.cities[row["city"]]), "amounts": torch.tensor(amounts), "left": torch.tensor(float(row["left"]))}


def customers_left(s: Setup, *, workers: int = 0, once: bool = False, fused: bool = False, autocast: bool = False, pin: bool = False) -> Step:
    data, batch, workers = Customers(s.size(20_000, 40)), s.size(512, 4), workers if s.cuda else 0

    def drawn() -> Iterator[dict[str, Tensor]]:
        whole: dict[str, Tensor] = torch.utils.data.default_collate([data[i] for i in range(len(data))])
        while True:
            for rows in torch.randperm(len(data)).split(batch)[:-1]:
                yield {name: column[rows] for name, column in whole.items()}

    def loaded() -> Iterator[dict[str, Tensor]]:
        loader = torch.utils.data.DataLoader(
            data, batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=pin and s.cuda, persistent_workers=workers > 0
        )
        while True:
            yield from loader

    batches = drawn() if once else loaded()
    width = s.size(2048, 8)
    city, model = nn.Embedding(200, 32).to(s.device), _mlp(56, *[width] * s.size(4, 1), 1).to(s.device)
    optimizer = torch.optim.AdamW([*city.parameters(), *model.parameters()], lr=1e-3, fused=fused)

    def step() -> None:
        row = {name: column.to(s.device, non_blocking=pin) for name, column in next(batches).items()}
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            score = model(torch.cat([city(row["city"]), row["amounts"]], 1))
        F.binary_cross_entropy_with_logits(score.squeeze(1).float(), row["left"]).backward()
        optimizer.step()

    return step


WORKLOADS = (
    written_pair(
        "sac_update", "graph-candidate", "One update of a soft actor-critic on 256 transitions: three losses, three Adams, gradients filled with zeros, targets moved one by one.",
        "the update as a CUDA graph", sac_update, {"graphed": True},
        alone={"optimizer-foreach": {"fused": True}, "optimizer-foreach/targets": {"together": True}, "grad-zeroing": {"zeros": False}, "precision": {"autocast": True}},
        top=("graph-candidate", "launch-gap"),
    ),
    written_pair(
        "guided_patches", "unfused-attention", "Four steps of a guided diffusion transformer in bf16, attention written out; the network is asked twice in each.",
        "scaled_dot_product_attention", guided_patches, {"sdpa": True},
        alone={"low-arithmetic-intensity": {"together": True}, "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "poisson_gradients", "unfused-elementwise", "Forty rounds of conjugate gradients on a grid of 2048 x 2048 in FP64, with a test for the end in each.",
        "torch.compile of a round", poisson_gradients, {"compiled": True},
        alone={"sync-stall": {"every": 20}, "precision": {"single": True}, "graph-candidate": {"every": 0, "graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "utterance_features", "launch-gap", "Spectrograms of 48 utterances that are copied and worked on one by one, then a small encoder.",
        "pad them first and compute all at once", utterance_features, {"together": True},
        alone={"memcpy": {"pinned": True}, "memcpy/packed": {"packed": True}, "precision/tf32": {"tf32": True}}, top=("launch-gap", "memcpy"),
    ),
    written_pair(
        "growing_beams", "launch-gap", "Beam search of 12 words whose cache grows by torch.cat, is put in order layer by layer, and whose words are read by .tolist().",
        "one cache for all layers", growing_beams, {"one_cache": True},
        alone={"sync-stall": {"lists": False}, "unfused-attention": {"sdpa": True}, "precision": {"autocast": True}}, top=("launch-gap", "sync-stall"),
    ),
    written_pair(
        "retrieve_rerank", "launch-gap", "The 100 nearest of 400,000 documents in FP32, a re-ranker query by query, and memory given back after each request.",
        "re-rank all queries at once", retrieve_rerank, {"batched": True},
        alone={"sync-stall": {"late": True}, "allocator": {"empties": False}, "precision": {"half": True}, "low-arithmetic-intensity": {"queries": 64}},
        shared={"low-arithmetic-intensity": 4.0}, top=("launch-gap", "sync-stall", "allocator"),
    ),
    written_pair(
        "edge_convolutions", "memory-layout", "Training of edge convolutions over 20 neighbours in 32 clouds of 1024 points, FP32; edges are turned round to NCHW.",
        "leave the edges as they lie, channels last", edge_convolutions, {"last": True},
        alone={"precision": {"autocast": True}, "unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "ellipse_picture", "unfused-elementwise", "A picture of 256 x 256 fitted by 384 blurred ellipses, all pixels against all; the loss is read in each step.",
        "torch.compile of the rendering", ellipse_picture, {"compiled": True},
        alone={
            "sync-stall": {"read": False}, "sync-stall/cumprod": {"logs": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True},
        }, gpu_bound=True,
    ),
    written_pair(
        "low_rank_tuning", "dtype-casts", "Low-rank adaptation of two bf16 blocks with adapters in FP32; gradients of two small batches are added and clipped by hand.",
        "adapters in bf16 where they are multiplied", low_rank_tuning, {"widen": False},
        alone={"sync-stall": {"by_hand": False}, "unfused-norm": {"rms": True}, "low-arithmetic-intensity": {"micro": 1}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "quantisation_aware", "unfused-elementwise", "Training of six convolutions in FP32 whose weights and inputs are rounded to 256 levels; each range is checked.",
        "torch.compile of the rounding", quantisation_aware, {"compiled": True},
        alone={"sync-stall": {"checked": False}, "memory-layout": {"last": True}, "precision": {"autocast": True}}, gpu_bound=True,
    ),
    written_pair(
        "queue_contrast", "precision", "Contrast of 256 pictures against a queue of 65,536 keys in FP32; the queue's pointer is read from the GPU.",
        "bf16 autocast", queue_contrast, {"autocast": True},
        alone={"sync-stall": {"on_host": True}, "optimizer-foreach": {"together": True}, "memory-layout": {"last": True}}, gpu_bound=True,
    ),
    written_pair(
        "kalman_tracks", "sync-stall", "Kalman filters of 2048 tracks over 36 moments in FP64; torch.linalg.inv checks each inverse.",
        "torch.linalg.inv_ex", kalman_tracks, {"how": "inv_ex"},
        alone={
            "graph-candidate": {"how": "cross", "graphed": True}, "launch-gap": {"compiled": True}, "launch-gap/cross": {"how": "cross"},
            "precision": {"single": True},
        }, top=("sync-stall", "launch-gap", "graph-candidate"),
    ),
    written_pair(
        "written_weights", "launch-gap", "Training of a network that writes the weights of 20 small networks, run one after another.",
        "baddbmm over all of them", written_weights, {"batched": True},
        alone={"graph-candidate": {"graphed": True}, "precision": {"autocast": True}, "optimizer-foreach": {"fused": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "confusion_on_host", "host-bound", "Evaluation of a segmentation: 22 MB of logits are fetched, argmax and the confusion table are numpy's.",
        "the table on the GPU", confusion_on_host, {"where": "gpu"},
        alone={"host-bound/argmax": {"where": "argmax"}, "memcpy": {"pinned": True}, "precision": {"autocast": True}}, top=("host-bound", "memcpy"),
    ),
    written_pair(
        "patch_forecast", "unfused-attention", "Training on 321 channels cut into patches, attention written out, FP16 with a GradScaler, AdamW(foreach=False).",
        "scaled_dot_product_attention", patch_forecast, {"sdpa": True},
        alone={"amp-scaler-sync": {"scaled": False}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "customers_left", "data-loading", "Rows of a list of dicts made into tensors one by one in the training process, 512 a batch.",
        "make the tensors once", customers_left, {"once": True},
        alone={"data-loading/workers": {"workers": 4}, "memcpy": {"pin": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True}},
    ),
)  # fmt: skip
