"""host-bound"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def hard_triplets(s: Setup, *, where: str = "numpy", last: bool = False, fused: bool = False) -> Step:
    width, side, batch = s.size(64, 4), s.size(48, 12), s.size(1024, 8)
    layout = torch.channels_last if last else torch.contiguous_format
    layers: list[nn.Module] = []
    for inner, outer, stride in ((3, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1), (2 * width, 4 * width, 2)):
        layers += [nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, s.size(128, 8)))
    model = model.to(s.device, memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    pictures = torch.randn(batch, 3, side, side, device=s.device).to(memory_format=layout)
    people = torch.arange(batch) // 4
    same_there, same_here = (people[:, None] == people).to(s.device), (people[:, None] == people).numpy()
    buffer = s.pin(torch.zeros(batch, s.size(128, 8)))

    def mined_here(z: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        squared = (z * z).sum(1)
        distance = squared[:, None] + squared[None, :] - 2.0 * (z @ z.T)
        positive = np.where(same_here, distance, -np.inf).argmax(1)
        negative = np.where(same_here, np.inf, distance).argmin(1)
        return torch.from_numpy(positive).to(s.device), torch.from_numpy(negative).to(s.device)

    def mined_there(z: Tensor) -> tuple[Tensor, Tensor]:
        squared = z.square().sum(1)
        distance = squared[:, None] + squared[None, :] - 2.0 * (z @ z.T)
        return distance.masked_fill(~same_there, -math.inf).argmax(1), distance.masked_fill(same_there, math.inf).argmin(1)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            z = model(pictures)
        z = F.normalize(z.float())
        if where == "gpu":
            positive, negative = mined_there(z.detach())
        elif where == "pinned":
            buffer.copy_(z.detach(), non_blocking=True)
            s.synchronize()
            positive, negative = mined_here(buffer.numpy())
        else:
            positive, negative = mined_here(z.detach().cpu().numpy())
        F.triplet_margin_loss(z, z[positive], z[negative], margin=0.2).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "hard_triplets",
    "host-bound",
    "Metric learning in bf16 autocast, NCHW, whose hardest pairs numpy looks for between forward and backward.",
    "look for them on the GPU",
    hard_triplets,
    {"where": "gpu"},
    alone={"memcpy": {"where": "pinned"}, "memory-layout": {"last": True}, "optimizer-foreach": {"fused": True}},
    with_stack=True,
)
