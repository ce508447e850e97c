"""A matting U-Net in training on 16 portraits of 320, bf16 autocast, NCHW; weights are averaged tensor by tensor."""

from __future__ import annotations

import copy
from itertools import count as counter
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16 = torch.bfloat16


def conv(inner: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(inner, out, stride), nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        same = inner == out and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class Cutter(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = conv(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(nn.Sequential(Residual(a, b, 2), Residual(b, b, 1)) for a, b in pairs)
        self.up = nn.ModuleList(nn.Sequential(conv(a + b, a), conv(a, a)) for a, b in reversed(pairs))
        self.alpha = nn.Conv2d(widths[0], 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.stem(x)]
        for stage in self.down:
            kept.append(stage(kept[-1]))
        x = kept.pop()
        for stage in self.up:
            skip = kept.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = stage(torch.cat([x, skip], 1))
        return torch.sigmoid(self.alpha(x).float())


class CutLoss(nn.Module):
    """L1 of the alpha, of its Laplacian pyramid, of its edges and of the picture put together again."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels
        line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0
        self.register_buffer("blur", (line[:, None] * line)[None, None])
        sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("sobel", torch.stack([sobel, sobel.T])[:, None])

    def pyramid(self, x: Tensor) -> list[Tensor]:
        out = []
        for _ in range(self.levels):
            small = F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), self.blur, stride=2)
            out.append(x - F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False))
            x = small
        return [*out, x]

    def forward(self, guess: Tensor, alpha: Tensor, image: Tensor, person: Tensor) -> tuple[Tensor, Tensor]:
        border = ((alpha > 0.02) & (alpha < 0.98)).float()
        weight = 1.0 + 4.0 * border
        plain = (weight * torch.sqrt((guess - alpha) ** 2 + 1e-6)).mean()
        pairs = zip(self.pyramid(guess), self.pyramid(alpha), strict=True)
        laplace = torch.stack([2.0**n * (a - b).abs().mean() for n, (a, b) in enumerate(pairs)]).sum()
        edges = (F.conv2d(guess, self.sobel, padding=1) - F.conv2d(alpha, self.sobel, padding=1)).abs().mean()
        behind = (image - alpha * person) / (1.0 - alpha + 1e-3)
        again = guess * person + (1.0 - guess) * behind.clamp(-3.0, 3.0)
        put = torch.sqrt((again - image) ** 2 + 1e-6).mean()
        error = ((guess - alpha).detach() ** 2 * border).sum() / (border.sum() + 1.0)
        return plain + laplace + 0.5 * edges + put, error


def portrait_cutouts(
    s: Setup,
    *,
    channels_last: bool = False,
    together: bool = False,
    fused: bool = False,
    ahead: bool = False,
    compiled: bool = False,
    read: bool = True,
) -> Step:
    """Training in bf16 autocast on 16 portraits of 320 x 320 in NCHW; a mean of the weights follows tensor by tensor; loss is read."""
    count, side = s.size(16, 2), s.size(320, 32)
    widths = (32, 64, 96, 160, 256) if not s.tiny else (4, 6, 8)
    rng = np.random.default_rng(30)
    batches = []
    for _ in range(3):
        image, person = (rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8) for _ in range(2))
        yy, xx = np.mgrid[0:side, 0:side] / side
        middle = rng.random((count, 2)) * 0.4 + 0.3
        far = np.hypot(yy - middle[:, :1, None], xx - middle[:, 1:, None])
        alpha = (255.0 * np.clip((0.35 - far) * 12.0 + 0.5, 0.0, 1.0)).astype(np.uint8)[:, None]
        batches.append(tuple(torch.from_numpy(part) for part in (image, person, alpha)))
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    with s.device:
        model, criterion = Cutter(widths), CutLoss(s.size(5, 2))
        middle_color = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        spread_color = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
        noted = torch.zeros(2)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    mean = copy.deepcopy(model).requires_grad_(False)
    losses = s.compile(criterion, dynamic=False) if compiled else criterion
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-2, fused=fused or None)
    following, leading = list(mean.parameters()), list(model.parameters())
    turn, log = counter(), [0.0, 0.0]

    def ready(part: Tensor) -> Tensor:
        return ((part.float() / 255.0 - middle_color) / spread_color).contiguous(memory_format=layout)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        image, person, alpha = queue.next() if queue else (part.to(s.device) for part in batches[next(turn) % len(batches)])
        image, person, alpha = ready(image), ready(person), alpha.float() / 255.0
        with torch.autocast(s.device.type, BF16):
            guess = model(image)
        loss, error = losses(guess, alpha, image, person)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if together:
                torch._foreach_mul_(following, 0.999)
                torch._foreach_add_(following, leading, alpha=0.001)
            else:
                for old, new in zip(following, leading, strict=True):
                    old.mul_(0.999).add_(new, alpha=0.001)
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + error.item()
        else:
            noted.add_(torch.stack([loss.detach(), error]))
        return loss.detach()

    return step


PROGRAM = written(
    "portrait_cutouts",
    "A matting U-Net in training on 16 portraits of 320, bf16 autocast, NCHW; weights are averaged tensor by tensor.",
    "channels_last; weights averaged at once; fused AdamW; pinned pictures ahead; torch.compile of the loss; nothing is read",
    portrait_cutouts,
    {
        "memory-layout": {"channels_last": True},
        "optimizer-foreach/mean": {"together": True},
        "optimizer-foreach": {"fused": True},
        "memcpy": {"ahead": True},
        "unfused-elementwise": {"compiled": True},
        "sync-stall": {"read": False},
    },
)
