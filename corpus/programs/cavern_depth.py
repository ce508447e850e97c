"""MobileNetV4 of timm with Monodepth2's decoder, evaluated on 2 x 16 pictures; masks pick and errors are read one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, capture
from workloads.public import BF16, COMPILED, How, _call, _casting, _placed, _precision, _public, _timm

LOW, HIGH = 1e-3, 80.0


def up(inner: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(inner, out, 3), nn.ELU(inplace=True))


class DepthNet(nn.Module):
    """Monodepth2's decoder on features of timm."""

    def __init__(self, encoder: Any, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder, skips = encoder, encoder.feature_info.channels()
        above = [*widths[1:], skips[-1]]
        self.before = nn.ModuleList(up(a, b) for a, b in zip(above, widths, strict=True))
        self.after = nn.ModuleList(up(b + a, b) for a, b in zip([0, *skips[:-1]], widths, strict=True))
        self.out = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(widths[0], 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        x = features[-1]
        for level in range(len(self.before) - 1, -1, -1):
            x = F.interpolate(self.before[level](x), scale_factor=2, mode="nearest")
            if level:
                x = torch.cat([x, features[level - 1]], 1)
            x = self.after[level](x)
        return torch.sigmoid(self.out(x))


def compute_errors(gt: Tensor, pred: Tensor) -> list[Tensor]:
    thresh = torch.max(gt / pred, pred / gt)
    a1, a2, a3 = ((thresh < 1.25**power).float().mean() for power in (1, 2, 3))
    rmse = torch.sqrt(((gt - pred) ** 2).mean())
    rmse_log = torch.sqrt(((torch.log(gt) - torch.log(pred)) ** 2).mean())
    abs_rel, sq_rel = ((gt - pred).abs() / gt).mean(), ((gt - pred) ** 2 / gt).mean()
    return [abs_rel, sq_rel, rmse, rmse_log, a1, a2, a3]


def cavern_depth(s: Setup, *, late: bool = False, batched: bool = False, graphed: bool = False, **how: Any) -> Step:
    """Evaluation of a depth network on 16 pictures and their mirror images; medians and seven errors are taken picture by picture."""
    way = How(**how)
    batch, height, width, tall, wide = s.size(16, 2), s.size(192, 64), s.size(640, 64), s.size(480, 80), s.size(1280, 80)
    with s.device:
        encoder = _timm("mobilenetv4_conv_small", features_only=True)
        model = DepthNet(encoder, (4, 4, 8, 8, 8) if s.tiny else (16, 32, 64, 128, 256))
        sums, ramp = torch.zeros(8), torch.linspace(0, 1, width)
        held = torch.zeros(2 * batch, 3, height, width)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    order = torch.channels_last if way.channels_last else torch.contiguous_format
    files = []
    for _ in range(3):
        scan = (1.0 + 78.0 * torch.rand(batch, tall, wide)) * (torch.rand(batch, tall, wide) < 0.05)
        files.append((torch.rand(batch, 3, height, width), scan))
    loader = Prefetcher([tuple(s.pin(part) for part in group) for group in files], s) if way.pinned else None
    top, bottom, left, right = int(0.41 * tall), int(0.99 * tall), int(0.035 * wide), int(0.965 * wide)
    names = ("abs_rel", "sq_rel", "rmse", "rmse_log", "a1", "a2", "a3", "ratio")
    turn, totals, logs, kept = 0, np.zeros(8), dict.fromkeys(names, 0.0), []

    def post_process(disparity: Tensor) -> Tensor:
        """Each picture's own, its mirror image's at the left edge, and the mean between."""
        plain, mirrored = disparity.chunk(2)
        mirrored = mirrored.flip(-1)
        edge = 1.0 - (20.0 * (ramp - 0.05)).clamp(0, 1)
        other = edge.flip(0)
        return other * plain + edge * mirrored + (1.0 - edge - other) * 0.5 * (plain + mirrored)

    def errors_of(scaled: Tensor, truth: Tensor) -> list[Tensor]:
        depth = 1.0 / F.interpolate(scaled[None], truth.shape, mode="bilinear", align_corners=False)[0, 0]
        mask = (truth > LOW) & (truth < HIGH)
        crop = torch.zeros_like(mask)
        crop[top:bottom, left:right] = True
        mask = mask & crop
        pred, gt = depth[mask], truth[mask]
        ratio = gt.median() / pred.median()
        return [*compute_errors(gt, (pred * ratio).clamp(LOW, HIGH)), ratio]

    def errors_of_all(scaled: Tensor, truth: Tensor) -> Tensor:
        depth = 1.0 / F.interpolate(scaled, truth.shape[1:], mode="bilinear", align_corners=False)[:, 0, top:bottom, left:right].flatten(1)
        gt = truth[:, top:bottom, left:right].flatten(1)
        mask = (gt > LOW) & (gt < HIGH)
        count = mask.sum(1)
        ratio = gt.masked_fill(~mask, torch.nan).nanmedian(1)[0] / depth.masked_fill(~mask, torch.nan).nanmedian(1)[0]
        pred, gt = (depth * ratio[:, None]).clamp(LOW, HIGH), torch.where(mask, gt, 1.0)
        thresh, square = torch.max(gt / pred, pred / gt), (gt - pred) ** 2

        def mean(x: Tensor) -> Tensor:
            return torch.where(mask, x, 0.0).sum(1) / count

        shares = [mean((thresh < 1.25**power).float()) for power in (1, 2, 3)]
        log = mean((torch.log(gt) - torch.log(pred)) ** 2)
        return torch.stack([mean((gt - pred).abs() / gt), mean(square / gt), mean(square).sqrt(), log.sqrt(), *shares, ratio]).sum(1)

    @torch.no_grad()
    def forward() -> None:
        kept[:] = [model(held)]

    _precision(way)
    replay = capture(forward, s) if graphed else None

    @torch.no_grad()
    def step() -> dict[str, float]:
        nonlocal turn, totals
        _precision(way)
        images, truth = loader.next() if loader else tuple(part.to(s.device) for part in files[turn % len(files)])
        turn += 1
        both = torch.cat([images, images.flip(-1)]).contiguous(memory_format=order)
        if replay:
            held.copy_(both)
            replay()
            disparity = kept[0]
        else:
            with _casting(s, way):
                disparity = run(both)
        scaled = 1.0 / HIGH + (1.0 / 0.1 - 1.0 / HIGH) * post_process(disparity.float())
        if batched:
            totals += errors_of_all(scaled, truth).tolist()
        elif late:
            sums.add_(torch.stack([torch.stack(errors_of(scaled[at], truth[at])) for at in range(batch)]).sum(0))
        else:
            for at in range(batch):
                totals += [error.item() for error in errors_of(scaled[at], truth[at])]
        if turn % 50 == 0:
            if late:
                totals += sums.tolist()
                sums.zero_()
            logs.update(zip(names, (totals / (50 * batch)).tolist(), strict=True))
            totals = np.zeros(8)
        return logs

    return step


PROGRAM = _public(
    "cavern_depth",
    "MobileNetV4 of timm with Monodepth2's decoder, evaluated on 2 x 16 pictures; masks pick and errors are read one by one.",
    cavern_depth,
    {},
    {
        "sync-stall": {"late": True},
        "sync-stall/masks": {"batched": True},
        "memcpy": {"pinned": True},
        "memory-layout": {"channels_last": True},
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "graph-candidate": {"graphed": True},
    },
)
