"""memcpy"""

from __future__ import annotations

from itertools import count

import torch
from torch import nn

from workloads.base import Prefetcher, Setup, Step, written_pair

BF16 = torch.bfloat16


def traffic_cameras(s: Setup, *, ahead: bool = False, last: bool = False, log: bool = True) -> Step:
    shape = (s.size(16, 2), 3, s.size(720, 32), s.size(1280, 32))
    frames = [torch.randint(256, shape, dtype=torch.uint8) for _ in range(2)]
    layers: list[nn.Module] = []
    for inner, outer, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += [nn.Conv2d(inner, outer, 3, stride, 1), nn.BatchNorm2d(outer), nn.SiLU()]
    layout = torch.channels_last if last else torch.contiguous_format
    model = nn.Sequential(*layers, nn.Conv2d(256, 8, 1)).to(s.device, BF16, memory_format=layout).eval()  # type: ignore[call-overload]
    copied, turns = Prefetcher([(s.pin(frame),) for frame in frames], s) if ahead else None, count()
    mean, std = (torch.tensor(values, device=s.device)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    @torch.no_grad()
    def step() -> object:
        frame = copied.next()[0] if copied else frames[next(turns) % 2].to(s.device)
        x = ((frame.float() / 255.0 - mean) / std).to(BF16, memory_format=layout)
        heat = model(x).sigmoid()
        cars = (heat > 0.5).sum()
        return cars.item() if log else cars

    return step


PROGRAM = written_pair(
    "traffic_cameras",
    "memcpy",
    "A detector in bf16, NCHW, on sixteen frames of 720 x 1280 in bytes from pageable memory; the cars are counted in each step.",
    "pinned batches, copied ahead on a stream of their own",
    traffic_cameras,
    {"ahead": True},
    alone={"memory-layout": {"last": True}, "sync-stall": {"log": False}},
    top=("memcpy", "memory-layout"),
)
