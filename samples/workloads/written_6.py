"""Programs written to test predictions, set F: laboratories, services and product teams, each with one or two clear faults.

Each timed fix is what the advice of its rule says and nothing else; global switches are set in the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


# Protein structure: triangles of a pair representation.


class PairNorm(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.library = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        variance = (wide - mean).pow(2).mean(-1, keepdim=True)
        return ((wide - mean) / torch.sqrt(variance + 1e-5) * self.weight.float() + self.bias.float()).to(x.dtype)


class TriangleAttention(nn.Module):
    def __init__(self, dim: int, heads: int, ending: bool, fused: bool, library: bool) -> None:
        super().__init__()
        self.heads, self.ending, self.fused = heads, ending, fused
        self.norm = PairNorm(dim, library)
        self.qkv, self.bias = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, heads, bias=False)
        self.gate, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, pair: Tensor) -> Tensor:
        x = self.norm(pair.transpose(0, 1) if self.ending else pair)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        bias = self.bias(x).permute(2, 0, 1).contiguous()[None]
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q * q.shape[-1] ** -0.5 @ k.mT + bias
            y = scores.float().softmax(-1).to(v.dtype) @ v
        y = self.out(self.gate(x).sigmoid() * y.transpose(1, 2).flatten(2))
        return y.transpose(0, 1) if self.ending else y


class TriangleProduct(nn.Module):
    def __init__(self, dim: int, library: bool) -> None:
        super().__init__()
        self.norm, self.after = PairNorm(dim, library), PairNorm(dim, library)
        self.sides, self.gate, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, pair: Tensor) -> Tensor:
        x = self.norm(pair)
        left, right = self.sides(x).chunk(2, -1)
        return self.gate(x).sigmoid() * self.out(self.after(torch.einsum("ikc,jkc->ijc", left, right)))


def triangle_pairs(s: Setup, *, fused: bool = False, library: bool = False, graphed: bool = False) -> Step:
    residues, dim, heads = s.size(384, 8), s.size(128, 8), s.size(4, 2)
    parts: list[nn.Module] = []
    for _ in range(s.size(3, 1)):
        parts += [TriangleProduct(dim, library), *(TriangleAttention(dim, heads, ending, fused, library) for ending in (False, True))]
        parts += [nn.Sequential(PairNorm(dim, library), _mlp(dim, 4 * dim, dim))]
    model = nn.ModuleList(parts).to(s.device, BF16).eval().requires_grad_(False)
    start = torch.randn(residues, residues, dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        pair = start
        for part in model:
            pair = pair + part(pair)
        return pair

    return capture(step, s) if graphed else step


# Language models: preferences learned directly, with a frozen reference.


class Speaker(nn.Module):
    def __init__(self, words: int, length: int, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words, self.places, self.heads = nn.Embedding(words, dim), nn.Embedding(length, dim), heads
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth + 1))
        self.feeds = nn.ModuleList(_mlp(dim, 4 * dim, dim, act=nn.GELU) for _ in range(depth))
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for i, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feeds, strict=True)):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv(self.norms[2 * i](x)).chunk(3, -1))
            x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def log_likelihood(logits: Tensor, ids: Tensor, answer: Tensor, library: bool) -> Tensor:
    """Of each answer, from the logits of every word before."""
    logits, ids = logits[:, :-1].float(), ids[:, 1:]
    if library:
        each = -F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
    else:
        shifted = logits - logits.amax(-1, keepdim=True)
        log_p = shifted - shifted.exp().sum(-1, keepdim=True).log()
        each = log_p.gather(-1, ids[..., None]).squeeze(-1)
    return (each * answer[:, 1:]).sum(1)


def preference_pairs(s: Setup, *, library: bool = False, fused: bool = False, log: bool = True) -> Step:
    words, length, pairs, dim = s.size(32000, 16), s.size(512, 6), s.size(8, 2), s.size(768, 8)
    with s.device:
        policy, reference = (Speaker(words, length, dim, s.size(12, 2), s.size(4, 1)) for _ in range(2))
    reference.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, **({"fused": True} if fused else {"foreach": True}))
    ids = torch.randint(words, (2 * pairs, length), device=s.device)
    answer = (torch.arange(length, device=s.device) >= length // 4).float().expand(2 * pairs, -1)
    history: list[tuple[float, ...]] = []

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            with torch.no_grad():
                known = log_likelihood(reference(ids), ids, answer, library)
            said = log_likelihood(policy(ids), ids, answer, library)
        chosen, rejected = (said - known).chunk(2)
        margin = chosen - rejected
        loss = -F.logsigmoid(0.1 * margin).mean()
        loss.backward()
        optimizer.step()
        if log:
            history.append((loss.item(), margin.mean().item(), (margin > 0).float().mean().item()))

    return step


# Quantum computing: a circuit on the whole vector of amplitudes.


def spin_circuit(s: Setup, *, rearranged: bool = True, checked: bool = True, where: str = "host") -> Step:
    spins, depth = s.size(24, 4), s.size(2, 1)
    angles = np.random.default_rng(0).uniform(0.0, math.pi, (depth, spins, 2))
    placed = torch.tensor(angles, dtype=torch.float32, device=s.device)
    ones = torch.arange(2**spins, device=s.device)
    flips = torch.zeros_like(ones)
    for i in range(spins - 1):  # a controlled Z between neighbours
        flips += ones >> i & ones >> i + 1 & 1
    signs = (1.0 - 2.0 * (flips % 2)).float().view((2,) * spins)
    del ones, flips
    zero = torch.zeros((2,) * spins, dtype=torch.complex64, device=s.device)
    zero[(0,) * spins] = 1.0

    def all_gates() -> Tensor:
        cos, sin, turn = torch.cos(placed[..., 0] / 2), torch.sin(placed[..., 0] / 2), torch.polar(torch.ones_like(placed[..., 1]), placed[..., 1] / 2)
        return torch.stack([turn.conj() * cos, -turn.conj() * sin, turn * sin, turn * cos], -1).view(depth, spins, 2, 2)

    def one_gate(a: float, b: float) -> Tensor:
        cos, sin, turn = math.cos(a / 2), math.sin(a / 2), complex(math.cos(b / 2), math.sin(b / 2))
        back = turn.conjugate()
        return torch.tensor([[back * cos, -back * sin], [turn * sin, turn * cos]], dtype=torch.complex64).to(s.device)

    @torch.no_grad()
    def step() -> Tensor:
        state = zero
        gates = all_gates() if where == "gpu" else None
        for layer in range(depth):
            for spin in range(spins):
                gate = one_gate(*angles[layer, spin]) if gates is None else gates[layer, spin]
                state = torch.tensordot(gate, state, dims=([1], [spin])).movedim(0, spin)
                if rearranged:
                    state = state.contiguous()
            state = state * signs
            if checked and abs(torch.linalg.vector_norm(state).item() - 1.0) > 1e-2:
                raise FloatingPointError
        return (state.abs().square() * signs).sum()

    return step


# Graphics: a radiance field seen along rays.


def waves(x: Tensor, octaves: int) -> Tensor:
    parts = [x]
    for octave in range(octaves):
        parts += [torch.sin(2.0**octave * x), torch.cos(2.0**octave * x)]
    return torch.cat(parts, -1)


def along_rays(density: Tensor, colour: Tensor, depths: Tensor) -> Tensor:
    apart = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], 1)
    alpha = 1.0 - torch.exp(-F.relu(density) * apart)
    open_ = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], 1), 1)[:, :-1]
    seen = alpha * open_
    picture = (seen[..., None] * torch.sigmoid(colour)).sum(1)
    return picture + (1.0 - seen.sum(1, keepdim=True))


class Field(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _mlp(63, *[width] * 5), _mlp(width + 63, *[width] * 3)
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.colour = _mlp(width + 27, width // 2, 3)

    def forward(self, at: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(at))
        x = F.relu(self.second(torch.cat([x, at], -1)))
        return self.density(x).squeeze(-1), self.colour(torch.cat([self.feature(x), towards], -1))


def ray_fields(s: Setup, *, autocast: bool = False, compiled: bool = False, fused: bool = False) -> Step:
    rays, samples = s.size(4096, 4), s.size(96, 6)
    field = Field(s.size(256, 8)).to(s.device)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4, **({"fused": True} if fused else {"foreach": True}))
    origin, pixels = torch.randn(rays, 3, device=s.device), torch.rand(rays, 3, device=s.device)
    towards = F.normalize(torch.randn(rays, 3, device=s.device), dim=1)
    even = torch.linspace(2.0, 6.0, samples, device=s.device)
    encode, render = (s.compile(waves), s.compile(along_rays)) if compiled else (waves, along_rays)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        depths = even + torch.rand(rays, samples, device=s.device) * (4.0 / samples)
        points = origin[:, None] + depths[..., None] * towards[:, None]
        at, looking = encode(points, 10), encode(towards, 4)[:, None].expand(-1, samples, -1)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            density, colour = field(at, looking)
        loss = F.mse_loss(render(density.float(), colour.float(), depths), pixels)
        loss.backward()
        optimizer.step()
        torch.set_float32_matmul_precision("high")

    return step


# Proteins written residue by residue by a wide decoder, FP32.


class Writer(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int, rows: int, length: int) -> None:
        super().__init__()
        self.heads, self.residues = heads, nn.Embedding(32, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim, bias=False) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(depth))
        self.feeds = nn.ModuleList(_mlp(dim, 4 * dim, dim, act=nn.GELU) for _ in range(depth))
        self.head = nn.Linear(dim, 32)
        self.register_buffer("cache", torch.randn(depth, 2, rows, heads, length, dim // heads))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.residues(ids)
        for i, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feeds, strict=True)):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv(self.norms[2 * i](x)).chunk(3, -1))
            self.cache[i, 0, :, :, -1:] = k
            self.cache[i, 1, :, :, -1:] = v
            x = x + out(F.scaled_dot_product_attention(q, self.cache[i, 0], self.cache[i, 1]).transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * i + 1](x))
        return self.head(x).argmax(-1)


def protein_writer(s: Setup, *, rows: int = 4, autocast: bool = False, graphed: bool = False) -> Step:
    with s.device:
        model = Writer(s.size(4096, 16), s.size(32, 2), s.size(4, 1), s.size(rows, min(rows, 4)), s.size(256, 8)).eval().requires_grad_(False)
        ids = torch.randint(32, (s.size(rows, min(rows, 4)), 1))

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return model(ids)

    return capture(step, s) if graphed else step


# A service that reads lines of scanned text.


class LineReader(nn.Module):
    def __init__(self, width: int, letters: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer, pool in ((1, width, (2, 2)), (width, 2 * width, (2, 2)), (2 * width, 4 * width, (2, 1)), (4 * width, 4 * width, (2, 1))):
            layers += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(pool)]
        self.see = nn.Sequential(*layers)
        self.read = nn.LSTM(8 * width, 4 * width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8 * width, letters)

    def forward(self, lines: Tensor) -> Tensor:
        seen = self.see(lines).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.read(seen)[0]).softmax(-1)


LETTERS = "\0" + "".join(chr(32 + i) for i in range(95))  # the first is no letter at all


def read_in_python(chances: Tensor) -> list[tuple[str, float]]:
    answers = []
    for frames in chances.cpu().numpy():
        text, sure, before = "", 1.0, 0
        for frame in frames:
            code = int(frame.argmax())
            if code not in (0, before):
                text += LETTERS[code]
                sure *= float(frame[code])
            before = code
        answers.append((text, sure))
    return answers


def read_on_gpu(chances: Tensor) -> list[tuple[str, float]]:
    most, best = chances.max(-1)
    kept = (best != 0) & (best != F.pad(best[:, :-1], (1, 0)))
    codes = torch.where(kept, best + 31, 0).to(torch.uint8)
    sure = torch.where(kept, most, 1.0).double().prod(1)
    texts = [row.tobytes().replace(b"\0", b"").decode("latin-1") for row in codes.cpu().numpy()]
    return list(zip(texts, sure.tolist(), strict=True))


def line_reader(s: Setup, *, on_gpu: bool = False, ahead: bool = False, last: bool = False) -> Step:
    lines, height, width = s.size(64, 2), 32, s.size(512, 16)
    layout = torch.channels_last if last else torch.contiguous_format
    model = LineReader(s.size(32, 2), len(LETTERS)).to(s.device).to(memory_format=layout).eval().requires_grad_(False)
    scans = [(torch.randint(256, (lines, 1, height, width), dtype=torch.uint8),) for _ in range(3)]
    coming = Prefetcher([(s.pin(scan),) for (scan,) in scans], s) if ahead else None
    decode, turn = read_on_gpu if on_gpu else read_in_python, [0]

    @torch.no_grad()
    def step() -> list[tuple[str, float]]:
        if coming is not None:
            (scan,) = coming.next()
        else:
            turn[0] = (turn[0] + 1) % len(scans)
            scan = scans[turn[0]][0].to(s.device)
        return decode(model((1.0 - scan.float() / 255.0).to(memory_format=layout)))

    return step


# A robot's arm: two cameras and the joints become the next fifty moves.


class Arm(nn.Module):
    def __init__(self, width: int, dim: int, heads: int, moves: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        for inner, outer in ((width, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, dim)):
            layers += [nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
            layers += [nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
        self.eyes, self.joints, self.moves = nn.Sequential(*layers), nn.Linear(14, dim), nn.Parameter(torch.randn(1, moves, dim))
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, batch_first=True) for _ in range(4))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(dim, heads, 4 * dim, 0.0, batch_first=True) for _ in range(3))
        self.head = nn.Linear(dim, 14)

    def forward(self, cameras: Tensor, joints: Tensor) -> Tensor:
        seen = self.eyes(cameras).flatten(2).transpose(1, 2).reshape(1, -1, self.moves.shape[-1])
        memory = torch.cat([self.joints(joints)[:, None], seen], 1)
        for layer in self.encoder:
            memory = layer(memory)
        moves = self.moves
        for layer in self.decoder:
            moves = layer(moves, memory)
        return self.head(moves)


def arm_policy(s: Setup, *, compiled: bool = False, graphed: bool = False, autocast: bool = False) -> Step:
    model = Arm(s.size(32, 4), s.size(256, 16), s.size(8, 2), s.size(50, 4)).to(s.device).eval().requires_grad_(False)
    cameras, joints = torch.rand(2, 3, s.size(240, 32), s.size(320, 32), device=s.device), torch.rand(1, 14, device=s.device)
    policy = s.compile(model, mode="reduce-overhead") if compiled else model

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return policy(cameras, joints)

    return capture(step, s) if graphed else step


# Recommendation: what comes next in a basket, with wrong goods drawn by the dataset.


class Baskets(torch.utils.data.Dataset[tuple[Tensor, Tensor, Tensor]]):
    def __init__(self, goods: int, length: int) -> None:
        self.goods, self.length, self.dice = goods, length, np.random.default_rng(0)
        self.bought = self.dice.integers(1, goods, (2048, length + 1))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor, Tensor]:
        row = self.bought[at % len(self.bought)]
        known, wrong = set(row.tolist()), np.zeros(self.length, dtype=np.int64)
        for i in range(self.length):
            other = int(self.dice.integers(1, self.goods))
            while other in known:
                other = int(self.dice.integers(1, self.goods))
            wrong[i] = other
        return torch.as_tensor(row[:-1]), torch.as_tensor(row[1:]), torch.from_numpy(wrong)


class NextGoods(nn.Module):
    def __init__(self, goods: int, length: int, dim: int) -> None:
        super().__init__()
        self.goods, self.places = nn.Embedding(goods, dim), nn.Parameter(torch.zeros(length, dim))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, 2, dim, 0.2, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, row: Tensor) -> Tensor:
        x = self.goods(row) * self.places.shape[1] ** 0.5 + self.places
        for block in self.blocks:
            x = block(x, src_mask=self.later, is_causal=True)
        return self.norm(x)


def basket_goods(s: Setup, *, workers: int = 0, autocast: bool = False, fused: bool = False) -> Step:
    goods, length, workers = s.size(20_000, 50), s.size(50, 4), workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        Baskets(goods, length), s.size(128, 2), shuffle=True, num_workers=workers, pin_memory=workers > 0, persistent_workers=workers > 0, drop_last=True
    )
    model = NextGoods(goods, length, s.size(64, 4)).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), **({"fused": True} if fused else {"foreach": True}))

    def endless() -> Iterator[list[Tensor]]:
        while True:
            yield from loader

    batches = endless()

    def step() -> None:
        row, right, wrong = (part.to(s.device) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            x = model(row)
            good, bad = (x * model.goods(right)).sum(-1), (x * model.goods(wrong)).sum(-1)
        loss = F.binary_cross_entropy_with_logits(good.float(), torch.ones_like(good, dtype=torch.float32))
        loss = loss + F.binary_cross_entropy_with_logits(bad.float(), torch.zeros_like(bad, dtype=torch.float32))
        loss.backward()
        optimizer.step()

    return step


# Medical physics: light scattered in tissue.


def deflected(towards: Tensor, dice: Tensor, g: float) -> Tensor:
    """New directions by Henyey and Greenstein's law."""
    part = (1.0 - g * g) / (1.0 - g + 2.0 * g * dice[1])
    cos = ((1.0 + g * g - part * part) / (2.0 * g)).clamp(-1.0, 1.0)
    sin, around = torch.sqrt(1.0 - cos * cos), 2.0 * math.pi * dice[2]
    x, y, z = towards.unbind(1)
    flat = torch.sqrt((1.0 - z * z).clamp(min=1e-8))
    a, b = torch.cos(around), torch.sin(around)
    turned = torch.stack([sin * (x * z * a - y * b) / flat + x * cos, sin * (y * z * a + x * b) / flat + y * cos, -sin * a * flat + z * cos], 1)
    upright = torch.stack([sin * a, sin * b, cos * torch.sign(z)], 1)
    turned = torch.where((z.abs() > 0.9999)[:, None], upright, turned)
    return turned / turned.norm(dim=1, keepdim=True)


def photon_walk(s: Setup, *, masks: bool = True, on_gpu: bool = False, compiled: bool = False) -> Step:
    photons, events, bins = s.size(1 << 14, 16), s.size(20, 3), 200
    draw = np.random.default_rng(0)
    turn = s.compile(deflected) if compiled else deflected

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        place, towards = torch.zeros(photons, 3, device=s.device), torch.zeros(photons, 3, device=s.device)
        towards[:, 2] = 1.0
        weight, alive = torch.ones(photons, device=s.device), torch.ones(photons, dtype=torch.bool, device=s.device)
        absorbed, escaped = torch.zeros(bins, device=s.device), torch.zeros((), device=s.device)
        for _ in range(events):
            if masks and not alive.any():
                break
            dice = torch.rand(3, photons, device=s.device) if on_gpu else torch.from_numpy(draw.random((3, photons), dtype=np.float32)).to(s.device)
            path = -torch.log(dice[0] + 1e-7)[:, None] / 100.0 * towards
            if masks:
                place[alive] += path[alive]
            else:
                place = torch.where(alive[:, None], place + path, place)
            out = alive & (place[:, 2] < 0.0)
            alive = alive & ~out
            depth = (place[:, 2] * 400.0).long().clamp(0, bins - 1)
            if masks:
                escaped += weight[out].sum()
                absorbed.index_add_(0, depth[alive], 0.1 * weight[alive])
                weight[alive] *= 0.9
            else:
                escaped += torch.where(out, weight, 0.0).sum()
                absorbed.index_add_(0, depth, torch.where(alive, 0.1 * weight, 0.0))
                weight = torch.where(alive, 0.9 * weight, weight)
            towards = turn(towards, dice, 0.9)
        return absorbed, escaped

    return step


# Optics: the phases of a hologram that shows a given picture.


def as_wanted(far: Tensor, picture: Tensor) -> Tensor:
    return picture * far / (far.abs() + 1e-8)


def only_phase(near: Tensor, light: Tensor) -> Tensor:
    return light * torch.exp(1j * near.angle())


def phase_hologram(s: Setup, *, graphed: bool = False, compiled: bool = False) -> Step:
    side, rounds = s.size(384, 16), s.size(60, 2)
    across = torch.linspace(-1.0, 1.0, side, device=s.device)
    light = torch.exp(-2.0 * (across[:, None] ** 2 + across**2))
    picture, phase = torch.rand(side, side, device=s.device), 2.0 * math.pi * torch.rand(side, side, device=s.device)
    start = torch.polar(light, phase)
    wanted, kept = (s.compile(as_wanted), s.compile(only_phase)) if compiled else (as_wanted, only_phase)

    @torch.no_grad()
    def step() -> Tensor:
        near = start
        for _ in range(rounds):
            far = torch.fft.fft2(near, norm="ortho")
            near = kept(torch.fft.ifft2(wanted(far, picture), norm="ortho"), light)
        return (near.angle() / (2.0 * math.pi) * 255.0).to(torch.int16)

    return capture(step, s) if graphed else step


WORKLOADS = (
    written_pair(
        "triangle_pairs", "unfused-attention", "Triangles of a protein's 384 x 384 pairs in bf16; attention with a bias and layer norms are written out.",
        "F.scaled_dot_product_attention with the bias as its mask", triangle_pairs, {"fused": True},
        alone={"unfused-norm": {"library": True}, "graph-candidate": {"graphed": True}}, gpu_bound=True,
    ),
    written_pair(
        "preference_pairs", "unfused-norm", "Direct preference optimisation over 32,000 words in bf16 autocast; log_softmax is written out in FP32, twice.",
        "F.cross_entropy(reduction='none')", preference_pairs, {"library": True},
        alone={"optimizer-foreach": {"fused": True}, "sync-stall": {"log": False}}, gpu_bound=True,
    ),
    written_pair(
        "spin_circuit", "memory-layout", "A circuit on 24 spins; after each gate the amplitudes are put back in order by contiguous().",
        "no contiguous()", spin_circuit, {"rearranged": False},
        alone={"sync-stall": {"checked": False}, "memcpy": {"where": "gpu"}}, gpu_bound=True,
    ),
    written_pair(
        "ray_fields", "precision", "Training of a radiance field in FP32 without TF32 on 4096 rays of 96 points.",
        "bf16 autocast of the network", ray_fields, {"autocast": True},
        alone={"unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}}, gpu_bound=True,
    ),
    written_pair(
        "protein_writer", "low-arithmetic-intensity", "Four wide layers in FP32 write one residue of four proteins a call.",
        "32 proteins a call", protein_writer, {"rows": 32},
        alone={"precision": {"autocast": True}, "graph-candidate": {"graphed": True}}, requests=8.0, gpu_bound=True,
    ),
    written_pair(
        "line_reader", "host-bound", "A convolutional and recurrent network reads 64 lines; all chances are fetched and decoded letter by letter in Python.",
        "decode on the GPU", line_reader, {"on_gpu": True},
        alone={"memcpy": {"ahead": True}, "memory-layout": {"last": True}}, with_stack=True,
    ),
    written_pair(
        "arm_policy", "launch-gap", "A robot's policy for two cameras in FP32, one call at a time: convolutions, four encoder and three decoder layers.",
        "torch.compile(mode='reduce-overhead')", arm_policy, {"compiled": True},
        alone={"graph-candidate": {"graphed": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "basket_goods", "data-loading", "Training of a small transformer on baskets; the dataset draws wrong goods one by one in the training process.",
        "num_workers=8, persistent_workers and pin_memory", basket_goods, {"workers": 8},
        alone={"precision": {"autocast": True}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "photon_walk", "sync-stall", "16,384 photons scattered twenty times: boolean masks, `if not alive.any()`, and random numbers drawn by numpy.",
        "torch.where and no any()", photon_walk, {"masks": False},
        alone={"memcpy": {"on_gpu": True}, "unfused-elementwise": {"compiled": True}}, top=("sync-stall", "launch-gap", "memcpy", "host-bound"),
    ),
    written_pair(
        "phase_hologram", "graph-candidate", "Sixty rounds of Gerchberg and Saxton's algorithm on a hologram of 384 x 384.",
        "the step as a CUDA graph", phase_hologram, {"graphed": True},
        alone={"unfused-elementwise": {"compiled": True}}, top=("launch-gap", "graph-candidate"),
    ),
)  # fmt: skip
