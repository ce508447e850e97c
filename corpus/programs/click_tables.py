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


def click_tables(s: Setup, *, adam: str = "single", pairs: bool = False, autocast: bool = False) -> Step:
    fields, dim, rows = s.size(8, 3), s.size(64, 8), s.size(450_000, 20)
    tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields)).to(s.device)
    top = _mlp(fields * (fields - 1) // 2, s.size(512, 8), s.size(256, 8), 1).to(s.device)
    how = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[adam]
    optimizer = torch.optim.Adam([*tables.parameters(), *top.parameters()], lr=1e-3, **how)
    ids = torch.randint(rows, (s.size(8192, 4), fields), device=s.device)
    target = torch.rand(len(ids), 1, device=s.device).round()
    upper = torch.triu_indices(fields, fields, 1, device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        vectors = [table(ids[:, i]) for i, table in enumerate(tables)]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            if pairs:
                stacked = torch.stack(vectors, 1)
                crossed = (stacked @ stacked.mT)[:, upper[0], upper[1]]
            else:
                crossed = torch.stack([(vectors[i] * vectors[j]).sum(1) for i in range(fields) for j in range(i + 1, fields)], 1)
            score = top(crossed)
        F.binary_cross_entropy_with_logits(score.float(), target).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "click_tables",
    "optimizer-foreach",
    "Eight tables of 450,000 x 64 in FP32 with dense gradients, under Adam(foreach=False).",
    "fused=True",
    click_tables,
    {"adam": "fused"},
    alone={"optimizer-foreach/foreach": {"adam": "foreach"}, "launch-gap": {"pairs": True}, "precision": {"autocast": True}},
    gpu_bound=True,
)
