"""Training a StarDist-like network that outlines the nuclei of stained tissue.

For each pixel of a 256 x 256 tile the network says how far inside a nucleus the pixel lies (object probability) and, along 32 rays, how far
it is to that nucleus' border. The encoder is timm's ResNet-34, the decoder a plain U-Net. The set of tiles is small enough to stay on
the GPU, and so flips, quarter turns and stain jitter are done there. Training is in bfloat16 autocast, with AdamW, a one-cycle schedule,
clipped gradients and an average of the weights that is used for validation later on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import timm
import torch
import torch.nn.functional as F
from timm.utils import ModelEmaV2
from torch import Tensor, nn

from ..base import Setup, Step

RAYS = 32


def draw_tile(rng: np.random.Generator, side: int, nuclei: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One tile: the picture (3, H, W) in bytes, the object probability (H, W) and the distances along the rays (RAYS, H, W)."""
    colour = np.array([232.0, 205.0, 224.0])[:, None, None] + rng.normal(0, 6, (3, side, side))
    probability = np.zeros((side, side), np.float32)
    distances = np.zeros((RAYS, side, side), np.float32)
    angles = 2 * math.pi * np.arange(RAYS) / RAYS
    for _ in range(nuclei):
        cy, cx = rng.uniform(0, side, 2)
        a, b, turn = rng.uniform(6, 13), rng.uniform(5, 9), rng.uniform(0, math.pi)
        top, left = max(int(cy - 14), 0), max(int(cx - 14), 0)
        rows, columns = slice(top, min(top + 29, side)), slice(left, min(left + 29, side))
        y, x = np.mgrid[rows, columns]
        cos, sin = math.cos(turn), math.sin(turn)
        u, v = ((x - cx) * cos + (y - cy) * sin) / a, ((y - cy) * cos - (x - cx) * sin) / b
        radius = u * u + v * v
        inside = (radius < 1) & (probability[rows, columns] == 0)
        if not inside.any():
            continue
        # Where the ray from (u, v) leaves the unit circle, in pixels.
        du = (np.cos(angles) * cos + np.sin(angles) * sin) / a
        dv = (np.sin(angles) * cos - np.cos(angles) * sin) / b
        quadratic = (du * du + dv * dv)[:, None]
        linear = du[:, None] * u[inside] + dv[:, None] * v[inside]
        constant = radius[inside] - 1
        ray = (-linear + np.sqrt(linear * linear - quadratic * constant)) / quadratic
        probability[rows, columns][inside] = 1 - np.sqrt(radius[inside])
        distances[:, rows, columns][:, inside] = np.maximum(ray, 0.1)
        colour[:, rows, columns][:, inside] -= np.array([105.0, 120.0, 70.0])[:, None] * rng.uniform(0.7, 1.2)
    return colour.clip(0, 255).astype(np.uint8), probability, distances


@dataclass
class Tiles:
    images: Tensor  # (N, 3, H, W), uint8
    probability: Tensor  # (N, H, W), float16
    distances: Tensor  # (N, RAYS, H, W), float16

    @classmethod
    def make(cls, count: int, side: int, nuclei: int, device: torch.device) -> Tiles:
        rng = np.random.default_rng(11)
        tiles = [draw_tile(rng, side, nuclei) for _ in range(count)]
        images, probability, distances = (np.stack(part) for part in zip(*tiles, strict=False))
        return cls(
            torch.from_numpy(images).to(device),
            torch.from_numpy(probability.astype(np.float16)).to(device),
            torch.from_numpy(distances.astype(np.float16)).to(device),
        )

    def batch(self, chosen: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        images = self.images[chosen].float() / 255
        probability, distances = self.probability[chosen].float().unsqueeze(1), self.distances[chosen].float()
        device = images.device
        if rng.random() < 0.5:  # left to right: the ray at angle t becomes the one at pi - t
            mirrored = (RAYS // 2 - torch.arange(RAYS, device=device)) % RAYS
            images, probability, distances = images.flip(-1), probability.flip(-1), distances.flip(-1)[:, mirrored]
        turns = int(rng.integers(4))
        if turns:
            images, probability, distances = (torch.rot90(part, turns, dims=(2, 3)) for part in (images, probability, distances))
            distances = distances.roll(-turns * RAYS // 4, dims=1)
        return jitter_stain(images), probability, distances


def jitter_stain(images: Tensor, sigma: float = 0.12) -> Tensor:
    """Scales and shifts the optical density of each channel."""
    count = images.shape[0]
    density = -torch.log(images.clamp(min=1 / 255))
    scale = 1 + sigma * torch.randn(count, 3, 1, 1, device=images.device)
    shift = 0.05 * torch.randn(count, 3, 1, 1, device=images.device)
    return torch.exp(-(density * scale + shift)).clamp(0, 1)


class Up(nn.Module):
    def __init__(self, below: int, skip: int, out: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(below + skip, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return self.block(x if skip is None else torch.cat([x, skip], dim=1))


class StarUNet(nn.Module):
    def __init__(self, encoder: str, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = timm.create_model(encoder, pretrained=False, features_only=True)
        channels = self.encoder.feature_info.channels()
        skips = [*channels[-2::-1], 0]
        ins = [channels[-1], *widths[:-1]]
        self.ups = nn.ModuleList(Up(below, skip, out) for below, skip, out in zip(ins, skips, widths, strict=False))
        self.features = nn.Sequential(nn.Conv2d(widths[-1], 64, 3, padding=1), nn.ReLU(inplace=True))
        self.probability, self.distances = nn.Conv2d(64, 1, 1), nn.Conv2d(64, RAYS, 1)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.encoder((images - self.mean) / self.std)
        x = maps[-1]
        for up, skip in zip(self.ups, [*maps[-2::-1], None], strict=False):
            x = up(x, skip)
        x = self.features(x)
        return self.probability(x).float(), self.distances(x).float()


def star_loss(logits: Tensor, rays: Tensor, probability: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the probability; absolute error of the rays, weighted by the probability, with a little pull to 0 outside."""
    prob_loss = F.binary_cross_entropy_with_logits(logits, probability)
    error = (rays - distances).abs().mean(dim=1, keepdim=True)
    inside = (probability * error).sum() / probability.sum().clamp(min=1e-6)
    outside = ((probability == 0) * rays.abs().mean(dim=1, keepdim=True)).mean()
    return prob_loss, inside + 1e-4 * outside


class ForeachEma:
    """ModelEmaV2.update over all tensors at once. The counters of the batch norms, which nothing reads, are copied."""

    def __init__(self, average: ModelEmaV2, model: nn.Module) -> None:
        pairs = list(zip(average.module.state_dict().values(), model.state_dict().values(), strict=False))
        real = [pair for pair in pairs if pair[0].is_floating_point()]
        whole = [pair for pair in pairs if not pair[0].is_floating_point()]
        self.means, self.values = [mean for mean, _ in real], [value for _, value in real]
        self.counts, self.counted = [mean for mean, _ in whole], [value for _, value in whole]
        self.weight = 1 - average.decay

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self.means, self.values, self.weight)
        if self.counts:
            torch._foreach_copy_(self.counts, self.counted)


def nuclei_outlines(
    s: Setup,
    *,
    ema_foreach: bool = False,
    compiled: bool = False,
    chains: bool = False,
    hoisted: bool = False,
    fused_adamw: bool = False,
) -> Step:
    """Each flag carries out one finding by itself: the average of the weights by foreach ops; the model compiled and AdamW fused; model and
    losses compiled in one; what the host looks up in every step looked up once; AdamW fused."""
    torch.manual_seed(11)
    batch = s.size(16, 2)
    tiles = Tiles.make(s.size(64, 4), s.size(256, 64), s.size(70, 6), s.device)
    widths = (256, 128, 64, 48, 32) if not s.tiny else (32, 16, 16, 8, 8)
    model = StarUNet("resnet34" if not s.tiny else "resnet18", widths).to(s.device)
    average = ModelEmaV2(model, decay=0.999)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0.0}], lr=3e-4, **({"fused": True} if compiled or fused_adamw else {}))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-4, total_steps=20_000, pct_start=0.1)
    rng = np.random.default_rng(12)
    order: list[Tensor] = []
    history: list[dict[str, float]] = []

    net = s.compile(model) if compiled else model

    kind = s.device.type

    def whole(images: Tensor, probability: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.autocast(kind, dtype=torch.bfloat16):
            logits, rays = model(images)
        prob_loss, ray_loss = star_loss(logits, rays, probability, distances)
        loss = prob_loss + 0.2 * ray_loss
        return loss, prob_loss.detach(), ray_loss.detach(), logits.detach()

    whole = s.compile(whole) if chains else whole
    ema = ForeachEma(average, model) if ema_foreach else None
    # The tensors of both models stay the same objects for the whole run, and nothing here calls eval() on the trained model.
    parameters = list(model.parameters()) if hoisted else []
    averaged = list(zip(average.module.state_dict().values(), model.state_dict().values(), strict=False)) if hoisted else []
    if hoisted:
        model.train()

    @torch.no_grad()
    def update_average() -> None:
        for mean, value in averaged:
            mean.copy_(average.decay * mean + (1.0 - average.decay) * value)

    def step() -> dict[str, float]:
        if not order:
            order.extend(torch.randperm(len(tiles.images), device=s.device).split(batch))
        images, probability, distances = tiles.batch(order.pop(), rng)
        if compiled or chains:  # quarter turns leave other strides, which would compile again
            images, probability, distances = images.contiguous(), probability.contiguous(), distances.contiguous()
        if not hoisted:
            model.train()
        optimizer.zero_grad(set_to_none=True)
        if chains:
            loss, prob_loss, ray_loss, logits = whole(images, probability, distances)
        else:
            with torch.autocast(s.device.type, dtype=torch.bfloat16):
                logits, rays = net(images)
            prob_loss, ray_loss = star_loss(logits, rays, probability, distances)
            loss = prob_loss + 0.2 * ray_loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters if hoisted else model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if ema is not None:
            ema.update()
        elif hoisted:
            update_average()
        else:
            average.update(model)
        with torch.no_grad():
            found, true = logits > 0, probability > 0.5
            overlap = (found & true).sum() / (found | true).sum().clamp(min=1)
        row = {"loss": loss.item(), "prob": prob_loss.item(), "rays": ray_loss.item(), "iou": overlap.item(), "norm": norm.item()}
        history.append(row)
        return row

    return step
