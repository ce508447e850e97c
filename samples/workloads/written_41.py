"""Programs in their authors' own code: a small Llama that learns librettos, PointNet++ on scanned sherds, a 3D U-Net for kidney lesions.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count as counter
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Librettos: a small Llama in training, after nanoGPT's loop.


class RMSNorm(nn.Module):
    def __init__(self, dim: int, op: bool, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.op, self.eps = nn.Parameter(torch.ones(dim)), op, eps

    def forward(self, x: Tensor) -> Tensor:
        if self.op:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.float()[..., ::2], x.float()[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.each, self.sdpa = heads, dim // heads, sdpa
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, self.each)) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)
        v = v.transpose(1, 2)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(self.each) + mask
            y = F.softmax(scores.float(), dim=-1).type_as(q) @ v
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, sdpa: bool, op: bool) -> None:
        super().__init__()
        self.attention, self.attention_norm, self.ffn_norm = Attention(dim, heads, sdpa), RMSNorm(dim, op), RMSNorm(dim, op)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor
    mask: Tensor

    def __init__(
        self, vocab: int, dim: int, layers: int, heads: int, hidden: int, context: int, sdpa: bool, op: bool, loss_op: bool
    ) -> None:
        super().__init__()
        self.loss_op = loss_op
        self.embed, self.norm, self.head = nn.Embedding(vocab, dim), RMSNorm(dim, op), nn.Linear(dim, vocab, bias=False)
        self.layers = nn.ModuleList(Block(dim, heads, hidden, sdpa, op) for _ in range(layers))
        rate = 10000.0 ** (-torch.arange(0, dim // heads, 2).float() / (dim // heads))
        turn = torch.outer(torch.arange(context).float(), rate)[:, None]
        self.register_buffer("cos", turn.cos(), persistent=False)
        self.register_buffer("sin", turn.sin(), persistent=False)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)
        self.apply(self.init)
        self.head.weight = self.embed.weight

    @staticmethod
    def init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.mask)
        logits = self.head(self.norm(x)).float().flatten(0, 1)
        targets = targets.flatten()
        if self.loss_op:
            return F.cross_entropy(logits, targets, ignore_index=-1)
        valid = targets != -1
        logits = logits - logits.max(-1, keepdim=True).values
        log_probs = logits - logits.exp().sum(-1, keepdim=True).log()
        nll = -log_probs.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        return (nll * valid).sum() / valid.sum()


def learning_rate(turn: int, peak: float = 6e-4, low: float = 6e-5, warmup: int = 200, end: int = 5000) -> float:
    if turn < warmup:
        return peak * (turn + 1) / (warmup + 1)
    return low + 0.5 * (1.0 + math.cos(math.pi * min(1.0, (turn - warmup) / (end - warmup)))) * (peak - low)


def opera_librettos(
    s: Setup,
    *,
    sdpa: bool = False,
    op: bool = False,
    loss_op: bool = False,
    padded: bool = False,
    compiled: bool = False,
    at_once: bool = False,
    fused: bool = False,
    read: bool = True,
) -> Step:
    """Training of a Llama of six layers on 8 x 512 tokens, bf16 autocast: attention, norms, loss and clipping by hand, with two reads."""
    rows, context, vocab, eos = s.size(8, 2), s.size(512, 16), s.size(32003, 67), 2
    dim, layers, heads, hidden = s.size(768, 32), s.size(6, 2), s.size(12, 2), s.size(2048, 48)
    rng = np.random.default_rng(411)
    text = (rng.zipf(1.2, s.size(1_000_000, 2000)) % vocab).astype(np.uint16)
    text[rng.integers(0, len(text), len(text) // 200)] = eos
    with s.device:
        model = Llama(-(-vocab // 64) * 64 if padded else vocab, dim, layers, heads, hidden, context, sdpa, op, loss_op)
        noted = torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **({"fused": True} if fused else {}))
    turn, history, limit = counter(), [], 1.0

    def get_batch() -> tuple[Tensor, Tensor]:
        at = rng.integers(0, len(text) - context - 1, rows)
        x = torch.stack([torch.from_numpy(text[i : i + context].astype(np.int64)) for i in at])
        y = torch.stack([torch.from_numpy(text[i + 1 : i + 1 + context].astype(np.int64)) for i in at])
        y[x == eos] = -1
        return x.to(s.device), y.to(s.device)

    def clip() -> Tensor:
        if at_once:
            return torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in parameters))
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        for p in parameters:
            p.grad.mul_(scale)
        return norm

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        now = next(turn)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(now)
        x, y = get_batch()
        with torch.autocast(s.device.type, BF16):
            loss = network(x, y)
        loss.backward()
        norm = clip()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if read:
            history.append((now, loss.item(), norm.item()))
            del history[:-100]
        else:
            noted.add_(torch.stack([loss.detach(), norm]))
        return loss.detach()

    return step


# Sherds: PointNet++ (single scale) says which vessel a scanned sherd is of.


def closer(xyz: Tensor, distance: Tensor, farthest: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    dist = ((xyz - xyz[rows, farthest][:, None]) ** 2).sum(-1)
    distance = torch.minimum(distance, dist)
    return distance, distance.max(-1)[1]


Closer = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def farthest_point_sample(xyz: Tensor, npoint: int, still: bool, nearest: Closer) -> Tensor:
    rows = torch.arange(len(xyz), device=xyz.device)
    centroids = torch.zeros(len(xyz), npoint, dtype=torch.long, device=xyz.device)
    distance = torch.full(xyz.shape[:2], 1e10, device=xyz.device)
    farthest = torch.randint(0, xyz.shape[1], (len(xyz),), device=xyz.device)
    for i in range(npoint):
        centroids[:, i] = farthest
        if still:
            distance, farthest = nearest(xyz, distance, farthest, rows)
        else:
            centroid = xyz[rows, farthest][:, None]
            dist = torch.sum((xyz - centroid) ** 2, -1)
            mask = dist < distance
            distance[mask] = dist[mask]
            farthest = torch.max(distance, -1)[1]
    return centroids


def index_points(points: Tensor, idx: Tensor) -> Tensor:
    rows = torch.arange(len(points), device=points.device).view(-1, *[1] * (idx.dim() - 1))
    return points[rows, idx]


def query_ball_point(radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor, still: bool) -> Tensor:
    far = -2 * new_xyz @ xyz.transpose(1, 2) + (new_xyz**2).sum(-1)[:, :, None] + (xyz**2).sum(-1)[:, None]
    count = xyz.shape[1]
    idx = torch.arange(count, device=xyz.device).repeat(*far.shape[:2], 1).masked_fill(far > radius**2, count)
    idx = idx.sort(-1)[0][:, :, :nsample]
    first = idx[:, :, :1].repeat(1, 1, idx.shape[2])
    if still:
        return torch.where(idx == count, first, idx)
    mask = idx == count
    idx[mask] = first[mask]
    return idx


class SetAbstraction(nn.Module):
    def __init__(self, npoint: int, radius: float, nsample: int, inner: int, widths: list[int], how: dict[str, Any]) -> None:
        super().__init__()
        self.npoint, self.radius, self.nsample = npoint, radius, nsample
        self.still, self.nearest, self.last, self.autocast = how["still"], how["nearest"], how["last"], how["autocast"]
        sizes = [inner, *widths]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(sizes, widths, strict=False))
        self.bns = nn.ModuleList(nn.BatchNorm2d(b) for b in widths)

    def group(self, xyz: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        if not self.npoint:
            return torch.zeros_like(xyz[:, :1]), torch.cat([xyz, points], -1)[:, None]
        new_xyz = index_points(xyz, farthest_point_sample(xyz, self.npoint, self.still, self.nearest))
        idx = query_ball_point(self.radius, self.nsample, xyz, new_xyz, self.still)
        return new_xyz, torch.cat([index_points(xyz, idx) - new_xyz[:, :, None], index_points(points, idx)], -1)

    def forward(self, xyz: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        new_xyz, y = self.group(xyz, points)
        y = y.permute(0, 3, 1, 2) if self.last else y.permute(0, 3, 2, 1).contiguous()
        with torch.autocast(y.device.type, BF16, enabled=self.autocast):
            for conv, bn in zip(self.convs, self.bns, strict=True):
                y = F.relu(bn(conv(y)))
        return new_xyz, torch.max(y, 3 if self.last else 2)[0].transpose(1, 2).contiguous()


class PointNet2(nn.Module):
    def __init__(self, s: Setup, classes: int, how: dict[str, Any]) -> None:
        super().__init__()
        w, self.autocast = s.size(64, 4), how["autocast"]
        self.sa1 = SetAbstraction(s.size(256, 8), 0.2, s.size(32, 4), 6, [w, w, 2 * w], how)
        self.sa2 = SetAbstraction(s.size(64, 4), 0.4, s.size(64, 4), 2 * w + 3, [2 * w, 2 * w, 4 * w], how)
        self.sa3 = SetAbstraction(0, 0.0, 0, 4 * w + 3, [4 * w, 8 * w, 16 * w], how)
        self.head = nn.Sequential(
            nn.Linear(16 * w, 8 * w), nn.BatchNorm1d(8 * w), nn.ReLU(), nn.Dropout(0.4),
            nn.Linear(8 * w, 4 * w), nn.BatchNorm1d(4 * w), nn.ReLU(), nn.Dropout(0.4), nn.Linear(4 * w, classes),
        )  # fmt: skip

    def forward(self, cloud: Tensor) -> Tensor:
        xyz, points = cloud[..., :3].contiguous(), cloud[..., 3:].contiguous()
        for layer in (self.sa1, self.sa2, self.sa3):
            xyz, points = layer(xyz, points)
        with torch.autocast(cloud.device.type, BF16, enabled=self.autocast):
            logits = self.head(points[:, 0])
        return F.log_softmax(logits.float(), -1)


def augmented(clouds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random dropout, scale and shift, cloud by cloud."""
    clouds = clouds.copy()
    for cloud in clouds:
        dropped = rng.random(len(cloud)) <= rng.random() * 0.875
        cloud[dropped] = cloud[0]
        cloud[:, :3] *= rng.uniform(0.8, 1.25)
        cloud[:, :3] += rng.uniform(-0.1, 0.1, 3)
    return clouds


def pottery_sherds(
    s: Setup,
    *,
    still: bool = False,
    read: bool = True,
    compiled: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    last: bool = False,
    fused: bool = False,
    pinned: bool = False,
) -> Step:
    """Training of PointNet++ on 24 clouds of 1024 points, FP32: a loop picks the farthest points by masks; loss and accuracy are read."""
    rows, count, classes = s.size(24, 4), s.size(1024, 32), s.size(40, 5)
    rng = np.random.default_rng(412)
    clouds, labels = rng.standard_normal((rows * 8, count, 6)).astype(np.float32), rng.integers(0, classes, rows * 8)
    clouds /= np.linalg.norm(clouds.reshape(-1, count, 2, 3), axis=-1).repeat(3, -1)
    clouds[..., :3] *= rng.uniform(0.3, 1.0, (rows * 8, 1, 3))
    how = {"still": still or compiled or graphed, "autocast": autocast, "last": last}
    how["nearest"] = s.compile(closer, dynamic=False) if compiled else closer
    with s.device:
        model = PointNet2(s, classes, how).train()
        noted, points, truth = torch.zeros(2), torch.zeros(rows, count, 6), torch.zeros(rows, dtype=torch.long)
    if last:
        model = model.to(memory_format=torch.channels_last)
    more = {"fused": True} if fused else {}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, capturable=graphed and s.cuda, **more)
    reading = read and not graphed
    losses: list[float] = []
    mean_correct: list[float] = []

    def ready() -> tuple[Tensor, Tensor]:
        pick = rng.integers(0, len(clouds), rows)
        batch, told = torch.from_numpy(augmented(clouds[pick], rng)), torch.from_numpy(labels[pick])
        if pinned:
            return s.pin(batch).to(s.device, non_blocking=True), s.pin(told).to(s.device, non_blocking=True)
        return batch.to(s.device), told.to(s.device)

    def learn(batch: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        pred = model(batch)
        loss = F.nll_loss(pred, target)
        loss.backward()
        optimizer.step()
        correct = pred.detach().max(1)[1].eq(target).sum()
        if reading:
            losses.append(loss.item())
            mean_correct.append(correct.item() / rows)
            del losses[:-100], mean_correct[:-100]
        else:
            noted.add_(torch.stack([loss.detach(), correct / rows]))
        return loss.detach()

    def fill() -> None:
        for place, value in zip((points, truth), ready(), strict=True):
            place.copy_(value)

    if graphed:
        torch.set_float32_matmul_precision("highest")
        fill()
        work = capture(lambda: learn(points, truth), s)

    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        if not graphed:
            return learn(*ready())
        fill()
        return work()

    return step


# Lesions: a 3D U-Net on patches of CT scans, with Dice and weighted cross entropy, a mean of the weights, and Dice by class.


class Scans(Dataset[tuple[np.ndarray, np.ndarray]]):
    """Patches around a voxel of a class that is drawn; flipped, with noise and another gamma."""

    def __init__(self, scans: int, side: int, patch: int, classes: int, prepared: bool) -> None:
        rng = np.random.default_rng(413)
        self.patch, self.classes, self.scans, self.labels = patch, classes, [], []
        grid = np.stack(np.meshgrid(*[np.arange(side, dtype=np.float32)] * 3, indexing="ij"))
        for _ in range(scans):
            centre = rng.uniform(0.35, 0.65, (3, 1, 1, 1)) * side
            far = np.sqrt(((grid - centre) ** 2).sum(0)) / side
            label = np.select([far < 0.06, far < 0.1, far < 0.25], [3, 2, 1], 0).astype(np.uint8)
            self.scans.append(rng.standard_normal(label.shape, dtype=np.float32) + label)
            self.labels.append(label)
        self.places = [[np.argwhere(label == c) for c in range(classes)] for label in self.labels] if prepared else None

    def __len__(self) -> int:
        return 64 * len(self.scans)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng, n = np.random.default_rng(index), index % len(self.scans)
        scan, label, kind = self.scans[n], self.labels[n], int(rng.integers(0, self.classes))
        places = self.places[n][kind] if self.places else np.argwhere(label == kind)
        middle = places[rng.integers(0, len(places))]
        first = np.clip(middle - self.patch // 2, 0, np.array(label.shape) - self.patch)
        window = tuple(slice(a, a + self.patch) for a in first)
        image, mask = scan[window], label[window]
        image = (image - image.mean()) / (image.std() + 1e-5)
        for axis in range(3):
            if rng.random() < 0.5:
                image, mask = np.flip(image, axis), np.flip(mask, axis)
        image = image + np.float32(0.1) * rng.standard_normal(image.shape, dtype=np.float32)
        low, high = image.min(), image.max()
        image = ((image - low) / (high - low)) ** np.float32(rng.uniform(0.7, 1.5)) * (high - low) + low
        return np.ascontiguousarray(image[None], dtype=np.float32), np.ascontiguousarray(mask)


def norm_act(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.leaky_relu(F.instance_norm(x, weight=weight, bias=bias), 0.01)


class ConvNormAct(nn.Module):
    def __init__(self, inner: int, out: int, act: Callable[..., Tensor]) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv3d(inner, out, 3, padding=1, bias=False), act
        self.weight, self.bias = nn.Parameter(torch.ones(out)), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x), self.weight, self.bias)


class UNet3D(nn.Module):
    def __init__(self, widths: list[int], classes: int, act: Callable[..., Tensor]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(self.double(a, b, act) for a, b in [(1, widths[0]), *pairs])
        self.ups = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.merges = nn.ModuleList(self.double(2 * a, a, act) for a, _ in reversed(pairs))
        self.out = nn.Conv3d(widths[0], classes, 1)

    @staticmethod
    def double(inner: int, out: int, act: Callable[..., Tensor]) -> nn.Sequential:
        return nn.Sequential(ConvNormAct(inner, out, act), ConvNormAct(out, out, act))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for n, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if n else x)
            skips.append(x)
        for up, merge, skip in zip(self.ups, self.merges, reversed(skips[:-1]), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.out(x)


def dice_ce(logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Soft Dice over the classes of the foreground, and weighted cross entropy."""
    logits = logits.float()
    probs = torch.softmax(logits, 1)
    loss = F.cross_entropy(logits, target, weight=weights)
    for c in range(1, logits.shape[1]):
        p, t = probs[:, c], (target == c).float()
        inter, total = (p * t).sum((1, 2, 3)), p.sum((1, 2, 3)) + t.sum((1, 2, 3))
        loss = loss + (1.0 - (2.0 * inter + 1e-5) / (total + 1e-5)).mean() / (logits.shape[1] - 1)
    return loss


def endless(loader: DataLoader[Any]) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def kidney_lesions(
    s: Setup,
    *,
    workers: bool = False,
    prepared: bool = False,
    autocast: bool = False,
    last: bool = False,
    read: bool = True,
    compiled: bool = False,
    norms: bool = False,
    at_once: bool = False,
) -> Step:
    """Training of a 3D U-Net on 2 patches of 80 x 80 x 80, TF32, with a mean of weights: the loop cuts patches and reads Dice by class."""
    rows, patch, side, classes, scans = s.size(2, 2), s.size(80, 16), s.size(112, 32), 4, s.size(4, 2)
    widths = [s.size(32, 4) * 2**n for n in range(s.size(4, 2))]
    more = {"num_workers": s.size(4, 1), "persistent_workers": True, "pin_memory": s.cuda} if workers else {}
    loader = DataLoader(Scans(scans, side, patch, classes, prepared), batch_size=rows, shuffle=True, drop_last=True, **more)
    batches = endless(loader)
    act = s.compile(norm_act, dynamic=False) if norms else norm_act
    with s.device:
        model, mean = UNet3D(widths, classes, act).train(), UNet3D(widths, classes, act).requires_grad_(False)
        weights, noted = torch.tensor([0.2, 1.0, 2.0, 4.0]), torch.zeros(classes)
    mean.load_state_dict(model.state_dict())
    if last:
        model, mean = (net.to(memory_format=torch.channels_last_3d) for net in (model, mean))
    network = s.compile(model, dynamic=False) if compiled else model
    criterion = s.compile(dice_ce, dynamic=False) if compiled else dice_ce
    parameters, means = list(model.parameters()), list(mean.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    turn, history = counter(), []

    @torch.no_grad()
    def update_mean(keep: float = 0.999) -> None:
        if at_once:
            torch._foreach_lerp_(means, parameters, 1.0 - keep)
            return
        for m, p in zip(means, parameters, strict=True):
            m.mul_(keep).add_(p, alpha=1.0 - keep)

    @torch.no_grad()
    def report(loss: Tensor, logits: Tensor, target: Tensor) -> None:
        pred = logits.argmax(1)
        scores = [loss]
        for c in range(1, classes):
            p, t = pred == c, target == c
            inter, total = (p & t).sum(), p.sum() + t.sum()
            if read:
                scores.append(2.0 * inter.item() / max(total.item(), 1))
            else:
                scores.append(2.0 * inter / total.clamp(min=1))
        if read:
            history.append([loss.item(), *scores[1:]])
            del history[:-100]
        else:
            noted.add_(torch.stack(scores))

    def step() -> Tensor:
        image, target = next(batches)
        image, target = (part.to(s.device, non_blocking=workers) for part in (image, target))
        target = target.long()
        if last:
            image = image.contiguous(memory_format=torch.channels_last_3d)
        optimizer.param_groups[0]["lr"] = 0.01 * (1.0 - min(next(turn), 9000) / 10000) ** 0.9
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(image)
        loss = criterion(logits, target, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 12.0)
        optimizer.step()
        update_mean()
        report(loss.detach(), logits.detach(), target)
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "opera_librettos",
        "A Llama of six layers in training on 8 x 512 tokens, bf16 autocast: attention, RMSNorm, loss and clipping written out.",
        "scaled_dot_product_attention; F.rms_norm; vocabulary of 32003 padded to 32064; torch.compile of the model and its loss; "
        "F.cross_entropy; fused AdamW; clip_grad_norm_ over all tensors; no reads",
        opera_librettos,
        {
            "unfused-attention": {"sdpa": True}, "unfused-norm": {"op": True}, "gemm-alignment": {"padded": True},
            "unfused-elementwise": {"compiled": True}, "unfused-elementwise/loss": {"loss_op": True},
            "optimizer-foreach": {"fused": True}, "optimizer-foreach/clip": {"at_once": True}, "sync-stall": {"read": False},
        },
    ),
    written(
        "pottery_sherds",
        "PointNet++ in training on 24 clouds of 1024 points, FP32: a loop picks the farthest points by masks; loss and accuracy are read.",
        "masks of fixed shape and no reads; no reads; the loop's pass without masks, compiled; CUDA graph of the step; bf16 autocast; "
        "channels_last without the copy after the permute; fused Adam; pinned clouds",
        pottery_sherds,
        {
            "sync-stall": {"still": True, "read": False}, "sync-stall/read": {"read": False}, "launch-gap": {"compiled": True},
            "graph-candidate": {"graphed": True}, "precision": {"autocast": True}, "memory-layout": {"last": True},
            "optimizer-foreach": {"fused": True}, "memcpy": {"pinned": True},
        },
    ),
    written(
        "kidney_lesions",
        "A 3D U-Net in training on 2 patches of 80 x 80 x 80, TF32: the training process cuts the patches; Dice by class is read.",
        "four workers; the classes' voxels found once; no reads; bf16 autocast; channels_last_3d; torch.compile of model and loss; "
        "torch.compile of norm and activation; the mean of the weights at once",
        kidney_lesions,
        {
            "data-loading": {"workers": True}, "host-bound": {"prepared": True}, "sync-stall": {"read": False},
            "precision": {"autocast": True}, "memory-layout": {"last": True}, "unfused-elementwise": {"compiled": True},
            "small-grid": {"norms": True}, "optimizer-foreach": {"at_once": True},
        },
    ),
)  # fmt: skip
