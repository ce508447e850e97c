"""Programs that wait for copies between host and GPU."""

from __future__ import annotations

from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, Workload
from .models import VisionTransformer


class ImageTraining:
    """A vision transformer and four host batches of float32 images (154 MB each)."""

    def __init__(self, s: Setup) -> None:
        side, classes = s.size(224, 32), s.size(1000, 10)
        self.model = VisionTransformer(s.size(512, 32), s.size(8, 2), s.size(4, 1), classes).to(s.device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        batch = s.size(256, 2)
        self.batches = [(torch.rand(batch, 3, side, side), torch.randint(classes, (batch,))) for _ in range(4)]

    def update(self, images: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images.bfloat16()), labels).backward()
        self.optimizer.step()


def images_slow(s: Setup) -> Step:
    training = ImageTraining(s)
    batches = cycle(training.batches)

    def step() -> None:
        images, labels = next(batches)
        training.update(images.to(s.device), labels.to(s.device))

    return step


def images_fixed(s: Setup) -> Step:
    training = ImageTraining(s)
    loader = Prefetcher([tuple(map(s.pin, batch)) for batch in training.batches], s)  # a DataLoader's pin_memory=True

    def step() -> None:
        training.update(*loader.next())

    return step


def _conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Three levels; with `offload` the skip connections wait in host memory."""

    def __init__(self, width: int, offload: bool) -> None:
        super().__init__()
        self.offload = offload
        widths = [width, 2 * width, 4 * width]
        self.stem = _conv(3, width)
        self.down = nn.ModuleList(_conv(w, w) for w in widths)
        self.grow = nn.ModuleList(nn.Conv2d(w, 2 * w, 2, stride=2) for w in widths)
        self.shrink = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths)
        self.up = nn.ModuleList(_conv(2 * w, w) for w in widths)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, skips = self.stem(images), []
        for down, grow in zip(self.down, self.grow, strict=True):
            x = down(x)
            skips.append(x.cpu() if self.offload else x)
            x = grow(x)
        for shrink, up in zip(reversed(self.shrink), reversed(self.up), strict=True):
            x = up(torch.cat([shrink(x), skips.pop().to(images.device)], dim=1))
        return self.head(x)


def _segmentation(s: Setup, offload: bool) -> Step:
    model = UNet(s.size(128, 4), offload).to(s.device, torch.bfloat16, memory_format=torch.channels_last).eval()
    side = s.size(256, 32)
    images = torch.rand(s.size(4, 1), 3, side, side, device=s.device, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images)

    return step


def offload_slow(s: Setup) -> Step:
    return _segmentation(s, offload=True)


def offload_fixed(s: Setup) -> Step:
    return _segmentation(s, offload=False)


class Ranker:
    """Scores rows of dense features: about as long to copy in (268 MB pinned) as to compute."""

    def __init__(self, s: Setup) -> None:
        features, hidden = s.size(1024, 16), s.size(4096, 32)
        layers = (nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.model = nn.Sequential(*layers).to(s.device, torch.bfloat16).eval()
        self.batches = [(s.pin(torch.rand(s.size(65536, 8), features)),) for _ in range(3)]

    @torch.inference_mode()
    def score(self, features: Tensor) -> Tensor:
        return self.model(features.bfloat16())


def serial_slow(s: Setup) -> Step:
    ranker = Ranker(s)
    batches = cycle(ranker.batches)

    def step() -> Tensor:
        (features,) = next(batches)
        return ranker.score(features.to(s.device))

    return step


def serial_fixed(s: Setup) -> Step:
    ranker = Ranker(s)
    loader = Prefetcher(ranker.batches, s)

    def step() -> Tensor:
        return ranker.score(*loader.next())

    return step


WORKLOADS = (
    Workload(
        name="pageable_images", rule="memcpy", main=True, make_slow=images_slow, make_fixed=images_fixed,
        what="Vision-transformer training; each batch of 154 MB is copied from pageable memory before the step can start.",
        fix="pin_memory, non_blocking=True, and prefetch the next batch on a side stream",
        gpu_bound=True, with_stack=True,
    ),
    Workload(
        name="offload_roundtrip", rule="memcpy", make_slow=offload_slow, make_fixed=offload_fixed,
        what="U-Net inference that parks its skip connections in host memory: .cpu() on the way down, .to('cuda') on the way up.",
        fix="keep the activations on the GPU",
        top=("memcpy", "sync-stall"), gpu_bound=True, with_stack=True,
    ),
    Workload(
        name="serial_pinned", rule="memcpy", make_slow=serial_slow, make_fixed=serial_fixed,
        what="Pinned batches of 268 MB, copied synchronously and in turn with the compute: the copy overlaps nothing.",
        fix="non_blocking=True on a side stream, one batch ahead",
        gpu_bound=True, with_stack=True,
    ),
)  # fmt: skip
