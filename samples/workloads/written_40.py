"""Programs in their authors' own code: glazes that a diffusion model learns, mosses by contrast alone, which record a customer takes next.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from itertools import count as counter
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# Glazes: a UNet with attention learns the noise in pictures of glazed tiles, by kind of glaze.


class Norm32(nn.GroupNorm):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.float()).to(input.dtype)


class GlazeBlock(nn.Module):
    def __init__(self, inside: int, outside: int, signal: int, groups: int) -> None:
        super().__init__()
        self.before, self.first = Norm32(groups, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.signal = nn.Linear(signal, 2 * outside)
        self.after, self.second = Norm32(groups, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        h = self.first(F.silu(self.before(x)))
        scale, shift = self.signal(F.silu(signal))[..., None, None].to(h.dtype).chunk(2, 1)
        h = self.after(h) * (1 + scale) + shift
        return self.skip(x) + self.second(F.silu(h))


class GlazeAttention(nn.Module):
    def __init__(self, width: int, each: int, groups: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = width // each, sdpa
        self.norm, self.qkv, self.out = Norm32(groups, width), nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        rows, width, places = flat.shape
        q, k, v = self.qkv(self.norm(flat)).reshape(rows * self.heads, -1, places).chunk(3, 1)
        if self.sdpa:
            q, k, v = (part.unflatten(0, (rows, self.heads)).transpose(2, 3).contiguous() for part in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        else:
            scale = 1 / math.sqrt(math.sqrt(q.shape[1]))
            scores = torch.einsum("bct,bcs->bts", q * scale, k * scale)
            scores = torch.softmax(scores.float(), -1).to(scores.dtype)
            y = torch.einsum("bts,bcs->bct", scores, v)
        return (flat + self.out(y.reshape(rows, width, places))).view(x.shape)


class GlazeUnet(nn.Module):
    def __init__(self, widths: tuple[int, ...], each: int, groups: int, kinds: int, sdpa: bool) -> None:
        super().__init__()
        signal, last = 4 * widths[0], widths[-1]
        self.time = nn.Sequential(nn.Linear(widths[0], signal), nn.SiLU(), nn.Linear(signal, signal))
        self.kinds, self.inlet = nn.Embedding(kinds + 1, signal), nn.Conv2d(3, widths[0], 3, padding=1)
        self.down, self.down_look, self.shrink = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.up, self.up_look, self.grow = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        inside = widths[0]
        for level, width in enumerate(widths):
            self.down.append(GlazeBlock(inside, width, signal, groups))
            self.down_look.append(GlazeAttention(width, each, groups, sdpa) if level else nn.Identity())
            self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1) if level + 1 < len(widths) else nn.Identity())
            inside = width
        self.middle = nn.ModuleList([GlazeBlock(last, last, signal, groups), GlazeBlock(last, last, signal, groups)])
        self.middle_look = GlazeAttention(last, each, groups, sdpa)
        for level, width in reversed(list(enumerate(widths))):
            self.up.append(GlazeBlock(inside + width, width, signal, groups))
            self.up_look.append(GlazeAttention(width, each, groups, sdpa) if level else nn.Identity())
            self.grow.append(nn.Conv2d(width, width, 3, padding=1) if level else nn.Identity())
            inside = width
        self.norm, self.outlet = Norm32(groups, inside), nn.Conv2d(inside, 3, 3, padding=1)

    def forward(self, x: Tensor, waves: Tensor, kind: Tensor) -> Tensor:
        signal = self.time(waves) + self.kinds(kind)
        x, kept = self.inlet(x), []
        for block, look, shrink in zip(self.down, self.down_look, self.shrink, strict=True):
            x = look(block(x, signal))
            kept.append(x)
            x = shrink(x)
        x = self.middle[1](self.middle_look(self.middle[0](x, signal)), signal)
        for n, (block, look, grow) in enumerate(zip(self.up, self.up_look, self.grow, strict=True)):
            x = look(block(torch.cat([x, kept.pop()], 1), signal))
            if n + 1 < len(self.up):
                x = grow(F.interpolate(x, scale_factor=2, mode="nearest"))
        return self.outlet(F.silu(self.norm(x)))


def kiln_glazes(
    s: Setup,
    *,
    autocast: bool = False,
    sdpa: bool = False,
    read: bool = True,
    together: bool = False,
    last: bool = False,
    ahead: bool = False,
    compiled: bool = False,
    graphed: bool = False,
) -> Step:
    """A training step of a class-conditional UNet on 32 pictures of 64 x 64: schedule on the host, norms read one by one, EMA."""
    rows, side, times, kinds, rate = s.size(32, 2), s.size(64, 16), s.size(1000, 20), s.size(40, 3), 0.9999
    wide, each, groups = s.size(128, 8), s.size(64, 8), s.size(32, 4)
    widths = (wide, 2 * wide, 2 * wide)
    beta = np.linspace(1e-4, 0.02, times, dtype=np.float64)
    kept = np.cumprod(1.0 - beta)
    rng = np.random.default_rng(401)
    batches = []
    for _ in range(4):
        pictures = torch.from_numpy(rng.uniform(-1.0, 1.0, (rows, 3, side, side)).astype(np.float32))
        batches.append((pictures, torch.from_numpy(rng.integers(0, kinds, rows))))
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    schedule = [torch.from_numpy(np.sqrt(kept)), torch.from_numpy(np.sqrt(1.0 - kept))]
    if ahead:
        schedule = [s.pin(table) for table in schedule]
    elif graphed:
        schedule = [table.to(s.device) for table in schedule]
    with s.device:
        model = GlazeUnet(widths, each, groups, kinds, sdpa)
        noted, still = torch.zeros(6), torch.zeros(rows, 3, side, side)
        still_kind = torch.zeros(rows, dtype=torch.long)
    if last:
        model = model.to(memory_format=torch.channels_last)
    network = s.compile(model, dynamic=False) if compiled else model
    parameters = list(model.parameters())
    mean = [part.detach() for part in copy.deepcopy(model).parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, capturable=graphed and s.cuda)
    reading = read and not graphed
    turn, log = counter(), {f"loss_q{n}": 0.0 for n in range(4)} | {"grad_norm": 0.0, "param_norm": 0.0}

    def extract(table: Tensor, t: Tensor) -> Tensor:
        return table.to(s.device, non_blocking=ahead)[t].float()[:, None, None, None]

    def waves_of(t: Tensor) -> Tensor:
        place = s.device if graphed else torch.device("cpu")
        rates = torch.exp(-math.log(10000) * torch.arange(wide // 2, dtype=torch.float32, device=place) / (wide // 2)).to(s.device)
        angle = t[:, None].float() * rates[None]
        return torch.cat([torch.cos(angle), torch.sin(angle)], -1)

    @torch.no_grad()
    def report(t: Tensor, losses: Tensor) -> None:
        if together:
            grads, sizes = torch._foreach_norm([p.grad for p in parameters]), torch._foreach_norm(parameters)
            sizes = torch.stack([torch.stack(grads), torch.stack(sizes)])
            log["grad_norm"], log["param_norm"] = sizes.pow(2).sum(1).sqrt().tolist()
        elif reading:
            grad_square = param_square = 0.0
            for p in parameters:
                param_square += torch.norm(p, p=2).item() ** 2
                if p.grad is not None:
                    grad_square += torch.norm(p.grad, p=2).item() ** 2
            log["grad_norm"], log["param_norm"] = math.sqrt(grad_square), math.sqrt(param_square)
        else:
            grads, sizes = torch.stack([torch.norm(p.grad, p=2) for p in parameters]), torch.stack([torch.norm(p, p=2) for p in parameters])
            noted[4:].copy_(torch.stack([grads.pow(2).sum().sqrt(), sizes.pow(2).sum().sqrt()]))
        if reading:
            for at, loss in zip(t.cpu().numpy(), losses.cpu().numpy(), strict=True):
                log[f"loss_q{int(4 * at / times)}"] += float(loss)
        else:
            noted[:4].scatter_add_(0, 4 * t // times, losses)

    def learn(pictures: Tensor, kind: Tensor) -> Tensor:
        optimizer.zero_grad()
        t = torch.randint(0, times, (rows,), device=s.device)
        noise = torch.randn_like(pictures)
        noisy = extract(schedule[0], t) * pictures + extract(schedule[1], t) * noise
        kind = kind.masked_fill(torch.rand(rows, device=s.device) < 0.1, kinds)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = network(noisy, waves_of(t), kind)
        losses = ((guess.float() - noise) ** 2).mean((1, 2, 3))
        losses.mean().backward()
        report(t, losses.detach())
        optimizer.step()
        with torch.no_grad():
            if together:
                torch._foreach_lerp_(mean, parameters, 1 - rate)
            else:
                for target, source in zip(mean, parameters, strict=True):
                    target.mul_(rate).add_(source, alpha=1 - rate)
        return losses.detach()

    work = None
    if graphed:
        torch.set_float32_matmul_precision("high")
        work = capture(lambda: learn(still, still_kind), s)

    def step() -> object:
        torch.set_float32_matmul_precision("high")
        if queue:
            pictures, kind = queue.next()
        else:
            pictures, kind = batches[next(turn) % len(batches)]
            if work:
                still.copy_(pictures)
                still_kind.copy_(kind)
                work()
                return noted
            pictures, kind = pictures.to(s.device), kind.to(s.device)
        if last:
            pictures = pictures.to(memory_format=torch.channels_last)
        return learn(pictures, kind)

    return step


# Mosses: two views of each picture are to find each other among all (SimCLR on 96 x 96).


class MossBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm_a = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.second, self.norm_b = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        plain = stride == 1 and inside == outside
        self.skip = nn.Identity() if plain else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm_b(self.second(F.relu(self.norm_a(self.first(x))))) + self.skip(x))


def moss_encoder(width: int, levels: int, size: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = width
    for level in range(levels):
        outside = width * 2**level
        parts += [MossBlock(inside, outside, 2 if level else 1), MossBlock(outside, outside, 1)]
        inside = outside
    head = [nn.Linear(inside, inside), nn.ReLU(), nn.Linear(inside, size)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


def grey(x: Tensor) -> Tensor:
    return 0.299 * x[..., 0:1, :, :] + 0.587 * x[..., 1:2, :, :] + 0.114 * x[..., 2:3, :, :]


def draw_views(rng: np.random.Generator, rows: int, side: int) -> np.ndarray:
    """By row: top, left, height, width of the crop; flipped, jittered, grey; brightness, contrast, saturation."""
    area, ratio = rng.uniform(0.2, 1.0, rows) * side * side, np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), rows))
    height = np.clip(np.round(np.sqrt(area / ratio)), 2, side)
    width = np.clip(np.round(np.sqrt(area * ratio)), 2, side)
    top, left = np.floor(rng.random(rows) * (side - height + 1)), np.floor(rng.random(rows) * (side - width + 1))
    chances = [(rng.random(rows) < chance).astype(float) for chance in (0.5, 0.8, 0.2)]
    return np.stack([top, left, height, width, *chances, *rng.uniform(0.4, 1.6, (3, rows))], 1).astype(np.float32)


def one_view(picture: Tensor, drawn: list[float]) -> Tensor:
    top, left, height, width = (int(number) for number in drawn[:4])
    x = picture[:, top : top + height, left : left + width]
    x = F.interpolate(x[None], size=picture.shape[1:], mode="bilinear", align_corners=False)[0]
    if drawn[4]:
        x = x.flip(-1)
    if drawn[5]:
        bright, contrast, colour = drawn[7:]
        x = (x * bright).clamp(0, 1)
        x = (contrast * x + (1 - contrast) * grey(x).mean()).clamp(0, 1)
        x = (colour * x + (1 - colour) * grey(x)).clamp(0, 1)
    return grey(x).expand(3, -1, -1) if drawn[6] else x


def all_views(pictures: Tensor, drawn: Tensor) -> Tensor:
    side = pictures.shape[-1]
    top, left, height, width, flipped, jittered, dull, bright, contrast, colour = drawn[:, :, None].unbind(1)
    middle = (torch.arange(side, device=pictures.device) + 0.5) / side
    down = torch.minimum(torch.maximum(middle * height - 0.5, torch.zeros_like(height)), height - 1) + top
    along = torch.minimum(torch.maximum(middle * width - 0.5, torch.zeros_like(width)), width - 1) + left
    along = torch.where(flipped > 0, along.flip(1), along)
    grid = torch.stack(torch.broadcast_tensors(along[:, None], down[:, :, None]), -1) * (2 / (side - 1)) - 1
    x = F.grid_sample(pictures, grid, mode="bilinear", align_corners=True)
    bright, contrast, colour, jittered, dull = (part[:, :, None, None] for part in (bright, contrast, colour, jittered, dull))
    y = (x * bright).clamp(0, 1)
    y = (contrast * y + (1 - contrast) * grey(y).mean((1, 2, 3), keepdim=True)).clamp(0, 1)
    y = (colour * y + (1 - colour) * grey(y)).clamp(0, 1)
    x = torch.where(jittered > 0, y, x)
    return torch.where(dull > 0, grey(x), x)


def moss_contrast(
    s: Setup,
    *,
    batched: bool = False,
    masked: bool = False,
    fused: bool = False,
    bf16: bool = False,
    last: bool = False,
    ahead: bool = False,
    compiled: bool = False,
) -> Step:
    """A step of SimCLR on 128 pictures in FP16 with a scaler: views made one by one on the GPU, masks pick pairs, accuracies are read."""
    rows, side, width, levels, size = s.size(128, 4), s.size(96, 16), s.size(64, 8), s.size(4, 2), s.size(128, 8)
    rng = np.random.default_rng(402)
    batches = [(torch.from_numpy(rng.integers(0, 256, (rows, 3, side, side), dtype=np.uint8)),) for _ in range(4)]
    queue = Prefetcher([(s.pin(pictures),) for (pictures,) in batches], s) if ahead else None
    with s.device:
        model = moss_encoder(width, levels, size)
        noted, itself = torch.zeros(3), torch.eye(2 * rows, dtype=torch.bool)
        partner = torch.arange(2 * rows).roll(rows)
    if last:
        model = model.to(memory_format=torch.channels_last)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, weight_decay=1e-4, **({"fused": True} if fused else {}))
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda and not bf16)
    dtype = torch.float16 if s.cuda and not bf16 else BF16
    turn, log, best = counter(), [], s.size(5, 2)

    def views(pictures: Tensor) -> Tensor:
        made = []
        for _ in range(2):
            drawn = draw_views(rng, rows, side)
            if batched:
                made.append(all_views(pictures, torch.from_numpy(drawn).to(s.device)))
            else:
                made.append(torch.stack([one_view(picture, row) for picture, row in zip(pictures, drawn.tolist(), strict=True)]))
        return (torch.cat(made) - 0.5) / 0.25

    def pairs(features: Tensor) -> tuple[Tensor, Tensor]:
        features = F.normalize(features, dim=1)
        alike = features @ features.T
        if masked:
            return alike.masked_fill(itself, float("-inf")) / 0.07, partner
        labels = torch.cat([torch.arange(rows) for _ in range(2)])
        same = (labels[None] == labels[:, None]).to(s.device)
        mask = torch.eye(len(labels), dtype=torch.bool).to(s.device)
        same, alike = same[~mask].view(len(labels), -1), alike[~mask].view(len(labels), -1)
        logits = torch.cat([alike[same].view(len(labels), -1), alike[~same].view(len(labels), -1)], 1)
        return logits / 0.07, torch.zeros(len(labels), dtype=torch.long).to(s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        (pictures,) = queue.next() if queue else (batches[next(turn) % len(batches)][0].to(s.device),)
        x = views(pictures.float() / 255)
        if last:
            x = x.to(memory_format=torch.channels_last)
        with torch.autocast(s.device.type, dtype):
            logits, labels = pairs(network(x))
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            hits = logits.topk(best, 1).indices == labels[:, None]
            first, some = hits[:, :1].float().sum() * (100 / len(hits)), hits.float().sum() * (100 / len(hits))
        if masked:
            noted.add_(torch.stack([loss.detach(), first, some]))
        else:
            log.append((loss.item(), first.item(), some.item()))
            del log[:-100]
        return loss.detach()

    return step


# Records: will a customer take this record, by those in the crate so far (deep interest network).


class Dice(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.alpha = nn.BatchNorm1d(width, eps=1e-8, affine=False), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x.reshape(-1, x.shape[-1])).view(x.shape))
        return self.alpha * (1 - p) * x + p * x


def dice_layers(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), Dice(b)]
    return nn.Sequential(*parts, nn.Linear(widths[-1], 1))


class Interest(nn.Module):
    kind_of: Tensor

    def __init__(self, records: int, kinds: int, customers: int, size: int, unit: tuple[int, ...], head: tuple[int, ...]) -> None:
        super().__init__()
        self.records, self.kinds = nn.Embedding(records, size, padding_idx=0), nn.Embedding(kinds, size)
        self.customers = nn.Embedding(customers, size)
        self.register_buffer("kind_of", torch.randint(0, kinds, (records,)))
        self.unit, self.head = dice_layers(8 * size, *unit), dice_layers(7 * size, *head)

    def both(self, records: Tensor) -> Tensor:
        return torch.cat([self.records(records), self.kinds(self.kind_of[records])], -1)

    def forward(self, customer: Tensor, record: Tensor, crate: Tensor) -> Tensor:
        asked, had = self.both(record), self.both(crate)
        query = asked[:, None].expand_as(had)
        weight = self.unit(torch.cat([query, had, query - had, query * had], -1))
        weight = torch.where(crate[..., None] > 0, weight, torch.zeros_like(weight))
        liked = (weight * had).sum(1)
        return self.head(torch.cat([self.customers(customer), asked, liked, asked * liked], -1))[:, 0]


def auc_on_host(scores: np.ndarray, truth: np.ndarray) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    ones = truth.sum()
    return float((ranks[truth > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(truth) - ones)))


def auc_of(scores: Tensor, truth: Tensor) -> Tensor:
    by_score, ones = truth[scores.argsort(stable=True)], truth.sum()
    ranks = torch.arange(1, len(truth) + 1, device=truth.device, dtype=torch.float64)
    return ((ranks * by_score).sum() - ones * (ones + 1) / 2) / (ones * (len(truth) - ones))


def vinyl_crates(
    s: Setup,
    *,
    prepared: bool = False,
    read: bool = True,
    pinned: bool = False,
    compiled: bool = False,
    fused: bool = False,
    autocast: bool = False,
    graphed: bool = False,
) -> Step:
    """A training step of a deep interest network on 2048 sales and as many negatives drawn in Python; padding by row, AUC by NumPy."""
    sales, most, records, kinds = s.size(2048, 8), s.size(100, 6), s.size(1_000_000, 60), s.size(800, 5)
    customers, size, rows = s.size(200_000, 20), s.size(64, 4), 2 * s.size(2048, 8)
    rng, drawing = np.random.default_rng(403), random.Random(403)
    batches: list[list[tuple[int, int, list[int]]]] = []
    for _ in range(4):
        who, what, lengths = rng.integers(0, customers, sales), rng.integers(1, records, sales), rng.integers(most // 3, most + 1, sales)
        batches.append([(int(a), int(b), rng.integers(1, records, int(n)).tolist()) for a, b, n in zip(who, what, lengths, strict=True)])
    taken = [[{record, *crate} for _, record, crate in batch] for batch in batches]
    told = np.concatenate([np.ones(sales, np.float32), np.zeros(sales, np.float32)])
    room = s.pin(torch.zeros(rows, most + 2, dtype=torch.long))
    with s.device:
        model = Interest(records, kinds, customers, size, (s.size(80, 6), s.size(40, 4)), (s.size(200, 8), s.size(80, 6)))
        truth, noted, held = torch.tensor(told), torch.zeros(2), torch.zeros(rows, most + 2, dtype=torch.long)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=graphed and s.cuda, **({"fused": True} if fused else {}))
    reading = read and not graphed
    turn, log = counter(), []

    def filled(n: int, out: np.ndarray) -> np.ndarray:
        """By row: customer, record, crate; the sales first, then a negative for each."""
        for row, ((customer, record, crate), owned) in enumerate(zip(batches[n], taken[n], strict=True)):
            other = drawing.randrange(1, records)
            while other in owned:
                other = drawing.randrange(1, records)
            for place, offered in ((row, record), (row + sales, other)):
                out[place, 0], out[place, 1] = customer, offered
                out[place, 2 : 2 + len(crate)] = crate
                out[place, 2 + len(crate) :] = 0
        return out

    ready = [torch.from_numpy(filled(n, np.zeros((rows, most + 2), np.int64))[:sales]) for n in range(len(batches))] if prepared else []

    def batch() -> Tensor:
        n = next(turn) % len(batches)
        if prepared:
            part = ready[n].to(s.device)
            other = torch.randint(1, records, (sales,), device=s.device)
            for _ in range(3):
                owned = (part[:, 1:] == other[:, None]).any(1)
                other = torch.where(owned, torch.randint(1, records, (sales,), device=s.device), other)
            return torch.cat([part, torch.cat([part[:, :1], other[:, None], part[:, 2:]], 1)])
        if pinned:
            filled(n, room.numpy())
            return room.to(s.device, non_blocking=True)
        return torch.from_numpy(filled(n, np.zeros((rows, most + 2), np.int64))).to(s.device)

    def learn(given: Tensor, target: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(given[:, 0], given[:, 1], given[:, 2:])
        answers = target()
        loss = F.binary_cross_entropy_with_logits(logits.float(), answers)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if reading:
                chance = torch.sigmoid(logits.float()).cpu().numpy()
                log.append((loss.item(), auc_on_host(chance, told)))
                del log[:-100]
            else:
                noted.add_(torch.stack([loss.detach(), auc_of(torch.sigmoid(logits.float()), answers).float()]))
        return loss.detach()

    work = None
    if graphed:
        torch.set_float32_matmul_precision("high")
        held.copy_(batch())
        work = capture(lambda: learn(held, lambda: truth), s)

    def step() -> object:
        torch.set_float32_matmul_precision("high")
        given = batch()
        if work:
            held.copy_(given)
            work()
            return noted
        return learn(given, lambda: torch.from_numpy(told).to(s.device))

    return step


WORKLOADS = (
    written(
        "kiln_glazes", "A diffusion UNet in training on 32 pictures, TF32: attention by einsum, norms read, EMA by tensor.",
        "bf16 autocast; scaled_dot_product_attention; norms and losses kept on the GPU; EMA and norms by _foreach ops; channels_last; "
        "pinned pictures copied ahead; torch.compile of the model; CUDA graph of the step",
        kiln_glazes,
        {
            "precision": {"autocast": True}, "unfused-attention": {"sdpa": True}, "sync-stall": {"read": False},
            "optimizer-foreach": {"together": True}, "memory-layout": {"last": True},
            "memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True},
        },
    ),
    written(
        "moss_contrast", "SimCLR with a ResNet-18 on 128 pictures, FP16 with a scaler: views made one by one on the GPU, masks, reads.",
        "views made in one batch; pairs by a mask of fixed shape, no reads; fused Adam takes the scaler's flag; bf16; channels_last; "
        "pinned pictures copied ahead; torch.compile of the encoder",
        moss_contrast,
        {
            "launch-gap": {"batched": True}, "sync-stall": {"masked": True}, "amp-scaler-sync": {"fused": True},
            "amp-scaler-sync/bf16": {"bf16": True}, "memory-layout": {"last": True}, "memcpy": {"ahead": True},
            "unfused-elementwise": {"compiled": True},
        },
    ),
    written(
        "vinyl_crates", "A deep interest network in training on 4096 rows, TF32: negatives and padding in Python, AUC by NumPy.",
        "crates padded once and negatives drawn on the GPU; loss and AUC kept on the GPU; a pinned buffer; torch.compile; "
        "fused Adam; bf16 autocast; CUDA graph of the step",
        vinyl_crates,
        {
            "host-bound": {"prepared": True}, "sync-stall": {"read": False}, "memcpy": {"pinned": True},
            "unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True},
            "graph-candidate": {"graphed": True},
        },
    ),
)  # fmt: skip
