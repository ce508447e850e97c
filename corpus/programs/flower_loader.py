"""memcpy"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


class Flowers(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pictures that lie in memory, ready for use."""

    def __init__(self, stored: int, side: int) -> None:
        self.pictures = torch.randn(stored, 3, side, side)

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.pictures[at % len(self.pictures)], at % 102


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.norm2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer)
        self.short = nn.Identity() if inner == outer and stride == 1 else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def flower_loader(s: Setup, *, pin: bool = False, workers: int = 6, ahead: bool = False) -> Step:
    data, batch, workers = Flowers(s.size(512, 4), s.size(112, 16)), s.size(256, 2), workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        data, batch, shuffle=True, num_workers=workers, pin_memory=pin and s.cuda, drop_last=True, persistent_workers=workers > 0
    )
    width, layout = s.size(64, 4), torch.channels_last
    model = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), Residual(width, width, 1), Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2), Residual(4 * width, 4 * width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 102),
    ).to(s.device, memory_format=layout)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True)
    side = torch.cuda.Stream() if s.cuda and ahead else None

    def loaded() -> Iterator[tuple[Tensor, ...]]:
        while True:
            for pair in loader:
                with torch.cuda.stream(side):
                    there = tuple(part.to(s.device, non_blocking=pin) for part in pair)
                yield there

    def copied_before() -> Iterator[tuple[Tensor, ...]]:
        batches = loaded()
        coming = next(batches)
        while True:
            if side is not None:
                torch.cuda.current_stream().wait_stream(side)
                for part in coming:
                    part.record_stream(torch.cuda.current_stream())
            ready, coming = coming, next(batches)
            yield ready

    batches = copied_before() if ahead else loaded()

    def step() -> None:
        pictures, labels = next(batches)
        pictures = pictures.contiguous(memory_format=layout)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "flower_loader",
    "memcpy",
    "A convolutional network in bf16 on batches of 38.5 MB from a DataLoader of six workers without pinned memory.",
    "pin_memory=True and non_blocking=True",
    flower_loader,
    {"pin": True},
    alone={"data-loading": {"workers": 12}, "missed-overlap": {"pin": True, "ahead": True}},
)
