"""Public models of mushrooms, seals, jewels and fish, by an author who has not read the rules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _optimizer, _placed, _precision, _timm
from .public_models_2 import HALF
from .public_models_4 import _public

COLOURS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _preparing(s: Setup) -> Callable[[Tensor], Tensor]:
    mean, std = (torch.tensor(colours, device=s.device).view(3, 1, 1) for colours in COLOURS)
    return lambda pictures: (pictures.float() / 255 - mean) / std


# Classes and views.


def _windows_at_once(self: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
    """LocallyGroupedAttn of timm with its products in one kernel, all windows as one batch."""
    (batch, many, width), (high, wide), side = x.shape, size, self.ws
    x = F.pad(x.view(batch, high, wide, width), (0, 0, 0, -wide % side, 0, -high % side))
    rows, columns = x.shape[1] // side, x.shape[2] // side
    x = x.view(batch, rows, side, columns, side, width).transpose(2, 3)
    q, k, v = self.qkv(x).reshape(-1, side * side, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, rows, columns, side, side, width).transpose(2, 3)
    x = x.reshape(batch, rows * side, columns * side, width)[:, :high, :wide].reshape(batch, many, width)
    return self.proj(x)  # type: ignore[no-any-return]


def mushroom_baskets(
    s: Setup, *, fused: bool = False, ahead: bool = False, kept: bool = False, kinds: int = 1307, **how: Any
) -> Step:  # fmt: skip
    """Twins-SVT learns 1307 mushrooms from 96 mixed photos in FP16 autocast with a scaler and clipped gradients; the loss is read."""
    way = How(**{"autocast": HALF if s.cuda else BF16, "scaler": True, **how})
    batch, side, known = s.size(96, 4), s.size(224, 64), s.size(1307, 11)
    shape: dict[str, Any] = {"depths": [1, 1, 1, 1], "embed_dims": [16, 16, 32, 32], "num_heads": [1, 1, 2, 2]} if s.tiny else {"depths": [2, 2, 6, 2]}
    model: Any = _timm("twins_svt_small", num_classes=s.size(kinds, 16), img_size=side, drop_path_rate=0.1, **shape)
    for module in model.modules():
        kind = type(module).__name__
        if kind == "LocallyGroupedAttn" and fused:
            module.forward = MethodType(_windows_at_once, module)
        if kind in ("LocallyGroupedAttn", "GlobalSubSampleAttn"):
            module.fused_attn = fused
    model = _placed(s, way, model).train()
    run, optimizer = _call(s, way, model), _optimizer(way, model.parameters(), weight_decay=0.05)
    scaler = torch.amp.GradScaler(s.device.type, enabled=way.scaler and s.cuda)
    baskets = [(torch.randint(256, (batch, 3, side, side), dtype=torch.uint8), torch.randint(known, (batch,))) for _ in range(4)]
    loader = Prefetcher([(s.pin(photos), s.pin(names)) for photos, names in baskets], s) if ahead else None
    prepared, chance = _preparing(s), np.random.default_rng(0)
    turn, shown = 0, 0.0

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        photos, names = loader.next() if loader else (part.to(s.device) for part in baskets[turn % 4])
        share = float(chance.beta(0.8, 0.8))
        x = prepared(photos)
        x = share * x + (1 - share) * x.flip(0)
        optimizer.zero_grad()
        with _casting(s, way):
            told = run(x)
            loss = share * F.cross_entropy(told, names) + (1 - share) * F.cross_entropy(told, names.flip(0))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        if not kept or turn % 50 == 0:
            shown = loss.item()
        turn += 1
        return shown

    return step


def _head(inside: int, hidden: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inside, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outside))


def _cuts(many: int) -> tuple[Tensor, Tensor]:
    """Where each view looks, some of them in a mirror, and how bright it is."""
    scale = torch.empty(many, 2).uniform_(0.4, 1.0)
    shift = (1 - scale) * torch.empty(many, 2).uniform_(-1.0, 1.0)
    mirror = torch.stack([torch.where(torch.rand(many) < 0.5, -1.0, 1.0), torch.ones(many)], 1)
    return torch.cat([torch.diag_embed(scale * mirror), shift[:, :, None]], 2), torch.empty(many).uniform_(0.6, 1.4)


def seal_whiskers(s: Setup, *, together: bool = False, listed: bool = False, kept: bool = False, **how: Any) -> Step:
    """BYOL of a GENet on two views of 96 photos of seals in FP32; views are cut one by one on the GPU, the teacher's mean goes tensor by tensor."""
    way = How(**how)
    batch, side, cut, width = s.size(96, 4), s.size(224, 48), s.size(160, 32), s.size(256, 16)
    backbone: Any = _timm("gernet_s", num_classes=0)
    hidden = s.size(2048, 32)
    student = _placed(s, way, nn.Sequential(backbone, _head(backbone.num_features, hidden, width))).train()
    teacher = copy.deepcopy(student).requires_grad_(False)
    guess = _placed(s, way, _head(width, hidden, width)).train()
    learn, teach = _call(s, way, student), _call(s, way, teacher)
    optimizer = _optimizer(way, [*student.parameters(), *guess.parameters()], weight_decay=1e-4)
    means, news = list(teacher.parameters()), list(student.parameters())
    herds = [torch.randint(256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    prepared, turn, shown = _preparing(s), 0, 0.0

    def view(photos: Tensor) -> Tensor:
        cuts, lights = _cuts(batch)
        if together:
            grid = F.affine_grid(cuts.to(s.device), [batch, 3, cut, cut], align_corners=False)
            seen = F.grid_sample(photos, grid, padding_mode="border", align_corners=False) * lights.to(s.device).view(-1, 1, 1, 1)
        else:
            parts = []
            for photo, where, light in zip(photos, cuts, lights.tolist(), strict=True):
                grid = F.affine_grid(where[None].to(s.device), [1, 3, cut, cut], align_corners=False)
                parts.append(F.grid_sample(photo[None], grid, padding_mode="border", align_corners=False) * light)
            seen = torch.cat(parts)
        return seen.contiguous(memory_format=torch.channels_last) if way.channels_last else seen

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        photos = prepared(herds[turn % 4].to(s.device))
        one, two = view(photos), view(photos)
        optimizer.zero_grad()
        with _casting(s, way):
            with torch.no_grad():
                ends = teach(two), teach(one)
            loss = 4 - 2 * torch.stack([F.cosine_similarity(guess(learn(x)), end).mean() for x, end in zip((one, two), ends, strict=True)]).sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if listed:
                torch._foreach_lerp_(means, news, 0.01)
            else:
                for mean, new in zip(means, news, strict=True):
                    mean.mul_(0.99).add_(new, alpha=0.01)
        if not kept or turn % 50 == 0:
            shown = loss.item()
        turn += 1
        return shown

    return step


# Finding.


class _Looks(nn.Module):
    """ReXNet of timm with generalised mean pooling over two sizes of a photo, and a whitened vector of length one."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.body: Any = _timm("rexnet_100", num_classes=0)
        self.power, self.white = nn.Parameter(torch.tensor(3.0)), nn.Linear(self.body.num_features, width)
        self.sides = side, side * 7 // 10

    def forward(self, photos: Tensor) -> Tensor:
        seen = torch.zeros((), device=photos.device)
        for side in self.sides:
            x = self.body.forward_features(F.interpolate(photos, size=(side, side), mode="bilinear", align_corners=False)).float()
            seen = seen + F.normalize(x.clamp(min=1e-6).pow(self.power).mean((2, 3)).pow(1 / self.power), dim=-1)
        return F.normalize(self.white(seen).float(), dim=-1)


def pawned_jewels(
    s: Setup, *, batch: int = 1, graphed: bool = False, late: bool = False, pinned: bool = False, **how: Any
) -> Step:  # fmt: skip
    """ReXNet looks for a jewel among 500,000 stolen ones in FP32: one photo, two sizes, an expanded second search; hits are read number by number."""
    way, many = How(**how), s.size(batch, max(1, batch // 4))
    side, width, stolen, near, best = s.size(320, 64), s.size(512, 16), s.size(500_000, 200), s.size(50, 5), s.size(20, 3)
    model = _placed(s, way, _Looks(side, width)).eval()
    run = s.compile(model, mode=way.compiled, dynamic=False) if way.compiled else model
    shelf = F.normalize(torch.randn(stolen, width, device=s.device), dim=-1)
    calls = [torch.randint(256, (many, s.size(480, 80), s.size(480, 80), 3), dtype=torch.uint8) for _ in range(8)]
    calls = [s.pin(call) for call in calls] if pinned else calls
    prepared = _preparing(s)
    photos = torch.zeros_like(calls[0], device=s.device)
    hits = torch.zeros(many, 2, best, dtype=torch.float64, device=s.device)
    held = [s.pin(torch.zeros_like(hits, device="cpu")) for _ in range(2)]
    there = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
    turn = 0

    @torch.no_grad()
    def searched() -> None:
        x = prepared(photos.permute(0, 3, 1, 2))
        x = x.contiguous(memory_format=torch.channels_last if way.channels_last else torch.contiguous_format)
        with _casting(s, way):
            asked = run(x)
        likeness, which = (asked @ shelf.T).topk(near)
        wider = F.normalize(asked + (likeness.clamp(min=0).pow(3)[:, :, None] * shelf[which]).sum(1), dim=-1)
        likeness, which = (wider @ shelf.T).topk(best)
        hits.copy_(torch.stack([which.double(), likeness.double()], 1))

    _precision(way)
    search = capture(searched, s) if graphed else searched

    def step() -> list[list[tuple[float, float]]]:
        nonlocal turn
        _precision(way)
        photos.copy_(calls[turn % 8], non_blocking=pinned)
        search()
        now, turn = turn % 2, turn + 1
        if not late:
            return [[(which.item(), likeness.item()) for which, likeness in zip(*call, strict=True)] for call in hits]
        held[now].copy_(hits, non_blocking=True)
        if s.cuda:
            there[now].record()
            if turn > 1:
                there[1 - now].synchronize()
        return [list(zip(*call, strict=True)) for call in held[1 - now].tolist()]

    return step


class _Centres(nn.Module):
    """CenterNet on MobileNetV4 of timm: a pyramid down to a quarter of the picture, how likely a centre is, and a shift and a size for each."""

    def __init__(self, name: str, width: int, kinds: int) -> None:
        super().__init__()
        self.body: Any = _timm(name, features_only=True, out_indices=(1, 2, 3, 4))
        self.sides = nn.ModuleList(nn.Conv2d(inside, width, 1) for inside in self.body.feature_info.channels())
        self.smooth = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.heat, self.shape = self._head(width, kinds), self._head(width, 4)
        nn.init.constant_(self.heat[-1].bias, -2.19)  # type: ignore[arg-type]

    @staticmethod
    def _head(width: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, outside, 1))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        levels = [side(seen) for side, seen in zip(self.sides, self.body(pictures), strict=True)]
        x = levels.pop()
        while levels:
            x = levels.pop() + F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.smooth(x)
        return self.heat(x).float(), self.shape(x).float()


def _drawn(shoals: list[NDArray[np.float32]], kinds: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """A blob for each fish (x, y, width, height, kind), drawn one by one; its shift and size at its centre; where centres are."""
    heat, shape = np.zeros((len(shoals), kinds, side, side), np.float32), np.zeros((len(shoals), 4, side, side), np.float32)
    there = np.zeros((len(shoals), side, side), np.bool_)
    for i, shoal in enumerate(shoals):
        for x, y, wide, high, kind in shoal:
            column, row, reach = int(x), int(y), max(1, int(0.3 * min(wide, high)))
            span = np.arange(-reach, reach + 1, dtype=np.float32)
            blob = np.exp(-(span[:, None] ** 2 + span**2) / (2 * ((2 * reach + 1) / 6) ** 2))
            patch = heat[i, int(kind), max(row - reach, 0) : row + reach + 1, max(column - reach, 0) : column + reach + 1]
            inside = blob[max(reach - row, 0) :, max(reach - column, 0) :][: patch.shape[0], : patch.shape[1]]
            np.maximum(patch, inside, out=patch)
            shape[i, :, row, column] = x - column, y - row, wide, high
            there[i, row, column] = True
    return torch.from_numpy(heat), torch.from_numpy(shape), torch.from_numpy(there)


def _drawn_at_once(fish: Tensor, kinds: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Likewise for the whole batch (batch, fish, 5) on its device; a fish of no width is none."""
    batch, (x, y, wide, high, kind) = fish.shape[0], fish.unbind(-1)
    column, row, reach = x.floor(), y.floor(), (0.3 * torch.minimum(wide, high)).floor().clamp(min=1)

    def bell(centre: Tensor) -> Tensor:
        far = torch.arange(side, device=fish.device) - centre[:, :, None]
        return torch.exp(-(far**2) / (2 * ((2 * reach[:, :, None] + 1) / 6) ** 2)) * (far.abs() <= reach[:, :, None])

    real = wide > 0
    blobs = (bell(row)[..., None] * (bell(column) * real[:, :, None])[:, :, None, :]).flatten(2)
    heat = torch.zeros(batch, kinds, side * side, device=fish.device)
    heat.scatter_reduce_(1, kind.long()[:, :, None].expand_as(blobs), blobs, "amax")
    cell = torch.where(real, (row * side + column).long(), side * side)
    shape = torch.zeros(batch, 4, side * side + 1, device=fish.device)
    shape.scatter_(2, cell[:, None].expand(-1, 4, -1), torch.stack([x - column, y - row, wide, high], 1))
    there = torch.zeros(batch, side * side + 1, dtype=torch.bool, device=fish.device).scatter_(1, cell, torch.ones_like(real))
    return heat.view(batch, kinds, side, side), shape[..., :-1].reshape(batch, 4, side, side), there[:, :-1].reshape(batch, side, side)


def _focal(told: Tensor, heat: Tensor) -> Tensor:
    p = told.sigmoid().clamp(1e-4, 1 - 1e-4)
    centre = heat.eq(1).float()
    hit = (1 - p) ** 2 * p.log() * centre
    miss = (1 - heat) ** 4 * p**2 * (1 - p).log() * (1 - centre)
    return -(hit + miss).sum() / centre.sum().clamp(min=1)


def salmon_ladder(
    s: Setup, *, ahead: bool = False, at_once: bool = False, masked: bool = False, **how: Any
) -> Step:  # fmt: skip
    """CenterNet finds eight kinds of fish in 16 pictures of a fish ladder, BF16 autocast, NCHW; NumPy draws the heat maps fish by fish."""
    way = How(**{"autocast": BF16, **how})
    batch, side, kinds, most = s.size(16, 2), s.size(512, 64), 8, s.size(32, 4)
    model = _placed(s, way, _Centres("mobilenetv4_conv_small" if s.tiny else "mobilenetv4_conv_medium", s.size(96, 16), kinds)).train()
    run, focal = _call(s, way, model), s.compile(_focal, dynamic=False) if way.compiled else _focal
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam)
    chance, cells = np.random.default_rng(0), side // 4
    films = [torch.randint(256, (batch, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    loader = Prefetcher([(s.pin(film),) for film in films], s) if ahead else None
    shoals = []
    for _ in films:
        fish = np.concatenate([chance.uniform(0, cells, (batch, most, 2)), chance.uniform(3, cells / 3, (batch, most, 2))], 2)
        fish = np.concatenate([fish, chance.integers(kinds, size=(batch, most, 1))], 2).astype(np.float32)
        shoals.append([page[: chance.integers(most // 2, most + 1)] for page in fish])
    padded = [s.pin(torch.from_numpy(np.stack([np.pad(page, ((0, most - len(page)), (0, 0))) for page in shoal]))) for shoal in shoals]
    prepared, turn, shown = _preparing(s), 0, 0.0

    def step() -> float:
        nonlocal turn, shown
        _precision(way)
        now = turn % 4
        film = loader.next()[0] if loader else films[now].to(s.device)
        x = prepared(film)
        x = x.contiguous(memory_format=torch.channels_last) if way.channels_last else x
        if at_once:
            heat, shape, there = _drawn_at_once(padded[now].to(s.device, non_blocking=True), kinds, cells)
        else:
            heat, shape, there = (part.to(s.device) for part in _drawn(shoals[now], kinds, cells))
        optimizer.zero_grad()
        with _casting(s, way):
            warm, formed = run(x)
        if masked:
            fit = ((formed - shape).abs() * there[:, None]).sum() / (4 * there.sum().clamp(min=1))
        else:
            formed, shape = (part.permute(0, 2, 3, 1)[there] for part in (formed, shape))
            fit = F.l1_loss(formed, shape)
        loss = focal(warm, heat) + 0.1 * fit
        loss.backward()
        optimizer.step()
        if not masked or turn % 50 == 0:
            shown = loss.item()
        turn += 1
        return shown

    return step


WORKLOADS = (
    _public(
        "mushroom_baskets", "Twins-SVT of timm, training in fp16 autocast with a scaler on 96 mixed pageable photos, attention written out; a read.",
        mushroom_baskets, {},
        {"amp-scaler-sync": {"optimizer": "fused"}, "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False}, "unfused-attention": {"fused": True},
         "unfused-elementwise": {"compiled": COMPILED}, "memcpy": {"ahead": True}, "sync-stall": {"kept": True}, "gemm-alignment": {"kinds": 1344}},
    ),
    _public(
        "seal_whiskers", "BYOL of timm's GENet, training in FP32 on two views of 96 photos, each cut by itself; the teacher's mean in a loop; a read.",
        seal_whiskers, {},
        {"launch-gap": {"together": True}, "optimizer-foreach": {"listed": True}, "optimizer-foreach/fused": {"optimizer": "fused"},
         "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "memory-layout": {"channels_last": True}, "sync-stall": {"kept": True}},
    ),
    _public(
        "pawned_jewels", "ReXNet of timm, FP32, one photo in two sizes against 500,000 vectors, twice; 40 numbers are read one by one.",
        pawned_jewels, {},
        {"launch-gap": {"compiled": GRAPHS}, "graph-candidate": {"graphed": True}, "low-arithmetic-intensity": {"batch": 8},
         "sync-stall": {"late": True}, "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "memcpy": {"pinned": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "salmon_ladder", "CenterNet on timm's MobileNetV4, training in bf16 autocast, NCHW, on 16 pageable pictures; NumPy draws the targets; a read.",
        salmon_ladder, {},
        {"host-bound": {"at_once": True}, "sync-stall": {"masked": True}, "memory-layout": {"channels_last": True},
         "unfused-elementwise": {"compiled": COMPILED}, "memcpy": {"ahead": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
)  # fmt: skip
