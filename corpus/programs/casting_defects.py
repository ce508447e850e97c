"""PatchCore on sixteen castings, FP32 products, TF32 convolutions, NCHW; pageable floats; NumPy blurs the maps."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written


class Neck(nn.Module):
    """A bottleneck of a wide residual network."""

    def __init__(self, inner: int, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        same = stride == 1 and inner == out
        self.past = nn.Identity() if same else nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.past(x))


class Camera(nn.Module):
    """The first three stages; patches are described by what the second and the third see of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.one = nn.Sequential(Neck(width, 2 * width, 4 * width, 1), *(Neck(4 * width, 2 * width, 4 * width, 1) for _ in range(2)))
        self.two = nn.Sequential(Neck(4 * width, 4 * width, 8 * width, 2), *(Neck(8 * width, 4 * width, 8 * width, 1) for _ in range(3)))
        self.three = nn.Sequential(Neck(8 * width, 8 * width, 16 * width, 2), *(Neck(16 * width, 8 * width, 16 * width, 1) for _ in range(5)))

    def forward(self, x: Tensor) -> Tensor:
        near = self.two(self.one(self.stem(x)))
        far = F.interpolate(self.three(near), size=near.shape[-2:], mode="bilinear", align_corners=False)
        return F.avg_pool2d(torch.cat([near, far], 1), 3, 1, 1)


def strangeness(patch: Tensor, bank: Tensor) -> Tensor:
    """How far each patch is from the nearest good one."""
    square = patch.pow(2).sum(-1, keepdim=True) - 2.0 * (patch @ bank.T) + bank.pow(2).sum(-1)
    return square.clamp(min=0.0).sqrt().amin(-1)


def bell(radius: int) -> np.ndarray:
    spots = np.exp(-0.5 * (np.arange(-radius, radius + 1) / (radius / 4.0)) ** 2)
    return (spots / spots.sum()).astype(np.float32)


def blurred(maps: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A Gaussian blur, along one axis after the other."""
    radius = len(kernel) // 2
    for axis in (1, 2):
        wide = np.pad(maps, [(0, 0) if n != axis else (radius, radius) for n in range(3)], mode="reflect")
        side = maps.shape[axis]
        maps = sum(weight * wide.take(range(n, n + side), axis) for n, weight in enumerate(kernel))
    return maps


def casting_defects(s: Setup, *, tf32: bool = False, compiled: bool = False, last: bool = False, packed: bool = False, on_gpu: bool = False) -> Step:
    """Scores and defect maps of sixteen photographs; convolutions take TF32, products do not."""
    count, side, spots, size, radius = s.size(16, 2), s.size(256, 32), s.size(16_384, 24), s.size(512, 8), s.size(12, 3)
    fine, kernel = s.size(128, 8), bell(radius)
    with s.device:
        model = Camera(s.size(64, 2)).eval()
        squeeze = torch.randn(24 * s.size(64, 2), size) * (24 * s.size(64, 2)) ** -0.5
        bank = torch.rand(spots, size)
        mean, spread = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
        row = torch.from_numpy(kernel).to(s.device)
    if last:
        model = model.to(memory_format=torch.channels_last)
    photos = [torch.randint(256, (count, 3, side, side), dtype=torch.uint8) for _ in range(4)]
    queue = Prefetcher([(s.pin(photo),) for photo in photos], s) if packed else None
    far, turn = s.compile(strangeness, dynamic=False) if compiled else strangeness, counter()

    @torch.no_grad()
    def step() -> tuple[np.ndarray, np.ndarray]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        if queue:
            x = queue.next()[0].float().div(255.0)
        else:
            x = photos[next(turn) % len(photos)].float().div(255.0).to(s.device)
        x = (x - mean) / spread
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        seen = model(x).permute(0, 2, 3, 1)
        high, wide = seen.shape[1:3]
        strange = far(seen.reshape(-1, seen.shape[-1]) @ squeeze, bank).view(count, 1, high, wide)
        maps = F.interpolate(strange, size=(fine, fine), mode="bilinear", align_corners=False)
        if on_gpu:
            maps = F.pad(maps, (radius, radius, radius, radius), mode="reflect")
            maps = F.conv2d(F.conv2d(maps, row[None, None, :, None]), row[None, None, None])[:, 0]
            maps = maps.cpu().numpy()
        else:
            maps = blurred(maps[:, 0].cpu().numpy(), kernel)
        return maps, maps.max((1, 2))

    return step


PROGRAM = written(
    "casting_defects",
    "PatchCore on sixteen castings, FP32 products, TF32 convolutions, NCHW; pageable floats; NumPy blurs the maps.",
    "TF32; torch.compile of the distances; channels_last; pinned bytes ahead; the maps are blurred on the GPU",
    casting_defects,
    {
        "precision/tf32": {"tf32": True},
        "unfused-elementwise": {"compiled": True},
        "memory-layout": {"last": True},
        "memcpy": {"packed": True},
        "host-bound": {"on_gpu": True},
    },
)
