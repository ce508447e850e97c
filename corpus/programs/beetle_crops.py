"""DINO on ViT small of timm, FP32, 32 pictures in 6 crops, blurred one by one; norms clipped and read, EMA by a loop."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _optimizer, _placed, _precision, _public, _timm


class Dino(nn.Module):
    """A trunk and the projection to prototypes; crops of one size go through together."""

    def __init__(self, trunk: Any, inner: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Sequential(
            nn.Linear(trunk.num_features, inner), nn.GELU(), nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, bottleneck),
        )  # fmt: skip
        self.prototypes = nn.Parameter(torch.randn(prototypes, bottleneck) * 0.02)

    def forward(self, sizes: list[list[Tensor]]) -> Tensor:
        features = torch.cat([self.trunk(torch.cat(crops)) for crops in sizes])
        return F.linear(F.normalize(self.head(features), dim=-1), F.normalize(self.prototypes, dim=-1))


def _boxes(rng: np.random.Generator, count: int, low: float, high: float) -> np.ndarray[Any, Any]:
    """Random resized crops and flips as matrices of F.affine_grid."""
    area, ratio = rng.uniform(low, high, count), np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), count))
    wide, tall = np.minimum(np.sqrt(area * ratio), 1.0), np.minimum(np.sqrt(area / ratio), 1.0)
    flip, none = np.where(rng.random(count) < 0.5, -1.0, 1.0), np.zeros(count)
    across, down = rng.uniform(-1.0, 1.0, count) * (1.0 - wide), rng.uniform(-1.0, 1.0, count) * (1.0 - tall)
    return np.stack([flip * wide, none, across, none, tall, down], 1).astype(np.float32).reshape(-1, 2, 3)


def beetle_crops(s: Setup, *, batched: bool = False, averaged: bool = False, late: bool = False, blocks: bool = False, **how: Any) -> Step:
    """DINO on a small ViT in FP32: 2 large and 4 small crops of each picture, blurred one by one; each gradient's norm is clipped and read."""
    from torchvision.transforms.v2 import functional as V

    way = How(**how)
    batch, stored, large, small, few = s.size(32, 2), s.size(256, 72), s.size(224, 64), s.size(96, 32), s.size(4, 2)
    prototypes, crops = s.size(4096, 24), 2 + few
    sizes: dict[str, Any] = {"depth": 2, "embed_dim": 32, "num_heads": 2} if s.tiny else {}
    with s.device:
        trunk = _timm("vit_small_patch16_224", img_size=large, num_classes=0, dynamic_img_size=True, **sizes)
        student = Dino(trunk, s.size(2048, 48), s.size(256, 16), prototypes)
        grey = torch.tensor((0.299, 0.587, 0.114))[:, None, None]
        mean, std = (torch.tensor(part)[:, None, None] for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        centre, sums, taps = torch.zeros(prototypes), torch.zeros(3), torch.arange(-4.0, 5.0)
    student = _placed(s, way, student).train()
    teacher = copy.deepcopy(student).requires_grad_(False)
    if blocks:
        for net in (student, teacher):
            for block in net.trunk.blocks:
                block.forward = s.compile(block.forward, dynamic=False)
    weights, slow = list(student.parameters()), list(teacher.parameters())
    groups = [
        {"params": [p for p in weights if p.dim() >= 2], "weight_decay": 0.04},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = _optimizer(way, groups)
    drawers = [torch.randint(256, (batch, 3, stored, stored), dtype=torch.uint8) for _ in range(4)]
    if way.pinned:
        drawers = [s.pin(drawer) for drawer in drawers]
    rng, turn, logs = np.random.default_rng(0), 0, {"loss": 0.0, "norm": 0.0, "entropy": 0.0}

    def blur(x: Tensor, share: float) -> Tensor:
        chosen, sigmas = np.flatnonzero(rng.random(batch) < share), rng.uniform(0.1, 2.0, batch)
        if not batched:
            for at in chosen:
                x[at] = V.gaussian_blur(x[at], kernel_size=[9, 9], sigma=[sigmas[at], sigmas[at]])
        elif len(chosen):
            where = torch.from_numpy(chosen).to(s.device)
            sigma = torch.from_numpy(sigmas[chosen].astype(np.float32)).to(s.device)
            kernel = torch.softmax(-0.5 * (taps / sigma[:, None]) ** 2, -1).repeat_interleave(3, 0)[:, None]
            y = F.pad(x[where].flatten(0, 1)[None], (4, 4, 4, 4), mode="reflect")
            y = F.conv2d(F.conv2d(y, kernel[:, :, None], groups=len(kernel)), kernel[..., None], groups=len(kernel))
            x[where] = y.view(len(chosen), 3, *x.shape[2:])
        return x

    def crop(raw: Tensor, side: int, low: float, high: float, blurred: float, solarized: float) -> Tensor:
        theta = torch.from_numpy(_boxes(rng, batch, low, high)).to(s.device)
        x = F.grid_sample(raw, F.affine_grid(theta, [batch, 3, side, side], align_corners=False), align_corners=False)
        drawn = rng.uniform(0.6, 1.4, (3, batch, 1, 1, 1)).astype(np.float32)
        light, contrast, colour = torch.from_numpy(drawn).to(s.device)
        x = (x * light).clamp(0, 1)
        middle = (x * grey).sum(1, keepdim=True).mean((2, 3), keepdim=True)
        x = (middle + (x - middle) * contrast).clamp(0, 1)
        plain = (x * grey).sum(1, keepdim=True)
        without = torch.from_numpy(rng.random((batch, 1, 1, 1)) < 0.2).to(s.device)
        x = torch.where(without, plain, (plain + (x - plain) * colour).clamp(0, 1))
        x = blur(x, blurred)
        if solarized:
            turned = torch.from_numpy(rng.random((batch, 1, 1, 1)) < solarized).to(s.device)
            x = torch.where(turned & (x >= 0.5), 1.0 - x, x)
        return (x - mean) / std

    def clip(limit: float = 3.0) -> Any:
        """Tensor by tensor, as DINO does."""
        norms: list[Any] = []
        for p in weights:
            norm = p.grad.norm(2)
            if late:
                p.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
                norms.append(norm)
            else:
                norms.append(norm.item())
                if limit / (norms[-1] + 1e-6) < 1.0:
                    p.grad.mul_(limit / (norms[-1] + 1e-6))
        return torch.stack(norms).mean() if late else sum(norms) / len(norms)

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        done = min(turn / 20_000, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-6 + 0.5 * (5e-4 - 1e-6) * (1.0 + math.cos(math.pi * done))
        keep = 1.0 - 0.004 * 0.5 * (1.0 + math.cos(math.pi * done))
        raw = drawers[turn % 4].to(s.device, non_blocking=way.pinned)
        turn += 1
        with torch.no_grad():
            raw = raw.float() / 255.0
            wide = [crop(raw, large, 0.4, 1.0, 1.0, 0.0), crop(raw, large, 0.4, 1.0, 0.1, 0.2)]
            narrow = [crop(raw, small, 0.05, 0.4, 0.25, 0.0) for _ in range(few)]
        with _casting(s, way):
            with torch.no_grad():
                told = teacher([wide])
            said = student([wide, narrow])
        told, views = told.float(), (said.float() / 0.1).chunk(crops)
        soft = F.softmax((told - centre) / 0.04, -1)
        loss, terms = 0.0, 0
        for at, target in enumerate(soft.chunk(2)):
            for view, scores in enumerate(views):
                if view != at:
                    loss = loss + torch.sum(-target * F.log_softmax(scores, -1), -1).mean()
                    terms += 1
        loss = loss / terms
        optimizer.zero_grad()
        loss.backward()
        norm = clip()
        optimizer.step()
        with torch.no_grad():
            centre.mul_(0.9).add_(told.mean(0), alpha=0.1)
            if averaged:
                torch._foreach_lerp_(slow, weights, 1.0 - keep)
            else:
                for old, new in zip(slow, weights, strict=True):
                    old.data.mul_(keep).add_((1.0 - keep) * new.detach().data)
            entropy = -(soft * torch.log(soft + 1e-8)).sum(-1).mean()
        if late:
            sums.add_(torch.stack([loss.detach(), norm, entropy]))
            if turn % 50 == 0:
                logs.update(zip(logs, [value / 50 for value in sums.tolist()], strict=True))
                sums.zero_()
        else:
            logs.update(loss=loss.item(), norm=norm, entropy=entropy.item())
        return logs

    return step


PROGRAM = _public(
    "beetle_crops",
    "DINO on ViT small of timm, FP32, 32 pictures in 6 crops, blurred one by one; norms clipped and read, EMA by a loop.",
    beetle_crops,
    {},
    {
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "host-bound": {"batched": True},
        "sync-stall": {"late": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "optimizer-foreach/mean": {"averaged": True},
        "memcpy": {"pinned": True},
        "unfused-elementwise": {"blocks": True},
    },
)
