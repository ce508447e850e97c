"""precision"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


def picture_encoder(s: Setup) -> nn.Sequential:
    layers: list[nn.Module] = []
    widths = [3, s.size(64, 4), s.size(128, 4), s.size(256, 8), s.size(512, 8)]
    for i in range(1, len(widths)):
        layers += [nn.Conv2d(widths[i - 1], widths[i], 3, 1 if i == 1 else 2, 1, bias=False), nn.BatchNorm2d(widths[i]), nn.ReLU()]
        layers += [nn.Conv2d(widths[i], widths[i], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[i]), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _mlp(widths[-1], widths[-1], s.size(128, 8)))


def queue_contrast(s: Setup, *, autocast: bool = False, on_host: bool = False, together: bool = False, last: bool = False) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    query_net, key_net = (picture_encoder(s).to(s.device, memory_format=layout) for _ in range(2))
    key_net.load_state_dict(query_net.state_dict())
    key_net.requires_grad_(False)
    optimizer = torch.optim.SGD(query_net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    rows, side, many = s.size(256, 2), s.size(64, 16), s.size(65_536, 8)
    views = [torch.randn(rows, 3, side, side, device=s.device).to(memory_format=layout) for _ in range(2)]
    queue = F.normalize(torch.randn(s.size(128, 8), many, device=s.device), dim=0)
    pointer, place = torch.zeros(1, dtype=torch.long, device=s.device), 0
    zeros = torch.zeros(rows, dtype=torch.long, device=s.device)

    def step() -> None:
        nonlocal place
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            query = F.normalize(query_net(views[0]), dim=1)
            with torch.no_grad():
                if together:
                    torch._foreach_lerp_(list(key_net.parameters()), list(query_net.parameters()), 0.001)
                else:
                    for old, new in zip(key_net.parameters(), query_net.parameters(), strict=True):
                        old.data = old.data * 0.999 + new.data * 0.001
                shuffled = torch.randperm(rows, device=s.device)
                key = F.normalize(key_net(views[1][shuffled]), dim=1)[shuffled.argsort()]
            close = (query * key).sum(1, keepdim=True)
            logits = torch.cat([close, query @ queue.clone()], 1) / 0.07
            loss = F.cross_entropy(logits.float(), zeros)
        loss.backward()
        optimizer.step()
        start = place if on_host else int(pointer)
        queue[:, start : start + rows] = key.T
        if on_host:
            place = (start + rows) % many
        else:
            pointer[0] = (start + rows) % many

    return step


PROGRAM = written_pair(
    "queue_contrast",
    "precision",
    "Contrast of 256 pictures against a queue of 65,536 keys in FP32; the queue's pointer is read from the GPU.",
    "bf16 autocast",
    queue_contrast,
    {"autocast": True},
    alone={"sync-stall": {"on_host": True}, "optimizer-foreach": {"together": True}, "memory-layout": {"last": True}},
    gpu_bound=True,
)
