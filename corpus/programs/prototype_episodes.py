"""sync-stall"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step, written_pair


def prototype_episodes(s: Setup, *, masks: bool = True, last: bool = False, fused: bool = False) -> Step:
    way, shot, query, dim = s.size(20, 3), s.size(5, 2), s.size(5, 2), s.size(64, 4)
    blocks = [nn.Sequential(nn.Conv2d(i, dim, 3, padding=1), nn.BatchNorm2d(dim), nn.ReLU(), nn.MaxPool2d(2)) for i in (1, dim, dim, dim)]
    layout = torch.channels_last if last else torch.contiguous_format
    encoder = nn.Sequential(*blocks, nn.Flatten()).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": False}))
    images = torch.rand(way * (shot + query), 1, 28, 28, device=s.device).to(memory_format=layout)
    labels = torch.arange(way, device=s.device).repeat(shot)[torch.randperm(way * shot, device=s.device)]
    wanted = torch.arange(way, device=s.device).repeat(query)

    def step() -> object:
        optimizer.zero_grad()
        support, asked = encoder(images).split([way * shot, way * query])
        if masks:
            prototypes = torch.stack([support[labels == c].mean(0) for c in range(way)])
        else:
            prototypes = (labels == torch.arange(way, device=s.device)[:, None]).float() @ support / shot
        logits = -(asked[:, None] - prototypes).square().sum(-1)
        F.cross_entropy(logits, wanted).backward()
        optimizer.step()
        right = (logits.argmax(1) == wanted).float().mean()
        return right.item() if masks else right

    return step


PROGRAM = written_pair(
    "prototype_episodes",
    "sync-stall",
    "Prototypes of twenty letters by a boolean mask each, and the share of right answers read, under Adam(foreach=False).",
    "a product with the masks, and no reading",
    prototype_episodes,
    {"masks": False},
    alone={"memory-layout": {"last": True}, "optimizer-foreach": {"fused": True}},
    top=("sync-stall", "launch-gap"),
)
