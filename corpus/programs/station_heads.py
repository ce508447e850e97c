"""optimizer-foreach"""

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


def station_heads(s: Setup, *, foreach: bool = False, together: bool = False, autocast: bool = False) -> Step:
    inputs, width, small, stations = s.size(64, 4), s.size(256, 8), s.size(32, 4), s.size(24, 3)
    trunk = _mlp(inputs, width, width, width).to(s.device)
    heads = nn.ModuleList(_mlp(width, small, 1) for _ in range(stations)).to(s.device)
    optimizer = torch.optim.NAdam([*trunk.parameters(), *heads.parameters()], lr=1e-3, foreach=foreach)
    weather, power = torch.randn(s.size(512, 4), inputs, device=s.device), torch.rand(s.size(512, 4), stations, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            x = F.relu(trunk(weather))
            if together:
                w1, b1, w2, b2 = (torch.stack(parts) for parts in zip(*(head.parameters() for head in heads), strict=True))
                h = F.relu(torch.baddbmm(b1[:, None], x.expand(stations, -1, -1), w1.mT))
                y = torch.baddbmm(b2[:, None], h, w2.mT).squeeze(2).T
            else:
                y = torch.cat([head(x) for head in heads], 1)
        F.smooth_l1_loss(y.float(), power).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "station_heads",
    "optimizer-foreach",
    "Training of a trunk with 24 small heads, called one by one, under NAdam(foreach=False).",
    "foreach=True",
    station_heads,
    {"foreach": True},
    alone={"launch-gap": {"together": True}, "precision": {"autocast": True}},
    top=("optimizer-foreach", "launch-gap", "graph-candidate"),
)
