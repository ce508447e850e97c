"""memory-layout"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written_pair

BF16 = torch.bfloat16


def _twice(inner: int, outer: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide in (inner, outer):
        layers += [nn.Conv2d(wide, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Changes(nn.Module):
    """One encoder for both flights; what differs goes to the decoder at each size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(_twice(inner, outer) for inner, outer in zip([3, *wide[:-1]], wide, strict=True))
        self.up = nn.ModuleList(_twice(wide[level + 1] + wide[level], wide[level]) for level in (2, 1, 0))
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        x, kept = torch.cat([before, after]), []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            one, other = x.chunk(2)
            kept.append((one - other).abs())
        x = kept.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="bilinear"), kept.pop()], 1))
        return self.last(x)[:, 0]  # type: ignore[no-any-return]


def two_flights(s: Setup, *, last: bool = False, autocast: bool = False, ahead: bool = False) -> Step:
    """Pairs of pictures come as bytes from pageable memory and are made floats on the GPU."""
    side, count = s.size(256, 32), s.size(12, 1)
    model = Changes(s.size(32, 4)).to(s.device)
    layout = torch.channels_last if last else torch.contiguous_format
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    host = [(*torch.randint(256, (2, count, 3, side, side), dtype=torch.uint8), torch.rand(count, side, side).round()) for _ in range(2)]
    loader, turn = Prefetcher([tuple(s.pin(part) for part in pair) for pair in host], s) if ahead else None, [0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        if loader:
            before, after, changed = loader.next()
        else:
            turn[0] += 1
            before, after, changed = (part.to(s.device) for part in host[turn[0] % 2])
        before, after = ((part.float() / 255 - 0.5).contiguous(memory_format=layout) for part in (before, after))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = model(before, after)
        F.binary_cross_entropy_with_logits(scores.float(), changed).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "two_flights",
    "memory-layout",
    "What was built between two flights: a U-Net with one encoder for both, FP32 with TF32 convolutions, NCHW.",
    "channels_last",
    two_flights,
    {"last": True},
    alone={"precision": {"autocast": True}, "memcpy": {"ahead": True}},
    gpu_bound=True,
)
