"""LightGCN of torch_geometric on 1.5 million edges, training in FP32 with Adam."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _graph, _workload, training


def lightgcn(s: Setup, how: How) -> Step:
    from torch_geometric.nn.models import LightGCN

    x, edge, _ = _graph(s, 100_000, 1_500_000, 1)
    better, worse = torch.randint(len(x), (2, 2, s.size(8192, 16)), device=s.device)
    pairs = torch.cat([better, worse], 1)

    def loss(model: Any) -> Tensor:
        high, low = model(edge, pairs).chunk(2)
        return -F.logsigmoid(high - low).mean()

    return training(s, how, LightGCN(len(x), s.size(64, 16), 3), loss, torch.optim.Adam)


PROGRAM = _workload(
    "lightgcn_fp32",
    "LightGCN of torch_geometric on 1.5 million edges, training in FP32 with Adam.",
    lightgcn,
    How(),
    precision=How(autocast=BF16),
    unfused_elementwise=How(compiled=COMPILED),
    optimizer_foreach=How(optimizer="fused"),
)
