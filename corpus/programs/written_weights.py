"""launch-gap"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


def written_weights(s: Setup, *, batched: bool = False, graphed: bool = False, autocast: bool = False, fused: bool = False) -> Step:
    many, side, width, latent = s.size(20, 2), s.size(64, 4), s.size(64, 4), s.size(128, 4)
    shapes = [(2, width), (width, width), (width, width), (width, 3)]
    sizes = [part for inner, outer in shapes for part in (inner * outer, outer)]
    writer = _mlp(latent, s.size(256, 4), s.size(256, 4), sum(sizes)).to(s.device)
    codes = nn.Parameter(torch.randn(many, latent, device=s.device))
    optimizer = torch.optim.Adam([*writer.parameters(), codes], lr=1e-4, fused=fused, capturable=graphed and s.cuda)
    line = torch.linspace(-1, 1, side, device=s.device)
    places, pictures = torch.cartesian_prod(line, line), torch.rand(many, side * side, 3, device=s.device)

    def run_each(weights: Tensor) -> Tensor:
        drawn = []
        for row in weights:
            parts, x = row.split(sizes), places
            for i, (inner, outer) in enumerate(shapes):
                x = F.linear(x, parts[2 * i].view(outer, inner), parts[2 * i + 1])
                x = torch.sin(10 * x) if i + 1 < len(shapes) else x
            drawn.append(x)
        return torch.stack(drawn)

    def run_all(weights: Tensor) -> Tensor:
        parts, x = weights.split(sizes, 1), places.expand(many, -1, -1)
        for i, (inner, outer) in enumerate(shapes):
            x = torch.baddbmm(parts[2 * i + 1][:, None], x, parts[2 * i].reshape(many, outer, inner).mT)
            x = torch.sin(10 * x) if i + 1 < len(shapes) else x
        return x

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            weights = 0.1 * writer(codes)
            drawn = (run_all if batched else run_each)(weights)
        F.mse_loss(drawn.float(), pictures).backward()
        optimizer.step()

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "written_weights",
    "launch-gap",
    "Training of a network that writes the weights of 20 small networks, run one after another.",
    "baddbmm over all of them",
    written_weights,
    {"batched": True},
    alone={"graph-candidate": {"graphed": True}, "precision": {"autocast": True}, "optimizer-foreach": {"fused": True}},
    top=("launch-gap", "graph-candidate"),
)
