"""RIFE in training on sixteen triples, FP16 with a scaler, NCHW; gradients filled with zeros; pageable bytes."""

from __future__ import annotations

from itertools import count as counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16, FP16 = torch.bfloat16, torch.float16


def pulled(picture: Tensor, flow: Tensor, grid: Tensor) -> Tensor:
    """The picture as the flow carries it."""
    high, wide = picture.shape[-2:]
    flow = flow.float()
    flow = torch.cat([flow[:, :1] / ((wide - 1.0) / 2.0), flow[:, 1:] / ((high - 1.0) / 2.0)], 1)
    return F.grid_sample(picture, (grid + flow).permute(0, 2, 3, 1), mode="bilinear", padding_mode="border", align_corners=True)


def rectified(inner: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, out, 3, stride, 1), nn.PReLU(out))


class Refiner(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.begin = nn.Sequential(rectified(inner, width // 2, 2), rectified(width // 2, width, 2))
        self.body = nn.Sequential(*(rectified(width, width, 1) for _ in range(8)))
        self.end = nn.ConvTranspose2d(width, 5, 4, 2, 1)

    def forward(self, x: Tensor, flow: Tensor | None, scale: int) -> tuple[Tensor, Tensor]:
        if scale != 1:
            x = F.interpolate(x, scale_factor=1.0 / scale, mode="bilinear", align_corners=False)
        if flow is not None:
            flow = F.interpolate(flow, scale_factor=1.0 / scale, mode="bilinear", align_corners=False) / scale
            x = torch.cat([x, flow], 1)
        x = self.begin(x)
        x = self.end(self.body(x) + x)
        x = F.interpolate(x, scale_factor=2.0 * scale, mode="bilinear", align_corners=False)
        return x[:, :4] * scale * 2.0, x[:, 4:]


class Between(nn.Module):
    """Three refiners, and a teacher who sees the true picture."""

    def __init__(self, side: int, widths: tuple[int, int, int]) -> None:
        super().__init__()
        self.refiners = nn.ModuleList(Refiner(6 if n == 0 else 17, width) for n, width in enumerate(widths))
        self.teacher = Refiner(20, widths[-1])
        line = torch.linspace(-1.0, 1.0, side)
        self.register_buffer("grid", torch.stack(torch.meshgrid(line, line, indexing="xy"))[None])

    def mixed(self, one: Tensor, two: Tensor, flow: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two = pulled(one, flow[:, :2], self.grid), pulled(two, flow[:, 2:], self.grid)
        part = torch.sigmoid(mask.float())
        return one, two, one * part + two * (1.0 - part)

    def forward(self, one: Tensor, two: Tensor, true: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The picture between, the teacher's, and how far the flows are from the teacher's where that one is better."""
        flow, mask = self.refiners[0](torch.cat([one, two], 1), None, 4)
        near, far, picture = self.mixed(one, two, flow, mask)
        flows, pictures = [flow], [picture]
        for refiner, scale in zip(self.refiners[1:], (2, 1), strict=True):
            more, sure = refiner(torch.cat([one, two, near, far, mask], 1), flow, scale)
            flow, mask = flow + more, mask + sure
            near, far, picture = self.mixed(one, two, flow, mask)
            flows.append(flow)
            pictures.append(picture)
        more, sure = self.teacher(torch.cat([one, two, near, far, mask, true], 1), flow, 1)
        taught = flow + more
        best = self.mixed(one, two, taught, mask + sure)[2]
        apart = best.new_zeros(())
        for flow, picture in zip(flows, pictures, strict=True):
            better = (picture - true).abs().mean(1, True) > (best - true).abs().mean(1, True) + 0.01
            off = ((taught.detach().float() - flow.float()).square().mean(1, True) + 1e-6).sqrt()
            apart = apart + (off * better.float().detach()).mean()
        return pictures[-1], best, apart


def pyramid(x: Tensor, kernel: Tensor, levels: int) -> list[Tensor]:
    bands = []
    for _ in range(levels):
        soft = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), kernel, groups=3)
        small = soft[:, :, ::2, ::2]
        bands.append(x - F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False))
        x = small
    return [*bands, x]


def blurry(guess: Tensor, true: Tensor, kernel: Tensor, levels: int) -> Tensor:
    """L1 between the pictures' Laplacian pyramids."""
    pairs = zip(pyramid(guess, kernel, levels), pyramid(true, kernel, levels), strict=True)
    return sum((2.0**n * (a - b).abs().mean() for n, (a, b) in enumerate(pairs)), start=guess.new_zeros(()))


def slow_motion(
    s: Setup,
    *,
    last: bool = False,
    compiled: bool = False,
    fused: bool = False,
    scaled: bool = True,
    none: bool = False,
    ahead: bool = False,
) -> Step:
    """Training in FP16 with a GradScaler on sixteen triples; gradients are filled with zeros; pictures are pageable bytes."""
    count, side, levels = s.size(16, 1), s.size(256, 64), s.size(4, 2)
    dtype = FP16 if scaled and s.cuda else BF16
    with s.device:
        model = Between(side, (s.size(240, 8), s.size(150, 8), s.size(90, 8)))
        row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0
        kernel = (row[:, None] * row).expand(3, 1, 5, 5).contiguous()
    if last:
        model = model.to(memory_format=torch.channels_last)
    network = s.compile(model, dynamic=False) if compiled else model
    wrong = s.compile(blurry, dynamic=False) if compiled else blurry
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-3, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    films = [torch.randint(256, (count, 9, side, side), dtype=torch.uint8) for _ in range(4)]
    queue = Prefetcher([(s.pin(film),) for film in films], s) if ahead else None
    turn = counter()

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        film = queue.next()[0] if queue else films[next(turn) % len(films)].to(s.device)
        film = film.float() / 255.0
        if last:
            film = film.contiguous(memory_format=torch.channels_last)
        one, two, true = film.split(3, 1)
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, dtype):
            picture, best, apart = network(one, two, true)
        loss = wrong(picture.float(), true, kernel, levels) + wrong(best.float(), true, kernel, levels) + 0.01 * apart
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


PROGRAM = written(
    "slow_motion",
    "RIFE in training on sixteen triples, FP16 with a scaler, NCHW; gradients filled with zeros; pageable bytes.",
    "channels_last; torch.compile of network and loss; fused AdamW; bf16 without a scaler; set_to_none; pinned bytes ahead",
    slow_motion,
    {
        "memory-layout": {"last": True},
        "unfused-elementwise": {"compiled": True},
        "amp-scaler-sync": {"fused": True},
        "amp-scaler-sync/bf16": {"scaled": False},
        "grad-zeroing": {"none": True},
        "memcpy": {"ahead": True},
    },
)
