"""Programs written to test predictions, set C: other fields and other habits than the sets before, none known to the rules' authors.

As in the sets before, one change between the sides, further changes timed alone, and global switches set in the step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


# Tabular data: a table for each categorical column.


class Columns(nn.Module):
    def __init__(self, columns: int, rows: int, dim: int, together: bool) -> None:
        super().__init__()
        self.together = together
        if together:
            self.table = nn.Embedding(columns * rows, dim)
            self.register_buffer("offsets", torch.arange(columns) * rows)
        else:
            self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(columns))
        layer = nn.TransformerEncoderLayer(dim, 8, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 1)

    def forward(self, rows: Tensor) -> Tensor:
        if self.together:
            x = self.table(rows + self.offsets)
        else:
            x = torch.stack([table(rows[:, i]) for i, table in enumerate(self.tables)], 1)
        return self.head(self.encoder(x).mean(1)).squeeze(1)


def column_tables(s: Setup, *, together: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    columns, rows = s.size(40, 4), s.size(1000, 10)
    model = Columns(columns, rows, s.size(128, 16), together).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": False}))
    batch = torch.randint(rows, (s.size(512, 4), columns), device=s.device)
    target = torch.rand(len(batch), device=s.device).round()

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            score = model(batch)
        F.binary_cross_entropy_with_logits(score.float(), target).backward()
        optimizer.step()

    return step


# Recommendation: large tables under Adam.


def click_tables(s: Setup, *, adam: str = "single", pairs: bool = False, autocast: bool = False) -> Step:
    fields, dim, rows = s.size(8, 3), s.size(64, 8), s.size(450_000, 20)
    tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields)).to(s.device)
    top = _mlp(fields * (fields - 1) // 2, s.size(512, 8), s.size(256, 8), 1).to(s.device)
    how = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[adam]
    optimizer = torch.optim.Adam([*tables.parameters(), *top.parameters()], lr=1e-3, **how)
    ids = torch.randint(rows, (s.size(8192, 4), fields), device=s.device)
    target = torch.rand(len(ids), 1, device=s.device).round()
    upper = torch.triu_indices(fields, fields, 1, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        vectors = [table(ids[:, i]) for i, table in enumerate(tables)]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            if pairs:
                stacked = torch.stack(vectors, 1)
                crossed = (stacked @ stacked.mT)[:, upper[0], upper[1]]
            else:
                crossed = torch.stack([(vectors[i] * vectors[j]).sum(1) for i in range(fields) for j in range(i + 1, fields)], 1)
            score = top(crossed)
        F.binary_cross_entropy_with_logits(score.float(), target).backward()
        optimizer.step()

    return step


# Time series: an LSTM cell called hour by hour.


class HourByHour(nn.Module):
    def __init__(self, inputs: int, width: int, whole: bool) -> None:
        super().__init__()
        self.whole, self.width = whole, width
        self.rnn: nn.Module = nn.LSTM(inputs, width, batch_first=True) if whole else nn.LSTMCell(inputs, width)
        self.head = nn.Linear(width, 24)

    def forward(self, x: Tensor) -> Tensor:
        if self.whole:
            return self.head(self.rnn(x)[0][:, -1])
        h = c = x.new_zeros(len(x), self.width)
        for hour in range(x.shape[1]):
            h, c = self.rnn(x[:, hour], (h, c))
        return self.head(h)


def load_forecast(s: Setup, *, whole: bool = False, autocast: bool = False, graphed: bool = False) -> Step:
    model = HourByHour(9, s.size(256, 8), whole).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True)
    x, y = torch.randn(s.size(256, 2), s.size(120, 5), 9, device=s.device), torch.randn(s.size(256, 2), 24, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.l1_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Time series: windows cut one by one.


class Windows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, series: NDArray[np.float32], past: int, future: int) -> None:
        self.series, self.past, self.future = series, past, future

    def __len__(self) -> int:
        return len(self.series) - self.past - self.future

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        cut = at + self.past
        return torch.from_numpy(self.series[at:cut]), torch.from_numpy(self.series[cut : cut + self.future])


def window_batches(s: Setup, *, workers: int = 0, pin: bool = False, on_gpu: bool = False, fused: bool = False) -> Step:
    past, future, channels, batch = s.size(336, 8), s.size(96, 4), 7, s.size(512, 4)
    series = np.random.default_rng(0).standard_normal((s.size(300_000, 200), channels)).astype(np.float32)
    data, workers = Windows(series, past, future), workers if s.cuda else 0

    def drawn() -> Iterator[tuple[Tensor, Tensor]]:
        whole, reach = torch.from_numpy(series).to(s.device), torch.arange(past + future, device=s.device)
        while True:
            rows = whole[torch.randint(len(data), (batch, 1), device=s.device) + reach]
            yield rows[:, :past], rows[:, past:]

    def loaded() -> Iterator[tuple[Tensor, Tensor]]:
        loader = torch.utils.data.DataLoader(
            data, batch, shuffle=True, num_workers=workers, pin_memory=pin and s.cuda, drop_last=True, persistent_workers=workers > 0
        )
        while True:
            yield from loader

    batches = drawn() if on_gpu else loaded()
    model = _mlp(past, s.size(1024, 8), s.size(1024, 8), future, act=nn.GELU).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        x, y = (part.to(s.device, non_blocking=pin) for part in next(batches))
        optimizer.zero_grad()
        level = x.mean(1, keepdim=True)
        F.mse_loss(model((x - level).mT).mT + level, y).backward()
        optimizer.step()

    return step


# A physics-informed network for Burgers' equation.


def burgers_pinn(s: Setup, *, graphed: bool = False, fused: bool = False, tf32: bool = False) -> Step:
    width = s.size(64, 8)
    net = _mlp(2, *[width] * s.size(8, 2), 1, act=nn.Tanh).to(s.device)
    how: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=graphed and s.cuda, **how)
    points = torch.rand(s.size(8192, 8), 2, device=s.device)
    start = torch.rand(s.size(512, 4), 2, device=s.device) * torch.tensor([2.0, 0.0], device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad()
        x = points[:, :1].clone().requires_grad_(True)
        t = points[:, 1:].clone().requires_grad_(True)
        u = net(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), [x, t], create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        residual = u_t + u * u_x - 0.01 / math.pi * u_xx
        loss = residual.square().mean() + (net(start) + torch.sin(math.pi * start[:, :1])).square().mean()
        loss.backward()
        optimizer.step()
        torch.set_float32_matmul_precision("high")

    return capture(step, s) if graphed else step


# Audio: spectrograms masked clip by clip.


def mask_spectrograms(s: Setup, *, masks: str = "items", autocast: bool = False) -> Step:
    clips, length, width = s.size(48, 2), s.size(32000, 2000), s.size(48, 4)
    waves, labels = torch.randn(clips, length, device=s.device), torch.randint(35, (clips,), device=s.device)
    window, bank = torch.hann_window(400, device=s.device), torch.rand(201, 80, device=s.device)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(s.size(3, 1)):
        layers += [nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 35)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    dice = random.Random(0)

    def masked(mel: Tensor) -> Tensor:
        if masks == "together":
            first = torch.randint(60, (clips, 1), device=s.device)
            band = torch.arange(80, device=s.device)
            hidden = (band >= first) & (band < first + torch.randint(1, 16, (clips, 1), device=s.device))
            return mel.masked_fill(hidden[:, :, None], 0.0)
        for i in range(clips):
            if masks == "items":
                first, many = int(torch.randint(60, (1,), device=s.device).item()), int(torch.randint(1, 16, (1,), device=s.device).item())
            else:
                first, many = dice.randrange(60), dice.randrange(1, 16)
            mel[i, first : first + many] = 0.0
        return mel

    def step() -> None:
        optimizer.zero_grad()
        spectrum = torch.stft(waves, 400, 160, window=window, return_complex=True).abs().square()
        mel = torch.log(bank.T @ spectrum + 1e-6)
        mel = masked(mel)[:, None]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(mel), labels)
        loss.backward()
        optimizer.step()

    return step


# Segmentation: soft Dice, focal cross-entropy and a one-hot target.


def dice_focal(logits: Tensor, target: Tensor) -> Tensor:
    probabilities = logits.softmax(1)
    hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
    overlap = (probabilities * hot).sum((0, 2, 3))
    dice = 1 - (2 * overlap + 1) / (probabilities.sum((0, 2, 3)) + hot.sum((0, 2, 3)) + 1)
    focal = -((1 - probabilities) ** 2 * hot * torch.log(probabilities + 1e-8)).sum(1).mean()
    return dice.mean() + focal


def segmentation_loss(s: Setup, *, compiled: bool = False, widen: bool = True, last: bool = False) -> Step:
    classes, height = s.size(19, 3), s.size(512, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    head = nn.Conv2d(s.size(64, 4), classes, 1).to(s.device, memory_format=layout)
    features = torch.randn(s.size(8, 1), s.size(64, 4), height, height, device=s.device).to(memory_format=layout)
    target = torch.randint(classes, (len(features), height, height), device=s.device)
    criterion = s.compile(dice_focal) if compiled else dice_focal

    def step() -> None:
        head.zero_grad()
        with torch.autocast(s.device.type, BF16):
            logits = head(features)
        if widen:
            criterion(logits.float(), target).backward()
        else:
            with torch.autocast(s.device.type, enabled=False):
                criterion(logits, target).backward()

    return step


# Supervised contrastive loss on a large batch.


def supervised_pairs(z: Tensor, labels: Tensor) -> Tensor:
    z = z / z.norm(dim=1, keepdim=True)
    similar = z @ z.T / 0.1
    itself = torch.eye(len(z), device=z.device, dtype=torch.bool)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    shifted = similar - similar.max(1, keepdim=True).values.detach()
    weights = torch.exp(shifted) * (~itself).float()
    log_p = shifted - torch.log(weights.sum(1, keepdim=True))
    return -((positive.float() * log_p).sum(1) / positive.float().sum(1).clamp(min=1)).mean()


def supervised_contrast(s: Setup, *, compiled: bool = False, tf32: bool = False, item: bool = True) -> Step:
    many, dim = s.size(8192, 16), s.size(256, 8)
    project = _mlp(dim, dim, dim).to(s.device)
    optimizer = torch.optim.SGD(project.parameters(), lr=0.1, foreach=True)
    x, labels = torch.randn(many, dim, device=s.device), torch.randint(100, (many,), device=s.device)
    criterion = s.compile(supervised_pairs) if compiled else supervised_pairs
    history: list[float] = []

    def step() -> None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad()
        loss = criterion(project(x), labels)
        loss.backward()
        optimizer.step()
        if item:
            history.append(loss.item())
        torch.set_float32_matmul_precision("high")

    return step


# A normalizing flow of affine couplings.


def couple(x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    scale, shift = out.chunk(2, 1)
    scale = 2.0 * torch.tanh(scale / 2.0)
    return x * torch.exp(scale) + shift, scale.sum(1)


def coupling_flow(s: Setup, *, graphed: bool = False, compiled: bool = False, width: int = 250) -> Step:
    dim, width = s.size(64, 4), s.size(width, 8)
    nets = nn.ModuleList(_mlp(dim // 2, width, width, dim) for _ in range(s.size(16, 2))).to(s.device)
    optimizer = torch.optim.SGD(nets.parameters(), lr=1e-4, foreach=True)
    x = torch.randn(s.size(1024, 8), dim, device=s.device)
    transform = s.compile(couple) if compiled else couple

    def step() -> None:
        optimizer.zero_grad()
        z, total = x, torch.zeros(len(x), device=s.device)
        for net in nets:
            kept, changed = z.chunk(2, 1)
            changed, log_det = transform(changed, net(kept))
            z, total = torch.cat([changed, kept], 1), total + log_det
        (0.5 * z.square().sum(1) - total).mean().backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# Experts, each of which looks for its tokens.


def expert_search(s: Setup, *, how: str = "where", experts: int = 32) -> Step:
    dim, hidden, tokens, experts = s.size(1024, 8), s.size(2048, 16), s.size(8192, 16), s.size(experts, 4)
    up = torch.randn(experts, dim, hidden, device=s.device, dtype=BF16) / math.sqrt(dim)
    down = torch.randn(experts, hidden, dim, device=s.device, dtype=BF16) / math.sqrt(hidden)
    router = nn.Linear(dim, experts).to(s.device, BF16)
    x = torch.randn(tokens, dim, device=s.device, dtype=BF16)
    room = tokens * 2 // experts * 5 // 4

    @torch.no_grad()
    def step() -> Tensor:
        gates, chosen = router(x).float().softmax(-1).topk(2, -1)
        gates, out = gates.to(BF16), torch.zeros_like(x)
        if how == "where":
            for e in range(experts):
                token, slot = torch.where(chosen == e)
                if len(token) == 0:
                    continue
                y = F.gelu(x[token] @ up[e]) @ down[e]
                out.index_add_(0, token, y * gates[token, slot, None])
            return out
        order = chosen.flatten().argsort(stable=True)
        token, gate = order // 2, gates.flatten()[order]
        if how == "sorted":
            sizes = torch.bincount(chosen.flatten(), minlength=experts).tolist()
            parts = [F.gelu(part @ up[e]) @ down[e] for e, part in enumerate(x[token].split(sizes))]
            return out.index_add_(0, token, torch.cat(parts) * gate[:, None])
        expert = chosen.flatten()[order]
        first = torch.searchsorted(expert, torch.arange(experts, device=s.device))
        place = torch.arange(len(order), device=s.device) - first[expert]
        slot, kept = expert * room + place.clamp(max=room - 1), (place < room).to(BF16)
        packed = torch.zeros(experts * room, dim, device=s.device, dtype=BF16).index_copy_(0, slot, x[token])
        y = torch.bmm(F.gelu(torch.bmm(packed.view(experts, room, dim), up)), down).view(-1, dim)[slot]
        return out.index_add_(0, token, y * (gate * kept)[:, None])

    return step


# An ODE with steps that adapt.


def adaptive_ode(s: Setup, *, branch: bool = True, compiled: bool = False, graphed: bool = False) -> Step:
    dim = s.size(128, 8)
    net = _mlp(dim, s.size(256, 8), s.size(256, 8), dim, act=nn.Tanh).to(s.device)
    rate = s.compile(net) if compiled else net
    start = torch.randn(s.size(512, 4), dim, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        y, dt = start, torch.full((), 0.05, device=s.device)
        for _ in range(s.size(40, 3)):
            k1 = rate(y)
            k2 = rate(y + 0.5 * dt * k1)
            k3 = rate(y + 0.75 * dt * k2)
            proposed = y + dt * (2 * k1 + 3 * k2 + 4 * k3) / 9
            k4 = rate(proposed)
            error = dt * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
            ratio = (error / (1e-3 + 1e-3 * torch.maximum(y.abs(), proposed.abs()))).square().mean().sqrt()
            if branch:
                if ratio.item() <= 1:
                    y = proposed
            else:
                y = torch.where(ratio <= 1, proposed, y)
            dt = (dt * (0.9 * (ratio + 1e-10) ** (-1 / 3)).clamp(0.2, 5.0)).clamp(max=0.2)
        return y

    return capture(step, s) if graphed else step


# A CRF: Viterbi decoding, and its likelihood.


def viterbi(s: Setup, *, trace: str = "items", graphed: bool = False) -> Step:
    rows, length, tags = s.size(8, 2), s.size(64, 5), s.size(48, 4)
    emissions, moves = torch.randn(rows, length, tags, device=s.device), torch.randn(tags, tags, device=s.device)

    def search() -> tuple[Tensor, Tensor]:
        score, back = emissions[:, 0], []
        for t in range(1, length):
            best, came = (score[:, :, None] + moves).max(1)
            score = best + emissions[:, t]
            back.append(came)
        return score.argmax(1), torch.stack(back, 1)

    kept: list[tuple[Tensor, Tensor]] = []

    def keep() -> None:
        kept[:] = [search()]

    run = capture(keep, s) if graphed else keep

    @torch.no_grad()
    def step() -> list[list[int]]:
        run()
        last, back = kept[0]
        if trace == "gpu":
            on_gpu = [last]
            for t in range(length - 2, -1, -1):
                on_gpu.append(back[:, t].gather(1, on_gpu[-1][:, None]).squeeze(1))
            return torch.stack(on_gpu[::-1], 1).tolist()
        if trace == "host":
            last, back = last.cpu(), back.cpu()
        paths = []
        for row in range(rows):
            tag = int(last[row].item())
            path = [tag]
            for t in range(length - 2, -1, -1):
                tag = int(back[row, t, tag].item())
                path.append(tag)
            paths.append(path[::-1])
        return paths

    return step


def advance(alpha: Tensor, emission: Tensor, moves: Tensor, on: Tensor) -> Tensor:
    after = torch.logsumexp(alpha[:, :, None] + moves[None] + emission[:, None, :], 1)
    return torch.where(on[:, None], after, alpha)


def crf_likelihood(s: Setup, *, compiled: bool = False, graphed: bool = False) -> Step:
    rows, length, tags = s.size(64, 2), s.size(72, 4), s.size(32, 4)
    head, moves = nn.Linear(s.size(256, 8), tags).to(s.device), nn.Parameter(torch.randn(tags, tags, device=s.device))
    x = torch.randn(rows, length, s.size(256, 8), device=s.device)
    mask = torch.arange(length, device=s.device) < torch.randint(length // 2, length, (rows, 1), device=s.device)
    optimizer = torch.optim.SGD([*head.parameters(), moves], lr=1e-3, foreach=True)
    forward = s.compile(advance) if compiled else advance

    def step() -> None:
        optimizer.zero_grad()
        emissions = head(x)
        alpha = emissions[:, 0]
        for t in range(1, length):
            alpha = forward(alpha, emissions[:, t], moves, mask[:, t])
        (alpha.logsumexp(1) - emissions.mean((1, 2))).mean().backward()
        optimizer.step()

    return capture(step, s) if graphed else step


# k-means.


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    squared = (x * x).sum(1, keepdim=True) - 2.0 * (x @ centres.T) + (centres * centres).sum(1)[None, :]
    distance = squared.clamp(min=0.0).sqrt()
    closest, at = distance.min(1)
    return closest.mean(), at


def lloyd(s: Setup, *, compiled: bool = False, tf32: bool = False, stops: bool = True) -> Step:
    dim, k = s.size(64, 4), s.size(512, 4)
    x = torch.randn(s.size(500_000, 64), dim, device=s.device)
    start, assign = x[:k].clone(), s.compile(nearest) if compiled else nearest

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        centres = start
        for _ in range(4):
            _, at = assign(x, centres)
            sums = torch.zeros_like(centres).index_add_(0, at, x)
            moved = sums / torch.bincount(at, minlength=k).clamp(min=1)[:, None]
            if stops and (moved - centres).norm().item() < 1e-6:
                break
            centres = moved
        torch.set_float32_matmul_precision("high")
        return centres

    return step


# A language model with GPT-2's vocabulary and its own RMSNorm.


class OwnRms(nn.Module):
    def __init__(self, dim: int, fused: bool) -> None:
        super().__init__()
        self.gain, self.fused = nn.Parameter(torch.ones(dim)), fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), 1e-6)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.gain


class CausalBlock(nn.Module):
    def __init__(self, dim: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, OwnRms(dim, fused), OwnRms(dim, fused)
        self.qkv, self.out, self.feed = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), _mlp(dim, 4 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        b, n, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, dim))
        return x + self.feed(self.norm2(x))


def gpt_50257_words(s: Setup, *, words: int = 50257, rms: bool = False, fused: bool = False, widen: bool = True) -> Step:
    dim, words = s.size(768, 16), s.size(words, 50)
    model = nn.Sequential(nn.Embedding(words, dim), *(CausalBlock(dim, s.size(12, 2), rms) for _ in range(s.size(6, 1))), OwnRms(dim, rms))
    head = nn.Linear(dim, words, bias=False)
    model, head = model.to(s.device, BF16), head.to(s.device, BF16)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4, fused=fused)
    tokens = torch.randint(s.size(50257, 50), (8, s.size(1024, 8) + 1), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        logits = head(model(tokens[:, :-1])).flatten(0, 1)
        F.cross_entropy(logits.float() if widen else logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


# A convolutional VAE in FP32 that logs its losses.


def image_vae(s: Setup, *, autocast: bool = False, last: bool = False, log: bool = True) -> Step:
    width, side = s.size(128, 4), s.size(64, 8)
    layout = torch.channels_last if last else torch.contiguous_format

    def block(inner: int, outer: int, up: bool) -> list[nn.Module]:
        conv: nn.Module = nn.ConvTranspose2d(inner, outer, 4, 2, 1) if up else nn.Conv2d(inner, outer, 4, 2, 1)
        return [conv, nn.BatchNorm2d(outer), nn.LeakyReLU(0.2), nn.Conv2d(outer, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2)]

    encode = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *block(width, 2 * width, False), *block(2 * width, 4 * width, False))
    decode = nn.Sequential(*block(2 * width, 2 * width, True), *block(2 * width, width, True), nn.Conv2d(width, 3, 3, padding=1))
    model = nn.ModuleList([encode, decode]).to(s.device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = torch.rand(s.size(128, 2), 3, side, side, device=s.device).to(memory_format=layout)
    logged: dict[str, float] = {}

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            mean, log_var = encode(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
            again = decode(z)
        rebuilt = F.mse_loss(again.float(), x)
        divergence = -0.5 * (1 + log_var.float() - mean.float().square() - log_var.float().exp()).mean()
        loss = rebuilt + 1e-2 * divergence
        loss.backward()
        optimizer.step()
        if log:
            logged.update(loss=loss.item(), rebuilt=rebuilt.item(), divergence=divergence.item())

    return step


# A GAN with two optimizers.


def two_optimizers(s: Setup, *, fused: bool = False, last: bool = False, autocast: bool = False, graphed: bool = False) -> Step:
    width, layout = s.size(32, 4), torch.channels_last if last else torch.contiguous_format
    maker: list[nn.Module] = [nn.ConvTranspose2d(100, 8 * width, 4)]
    for inner in (8 * width, 4 * width, 2 * width):
        maker += [nn.BatchNorm2d(inner), nn.ReLU(True), nn.ConvTranspose2d(inner, inner // 2, 4, 2, 1)]
    generator = nn.Sequential(*maker, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh()).to(s.device, memory_format=layout)
    judge: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for inner in (width, 2 * width):
        judge += [nn.Conv2d(inner, 2 * inner, 4, 2, 1), nn.BatchNorm2d(2 * inner), nn.LeakyReLU(0.2)]
    critic = nn.Sequential(*judge, nn.Conv2d(4 * width, 1, 4)).to(s.device, memory_format=layout)
    how: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    makes = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999), capturable=graphed and s.cuda, **how)
    judges = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999), capturable=graphed and s.cuda, **how)
    real = torch.rand(s.size(64, 2), 3, 32, 32, device=s.device).to(memory_format=layout)

    def step() -> None:
        noise = torch.randn(len(real), 100, 1, 1, device=s.device)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            fake = generator(noise)
            judges.zero_grad()
            loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
        loss.backward()
        judges.step()
        makes.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.softplus(-critic(fake)).mean()
        loss.backward()
        makes.step()

    return capture(step, s) if graphed else step


# Distillation of a language model's head.


def distilled(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    student, teacher = student.float(), teacher.float()
    log_p, q = F.log_softmax(student / 2.0, -1), F.softmax(teacher / 2.0, -1)
    soft = (q * (torch.log(q + 1e-9) - log_p)).sum(-1).mean() * 4.0
    return 0.5 * soft + 0.5 * F.cross_entropy(student, labels)


def distil_words(s: Setup, *, compiled: bool = False, beside: bool = False, foreach: bool = False) -> Step:
    words, large, small, depth = s.size(32000, 40), s.size(2048, 16), s.size(1024, 16), s.size(6, 1)
    x = torch.randn(s.size(8192, 8), large, device=s.device, dtype=BF16)
    teacher = _mlp(large, *[large] * depth, words, act=nn.GELU).to(s.device, BF16).requires_grad_(False)
    student = _mlp(large, *[small] * depth, words, act=nn.GELU).to(s.device, BF16)
    labels = torch.randint(words, (len(x),), device=s.device)
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-3, foreach=foreach)
    criterion = s.compile(distilled) if compiled else distilled
    side = torch.cuda.Stream() if s.cuda and beside else None

    def step() -> None:
        optimizer.zero_grad()
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            taught = teacher(x)
        learnt = student(x)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            taught.record_stream(torch.cuda.current_stream())
        criterion(learnt, taught, labels).backward()
        optimizer.step()

    return step


# Point clouds: the farthest points, one after another.


def farther(points: Tensor, distance: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    centre = torch.gather(points, 1, last[:, None, None].expand(-1, 1, 3))
    distance = torch.minimum(distance, ((points - centre) ** 2).sum(-1))
    return distance, distance.argmax(1)


def farthest_points(s: Setup, *, compiled: bool = False, graphed: bool = False, half: bool = False) -> Step:
    points = torch.randn(s.size(32, 2), s.size(4096, 16), 3, device=s.device)
    points = points.half() if half else points
    advance_one = s.compile(farther) if compiled else farther

    @torch.no_grad()
    def step() -> Tensor:
        distance = torch.full(points.shape[:2], 1e4, device=s.device, dtype=points.dtype)
        last = torch.zeros(len(points), dtype=torch.long, device=s.device)
        chosen = []
        for _ in range(s.size(256, 4)):
            chosen.append(last)
            distance, last = advance_one(points, distance, last)
        return torch.stack(chosen, 1)

    return capture(step, s) if graphed else step


# A state-space layer, scanned word by word.


def state_scan(s: Setup, *, parallel: bool = False, graphed: bool = False, half: bool = False) -> Step:
    rows, length, dim, states = s.size(4, 2), s.size(256, 6), s.size(1536, 8), 16
    dtype = BF16 if half else torch.float32
    x, dt = torch.randn(rows, length, dim, device=s.device, dtype=dtype), torch.rand(rows, length, dim, device=s.device, dtype=dtype) * 0.01
    b, c = (torch.randn(rows, length, states, device=s.device, dtype=dtype) for _ in range(2))
    a = -torch.arange(1, states + 1, device=s.device, dtype=dtype).expand(dim, states)

    @torch.no_grad()
    def step() -> Tensor:
        if parallel:
            decay = (dt[..., None] * a).cumsum(1)
            fed = (dt * x)[..., None] * b[:, :, None]
            return ((fed * torch.exp(-decay)).cumsum(1) * torch.exp(decay) * c[:, :, None]).sum(-1)
        h, ys = torch.zeros(rows, dim, states, device=s.device, dtype=dtype), []
        for t in range(length):
            h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
            ys.append((h * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1)

    return capture(step, s) if graphed else step


# nn.MultiheadAttention as it comes.


class SetBlock(nn.Module):
    def __init__(self, dim: int, heads: int, weights: bool) -> None:
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(dim, heads, batch_first=True), weights
        self.norm1, self.norm2, self.feed = nn.LayerNorm(dim), nn.LayerNorm(dim), _mlp(dim, 2 * dim, dim, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        h, _ = self.attention(h, h, h, need_weights=self.weights)
        x = x + h
        return x + self.feed(self.norm2(x))


def attention_weights(s: Setup, *, weights: bool = True, fused: bool = False, aligned: bool = False) -> Step:
    dim, inputs = s.size(768, 16), s.size(1003, 9)
    first = nn.Linear(-(-inputs // 8) * 8 if aligned else inputs, dim)
    model = nn.Sequential(first, *(SetBlock(dim, s.size(12, 2), weights) for _ in range(s.size(4, 1)))).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    x = torch.randn(s.size(16, 2), s.size(1024, 4), first.in_features, device=s.device, dtype=BF16)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


# Autocast around frozen FP32 weights.


def frozen_autocast(s: Setup, *, cast: bool = False, graphed: bool = False, checked: bool = True) -> Step:
    dim, depth = s.size(6144, 16), s.size(8, 1)
    model = _mlp(dim, *[dim] * 2 * depth, act=nn.GELU).to(s.device, BF16 if cast else None).eval().requires_grad_(False)
    x = torch.randn(s.size(512, 4), dim, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(s.device.type, BF16):
            y = model(x)
        if checked and not graphed and torch.isnan(y).any():
            raise FloatingPointError
        return y

    return capture(step, s) if graphed else step


# Finance: the largest fall of a few long price paths.


def largest_fall(s: Setup, *, chunks: int = 1, single: bool = False, compiled: bool = False) -> Step:
    many = s.size(1 << 20, 64)
    returns = 1e-3 * torch.randn(s.size(4, 2), many, device=s.device, dtype=torch.float32 if single else torch.float64)
    chunks = s.size(chunks, min(chunks, 4))

    def fall(wealth: Tensor, peak: Tensor) -> Tensor:
        return (1.0 - torch.exp(wealth - peak)).amax(-1)

    measured = s.compile(fall) if compiled else fall

    def running(x: Tensor, scan: Callable[[Tensor], Tensor], join: Callable[[Tensor, Tensor], Tensor], none: float) -> Tensor:
        if chunks == 1:
            return scan(x)
        inside = scan(x.view(len(x), chunks, -1))
        before = F.pad(scan(inside[:, :, -1])[:, :-1], (1, 0), value=none)
        return join(inside, before[..., None]).view(len(x), -1)

    @torch.no_grad()
    def step() -> Tensor:
        wealth = running(returns, lambda x: x.cumsum(-1), torch.add, 0.0)
        peak = running(wealth, lambda x: x.cummax(-1).values, torch.maximum, -math.inf)
        return measured(wealth, peak)

    return step


# Embeddings computed and fetched, batch after batch.


def embed_and_fetch(s: Setup, *, how: str = "cpu", half: bool = False) -> Step:
    dim, rows = s.size(2048, 16), s.size(8192, 4)
    model = _mlp(dim, *[2 * dim] * s.size(4, 1), dim, act=nn.GELU).to(s.device, BF16).eval().requires_grad_(False)
    x = torch.randn(rows, dim, device=s.device, dtype=BF16)
    buffers = [s.pin(torch.zeros(rows, dim)) for _ in range(2)]
    aside, turns = (torch.cuda.Stream() if s.cuda and how == "aside" else None), count()

    @torch.no_grad()
    def step() -> Tensor:
        y = model(x)
        y = y if half else y.float()
        if how == "cpu":
            return y.cpu()
        buffer = buffers[next(turns) % 2]
        if aside is not None:
            aside.synchronize()  # the batch before is on the host
            aside.wait_stream(torch.cuda.current_stream())
            y.record_stream(aside)
        with torch.cuda.stream(aside):
            buffer.copy_(y, non_blocking=True)
        if aside is None:
            s.synchronize()
        return buffer

    return step


WORKLOADS = (
    written_pair(
        "column_tables", "launch-gap", "A small transformer on 40 categorical columns, each with a table of its own, under AdamW(foreach=False).",
        "one table with an offset for each column", column_tables, {"together": True},
        alone={"optimizer-foreach": {"fused": True}, "precision": {"autocast": True}}, top=("launch-gap", "optimizer-foreach", "graph-candidate"),
    ),
    written_pair(
        "click_tables", "optimizer-foreach", "Eight tables of 450,000 x 64 in FP32 with dense gradients, under Adam(foreach=False).",
        "fused=True", click_tables, {"adam": "fused"},
        alone={"optimizer-foreach/foreach": {"adam": "foreach"}, "launch-gap": {"pairs": True}, "precision": {"autocast": True}}, gpu_bound=True,
    ),
    written_pair(
        "load_forecast", "launch-gap", "Training of an nn.LSTMCell called for each of 120 hours.", "nn.LSTM", load_forecast, {"whole": True},
        alone={"graph-candidate": {"graphed": True}, "precision": {"autocast": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "window_batches", "data-loading", "Windows of a series cut one by one in the training process, 512 a batch, for a small network.",
        "num_workers=4", window_batches, {"workers": 4},
        alone={"data-loading/gpu": {"on_gpu": True}, "memcpy": {"pin": True}, "optimizer-foreach": {"fused": True}},
    ),
    written_pair(
        "burgers_pinn", "graph-candidate", "Burgers' equation by a small network with second derivatives, under Adam(foreach=False).",
        "the step as a CUDA graph", burgers_pinn, {"graphed": True},
        alone={"optimizer-foreach": {"fused": True}, "precision/tf32": {"tf32": True}}, top=("launch-gap", "graph-candidate", "optimizer-foreach"),
    ),
    written_pair(
        "mask_spectrograms", "sync-stall", "Spectrograms masked clip by clip, where .item() reads each random number from the GPU.",
        "draw on the host", mask_spectrograms, {"masks": "host"},
        alone={"launch-gap": {"masks": "together"}, "precision": {"autocast": True}}, top=("sync-stall", "launch-gap"), with_stack=True,
    ),
    written_pair(
        "dice_focal", "unfused-elementwise", "Dice and focal loss over 19 classes of 512 x 512 with a one-hot target, forwards and backwards.",
        "torch.compile of the loss", segmentation_loss, {"compiled": True},
        alone={"dtype-casts": {"widen": False}, "memory-layout": {"last": True}}, gpu_bound=True,
    ),
    written_pair(
        "supervised_contrast", "unfused-elementwise", "Supervised contrastive loss over all pairs of 8192 in FP32 without TF32; the loss is read in each step.",
        "torch.compile of the loss", supervised_contrast, {"compiled": True},
        alone={"precision/tf32": {"tf32": True}, "sync-stall": {"item": False}}, gpu_bound=True,
    ),
    written_pair(
        "coupling_flow", "graph-candidate", "Training of a flow of 16 couplings on 1024 rows, whose networks are 250 wide.",
        "the step as a CUDA graph", coupling_flow, {"graphed": True},
        alone={"unfused-elementwise": {"compiled": True}, "gemm-alignment": {"width": 256}}, top=("graph-candidate", "launch-gap"),
    ),
    written_pair(
        "expert_search", "sync-stall", "32 experts in bf16, each of which finds its tokens by torch.where.",
        "sort the tokens and read the counts once", expert_search, {"how": "sorted"},
        alone={"launch-gap": {"how": "padded"}}, top=("sync-stall", "launch-gap"),
    ),
    written_pair(
        "adaptive_ode", "sync-stall", "An ODE by Bogacki and Shampine's pair: `if ratio.item() <= 1` accepts each of 40 steps.",
        "torch.where", adaptive_ode, {"branch": False},
        alone={"launch-gap": {"compiled": True}, "graph-candidate": {"branch": False, "graphed": True}}, top=("sync-stall", "launch-gap", "graph-candidate"),
    ),
    written_pair(
        "viterbi_path", "sync-stall", "Viterbi decoding of eight sentences that follows the pointers back by .item().",
        "copy the pointers to the host first", viterbi, {"trace": "host"},
        alone={"sync-stall/gpu": {"trace": "gpu"}, "graph-candidate": {"graphed": True}}, top=("sync-stall", "launch-gap"), with_stack=True,
    ),
    written_pair(
        "crf_likelihood", "launch-gap", "Training of a CRF whose forward algorithm is a loop over 72 words.",
        "torch.compile of one word's step", crf_likelihood, {"compiled": True},
        alone={"graph-candidate": {"graphed": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "lloyd_kmeans", "unfused-elementwise", "Four rounds of k-means: 500,000 rows to 512 centres in FP32 without TF32, with a test for the end in each.",
        "torch.compile of the assignment", lloyd, {"compiled": True},
        alone={"precision/tf32": {"tf32": True}, "sync-stall": {"stops": False}}, gpu_bound=True,
    ),
    written_pair(
        "gpt_50257_words", "gemm-alignment", "bf16 training of six layers with 50,257 words, an RMSNorm of its own and a loss in FP32.",
        "50,304 words", gpt_50257_words, {"words": 50304},
        alone={"unfused-norm": {"rms": True}, "optimizer-foreach": {"fused": True}, "dtype-casts": {"widen": False}}, gpu_bound=True,
    ),
    written_pair(
        "image_vae", "precision", "Training of a convolutional VAE in FP32; three losses are read in each step.",
        "bf16 autocast", image_vae, {"autocast": True}, alone={"memory-layout": {"last": True}, "sync-stall": {"log": False}}, gpu_bound=True,
    ),
    written_pair(
        "two_optimizers", "optimizer-foreach", "A small GAN, two Adams with foreach=False.", "fused=True", two_optimizers, {"fused": True},
        alone={"graph-candidate": {"graphed": True}, "memory-layout": {"last": True}, "precision": {"autocast": True}},
        top=("optimizer-foreach", "launch-gap", "graph-candidate"),
    ),
    written_pair(
        "distil_words", "unfused-elementwise", "Distillation over 32,000 words in FP32 with both logits from bf16.",
        "torch.compile of the loss", distil_words, {"compiled": True},
        alone={"missed-overlap": {"beside": True}, "optimizer-foreach": {"foreach": True}}, gpu_bound=True,
    ),
    written_pair(
        "farthest_points", "launch-gap", "The 256 farthest points of 32 clouds, one after another.",
        "torch.compile of one choice", farthest_points, {"compiled": True},
        alone={"graph-candidate": {"graphed": True}, "precision": {"half": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "state_scan", "launch-gap", "A state-space layer scanned in a loop over 256 words.", "two cumulative sums", state_scan, {"parallel": True},
        alone={"graph-candidate": {"graphed": True}, "precision": {"half": True}}, top=("launch-gap", "graph-candidate"),
    ),
    written_pair(
        "attention_weights", "unfused-attention", "bf16 training with nn.MultiheadAttention, which returns weights that nobody reads.",
        "need_weights=False", attention_weights, {"weights": False},
        alone={"optimizer-foreach": {"fused": True}, "gemm-alignment": {"aligned": True}}, gpu_bound=True,
    ),
    written_pair(
        "frozen_autocast", "dtype-casts", "Inference under bf16 autocast with frozen FP32 weights, which are cast again in each call.",
        "weights in bf16", frozen_autocast, {"cast": True},
        alone={"graph-candidate": {"graphed": True}, "sync-stall": {"checked": False}}, gpu_bound=True,
    ),
    written_pair(
        "largest_fall", "small-grid", "Running sum and maximum of four paths of a million steps in FP64: a block for each path.",
        "scan 1024 pieces, then join them", largest_fall, {"chunks": 1024},
        alone={"precision": {"single": True}, "unfused-elementwise": {"compiled": True}}, gpu_bound=True,
    ),
    written_pair(
        "embed_and_fetch", "memcpy", "Embeddings of 67 MB a batch are fetched by .cpu().",
        "into pinned memory", embed_and_fetch, {"how": "pinned"},
        alone={"missed-overlap": {"how": "aside"}, "dtype-casts": {"half": True}}, top=("memcpy", "missed-overlap", "sync-stall"),
    ),
)  # fmt: skip
