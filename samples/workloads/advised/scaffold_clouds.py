"""Masked pre-training of a point cloud transformer (Point-MAE) on scans of scaffold parts.

The clouds live on the GPU. A step samples points of a batch of clouds, scales and shifts them, picks patch centres by farthest
point sampling, groups their neighbours, embeds each patch with a small PointNet, encodes the visible patches, and has a light
decoder rebuild the hidden ones, measured by the Chamfer distance. FP32 with TF32 matrix products, AdamW, a cosine schedule
with warm-up, gradient clipping. Every so often a nearest-centroid probe on the pooled features checks what was learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Setup, Step

SHAPES = 8

MASKING = np.random.default_rng(37)


def made_up_parts(count: int, points: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scaffold parts made of tubes: each class is a set of tubes, each scan has its own proportions, turn and noise."""
    plans = [rng.uniform(-1, 1, size=(rng.integers(2, 6), 2, 3)) for _ in range(SHAPES)]
    labels = rng.integers(0, SHAPES, size=count)
    clouds = np.empty((count, points, 3), dtype=np.float32)
    for i, label in enumerate(labels):
        tubes = plans[label] * rng.uniform(0.7, 1.3, size=3)
        which = rng.integers(0, len(tubes), size=points)
        along = rng.random((points, 1))
        cloud = tubes[which, 0] * along + tubes[which, 1] * (1 - along)
        skin = rng.standard_normal((points, 3))
        cloud += 0.06 * skin / np.linalg.norm(skin, axis=1, keepdims=True) + 0.004 * rng.standard_normal((points, 3))
        turn = rng.uniform(0, 2 * math.pi)
        rotation = np.array([[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0], [0, 0, 1]])
        cloud = (cloud - cloud.mean(0)) @ rotation
        clouds[i] = cloud / np.linalg.norm(cloud, axis=1).max()
    return clouds, labels


def take(points: Tensor, index: Tensor) -> Tensor:
    """points (b, n, c), index (b, ...) -> (b, ..., c)."""
    rows = torch.arange(len(points), device=points.device).view(-1, *[1] * (index.ndim - 1))
    return points[rows, index]


@torch.no_grad()
def farthest_points(points: Tensor, count: int) -> Tensor:
    batch, total, _ = points.shape
    chosen = torch.zeros(batch, count, dtype=torch.long, device=points.device)
    distance = torch.full((batch, total), float("inf"), device=points.device)
    farthest = torch.randint(0, total, (batch,), device=points.device)
    rows = torch.arange(batch, device=points.device)
    for i in range(count):
        chosen[:, i] = farthest
        centre = points[rows, farthest][:, None]
        distance = torch.minimum(distance, ((points - centre) ** 2).sum(-1))
        farthest = distance.argmax(-1)
    return chosen


PASSES = 8  # of the farthest point sampling in one compiled function


def some_passes(points: Tensor, distance: Tensor, farthest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.arange(len(points), device=points.device)
    chosen = []
    for _ in range(PASSES):
        chosen.append(farthest)
        centre = points[rows, farthest][:, None]
        distance = torch.minimum(distance, ((points - centre) ** 2).sum(-1))
        farthest = distance.argmax(-1)
    return torch.stack(chosen, 1), distance, farthest


def patches_around(points: Tensor, near: Tensor, centres: Tensor) -> Tensor:
    return take(points, near) - centres[:, :, None]


class CompiledGroup:
    """`farthest_points` and `group`, with the passes compiled a few at a time (the count of patches is a multiple of it)."""

    def __init__(self, s: Setup) -> None:
        self.some_passes, self.patches_around = s.compile(some_passes, dynamic=False), s.compile(patches_around, dynamic=False)

    @torch.no_grad()
    def farthest_points(self, points: Tensor, count: int) -> Tensor:
        batch, total, _ = points.shape
        assert count % PASSES == 0
        distance = torch.full((batch, total), float("inf"), device=points.device)
        farthest = torch.randint(0, total, (batch,), device=points.device)
        chosen = []
        for _ in range(count // PASSES):
            some, distance, farthest = self.some_passes(points, distance, farthest)
            chosen.append(some)
        return torch.cat(chosen, 1)

    def __call__(self, points: Tensor, patches: int, neighbours: int) -> tuple[Tensor, Tensor]:
        centres = take(points, self.farthest_points(points, patches))
        near = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist").topk(neighbours, dim=-1, largest=False, sorted=False).indices
        return self.patches_around(points, near, centres), centres


def group(points: Tensor, patches: int, neighbours: int) -> tuple[Tensor, Tensor]:
    """Patches of neighbours relative to their centres, and the centres."""
    centres = take(points, farthest_points(points, patches))
    near = torch.cdist(centres, points, compute_mode="donot_use_mm_for_euclid_dist").topk(neighbours, dim=-1, largest=False, sorted=False).indices
    return take(points, near) - centres[:, :, None], centres


class PatchEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(3, 128, 1), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Conv1d(128, 256, 1))
        self.second = nn.Sequential(nn.Conv1d(512, 512, 1), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Conv1d(512, dim, 1))

    def forward(self, patches: Tensor) -> Tensor:
        batch, count, neighbours, _ = patches.shape
        x = self.first(patches.reshape(batch * count, neighbours, 3).transpose(2, 1))
        overall = x.max(dim=2, keepdim=True).values
        x = self.second(torch.cat([overall.expand(-1, -1, neighbours), x], dim=1))
        return x.max(dim=2).values.reshape(batch, count, -1)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.heads, self.drop_path = heads, drop_path
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def drop(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_path == 0:
            return x
        kept = 1 - self.drop_path
        return x * x.new_empty(len(x), 1, 1).bernoulli_(kept).div_(kept)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(x))
        return x + self.drop(self.mlp(self.norm2(x)))

    def attend(self, x: Tensor) -> Tensor:
        batch, count, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, count, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, count, dim)
        return self.out(attended)

    def placed(self, x: Tensor, place: Tensor, drop1: Tensor, drop2: Tensor) -> Tensor:
        """`forward` of x + place in training, with the factors of the two drops handed in: every block then is the same function."""
        x = x + place
        x = x + drop1 * self.attend(x)
        return x + drop2 * self.mlp(self.norm2(x))


class PointMAE(nn.Module):
    def __init__(self, dim: int, depth: int, decoder_depth: int, heads: int, neighbours: int, mask_ratio: float) -> None:
        super().__init__()
        self.mask_ratio, self.neighbours = mask_ratio, neighbours
        self.embed = PatchEmbedding(dim)
        self.place = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, dim))
        self.decoder_place = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, dim))
        rates = np.linspace(0, 0.1, depth).tolist()
        self.encoder = nn.ModuleList(Block(dim, heads, rate) for rate in rates)
        self.decoder = nn.ModuleList(Block(dim, heads, 0.1) for _ in range(decoder_depth))
        self.norm, self.decoder_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.rebuild = nn.Conv1d(dim, 3 * neighbours, 1)
        nn.init.trunc_normal_(self.mask_token, std=0.02)
        self.compiled: dict[str, Callable[..., Any]] = {}
        self.by_index: Setup | None = None

    def compile_parts(self, s: Setup) -> None:
        """Compiles what is between the boolean selections, for training; all blocks share one function."""
        block, embed, last = Block.placed, self.embed.forward, self.last
        self.compiled = {name: s.compile(part, dynamic=False) for name, part in (("block", block), ("embed", embed), ("last", last))}
        kept = 1 - torch.tensor([block.drop_path for block in (*self.encoder, *self.decoder) for _ in range(2)], device=s.device)
        self.register_buffer("kept", kept.view(-1, 1, 1, 1), persistent=False)

    def drops(self, batch: int) -> list[Tensor]:
        return list((torch.bernoulli(self.kept.expand(-1, batch, 1, 1)) / self.kept).unbind())

    def random_mask_on_host(self, batch: int, patches: int) -> np.ndarray:
        hidden = int(self.mask_ratio * patches)
        masks = np.zeros((batch, patches), dtype=bool)
        for row in masks:
            row[MASKING.permutation(patches)[:hidden]] = True
        return masks

    def random_mask(self, batch: int, patches: int, device: torch.device) -> Tensor:
        return torch.from_numpy(self.random_mask_on_host(batch, patches)).to(device)

    def random_split(self, batch: int, patches: int, s: Setup) -> tuple[Tensor, Tensor]:
        """The numbers of the visible and of the hidden patches, (batch, ...) in ascending order."""
        masks = self.random_mask_on_host(batch, patches)
        hidden = int(self.mask_ratio * patches)
        both = torch.from_numpy(np.argsort(masks, axis=1, kind="stable"))
        return s.pin(both).to(s.device, non_blocking=True).split([patches - hidden, hidden], 1)  # type: ignore[return-value]

    def encode(self, tokens: Tensor, centres: Tensor) -> Tensor:
        place = self.place(centres)
        for block in self.encoder:
            tokens = block(tokens + place)
        return self.norm(tokens)

    def features(self, patches: Tensor, centres: Tensor) -> Tensor:
        tokens = self.encode(self.embed(patches), centres)
        return torch.cat([tokens.mean(1), tokens.max(1).values], -1)

    def forward(self, patches: Tensor, centres: Tensor) -> Tensor:
        batch, count, neighbours, _ = patches.shape
        if self.by_index is None:
            mask = self.random_mask(batch, count, patches.device)
            tokens = self.embedded(patches)
            dim = tokens.shape[-1]
            visible_tokens, visible_centres = tokens[~mask].reshape(batch, -1, dim), centres[~mask].reshape(batch, -1, 3)
        else:
            seen, unseen = self.random_split(batch, count, self.by_index)
            tokens = self.embedded(patches)
            dim = tokens.shape[-1]
            visible_tokens, visible_centres = pick(tokens, seen), pick(centres, seen)
        drops = self.drops(batch) if self.compiled else []
        visible = self.encode_dropped(visible_tokens, visible_centres, drops) if drops else self.encode(visible_tokens, visible_centres)
        hidden_centres = centres[mask].reshape(batch, -1, 3) if self.by_index is None else pick(centres, unseen)
        hidden = hidden_centres.shape[1]
        again = centres[~mask].reshape(batch, -1, 3) if self.by_index is None else visible_centres
        place = self.decoder_place(torch.cat([again, hidden_centres], 1))
        x = torch.cat([visible, self.mask_token.expand(batch, hidden, -1)], 1)
        if drops:
            for i, block in enumerate(self.decoder, len(self.encoder)):
                x = self.compiled["block"](block, x, place, drops[2 * i], drops[2 * i + 1])
        else:
            for block in self.decoder:
                x = block(x + place)
        if self.by_index is None and not self.compiled:
            rebuilt = self.rebuilt(x, hidden)
            return chamfer(rebuilt, patches[mask].reshape(batch * hidden, neighbours, 3))
        target = patches[mask] if self.by_index is None else pick(patches.flatten(2), unseen)
        return self.compiled.get("last", self.last)(x, target.reshape(batch * hidden, neighbours, 3), hidden)

    def embedded(self, patches: Tensor) -> Tensor:
        return self.compiled["embed"](patches) if self.compiled else self.embed(patches)

    def encode_dropped(self, tokens: Tensor, centres: Tensor, drops: list[Tensor]) -> Tensor:
        place = self.place(centres)
        for i, block in enumerate(self.encoder):
            tokens = self.compiled["block"](block, tokens, place, drops[2 * i], drops[2 * i + 1])
        return self.norm(tokens)

    def rebuilt(self, x: Tensor, hidden: int) -> Tensor:
        x = self.decoder_norm(x[:, -hidden:])
        return self.rebuild(x.transpose(1, 2)).transpose(1, 2).reshape(len(x) * hidden, self.neighbours, 3)

    def last(self, x: Tensor, target: Tensor, hidden: int) -> Tensor:
        return chamfer(self.rebuilt(x, hidden), target)


def pick(x: Tensor, index: Tensor) -> Tensor:
    """x (b, n, c), index (b, k) -> (b, k, c)."""
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[-1]))


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    squared = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    return squared.min(2).values.mean() + squared.min(1).values.mean()


class Late:
    """Numbers of a step on their way to the host, where they are read one step later (those of the first step at once)."""

    def __init__(self, s: Setup, count: int) -> None:
        self.buffers = [s.pin(torch.zeros(count)) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
        self.turn = 0

    def swap(self, values: list[Tensor]) -> list[float]:
        now = self.turn % 2
        self.buffers[now].copy_(torch.stack(values), non_blocking=True)
        if self.events:
            self.events[now].record()
        read = 1 - now if self.turn else now
        if self.events:
            self.events[read].synchronize()
        self.turn += 1
        return self.buffers[read].tolist()


def scaffold_clouds(s: Setup, *, launch: bool = False, late: bool = False, compiled: bool = False) -> Step:
    torch.manual_seed(37)
    torch.set_float32_matmul_precision("high")
    made, made_labels = made_up_parts(s.size(1024, 48), s.size(4096, 256), np.random.default_rng(37))
    clouds, labels = torch.from_numpy(made).to(s.device), torch.from_numpy(made_labels).to(s.device)
    batch, sampled = s.size(128, 8), s.size(1024, 128)
    patches, neighbours = s.size(64, 16), s.size(32, 8)
    model = PointMAE(s.size(384, 48), s.size(12, 2), s.size(4, 1), s.size(6, 3), neighbours, mask_ratio=0.6).to(s.device)
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "token" not in name]
    plain = [p for name, p in model.named_parameters() if p.ndim <= 1 or "token" in name]
    if compiled or launch:
        model.compile_parts(s)
    if late:
        model.by_index = s
    groups = CompiledGroup(s) if compiled else group
    logged, rate = Late(s, 2), 0.0
    more: dict[str, Any] = {"fused": True} if launch else {}
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, **more)
    epochs, warm = 300, 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: (epoch + 1) / warm if epoch < warm else 0.5 * (1 + math.cos(math.pi * (epoch - warm) / (epochs - warm)))
    )
    per_epoch = len(clouds) // batch
    order = torch.randperm(len(clouds), device=s.device)
    steps = 0

    def sample(index: Tensor) -> Tensor:
        points = clouds[index]
        return points[:, torch.randperm(points.shape[1], device=s.device)[:sampled]]

    @torch.no_grad()
    def probe() -> float:
        """Accuracy of the nearest class centroid: half of a batch makes the centroids, the other half is classified."""
        model.eval()
        index = torch.randperm(len(clouds), device=s.device)[:batch]
        found = F.normalize(model.features(*group(sample(index), patches, neighbours)), dim=-1)
        half = batch // 2
        sums = torch.zeros(SHAPES, found.shape[1], device=s.device).index_add_(0, labels[index[:half]], found[:half])
        guess = (found[half:] @ F.normalize(sums, dim=-1).T).argmax(1)
        model.train()
        return (guess == labels[index[half:]]).float().mean().item()

    model.train()
    log: dict[str, float] = {}

    def step() -> dict[str, float]:
        nonlocal steps, order, rate
        turn = steps % per_epoch
        if turn == 0 and steps > 0:
            order = torch.randperm(len(clouds), device=s.device)
            schedule.step()
        points = sample(order[turn * batch : (turn + 1) * batch])
        scale = torch.empty(batch, 1, 3, device=s.device).uniform_(2 / 3, 3 / 2)
        shift = torch.empty(batch, 1, 3, device=s.device).uniform_(-0.2, 0.2)
        loss = model(*groups(points * scale + shift, patches, neighbours))

        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        if late:
            now = optimizer.param_groups[0]["lr"]
            loss_value, norm_value = logged.swap([loss.detach(), norm])
            log.update(loss=1000 * loss_value, norm=norm_value, lr=rate if steps else now)
            rate = now
        else:
            log.update(loss=1000 * loss.item(), norm=norm.item(), lr=optimizer.param_groups[0]["lr"])
        if steps % 50 == 0:
            log["probe"] = probe()
        steps += 1
        return dict(log)

    return step
