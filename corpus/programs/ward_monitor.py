"""launch-gap"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written_pair
from workloads.public import BF16


class Ward(nn.Module):
    def __init__(self, signs: int, width: int, cells: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(inner, width) for inner in (signs, width)) if cells else None
        self.whole = None if cells else nn.LSTM(signs, width, 2, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.whole is not None:
            return self.head(self.whole(x)[0])[..., 0]  # type: ignore[no-any-return]
        assert self.cells is not None
        states: list[Any] = [None, None]
        risks = []
        for hour in range(x.shape[1]):
            now = x[:, hour]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(now, states[layer])
                now = states[layer][0]
            risks.append(self.head(now))
        return torch.cat(risks, 1)


def ward_monitor(s: Setup, *, cells: bool = True, graphed: bool = False, autocast: bool = False) -> Step:
    batch, hours, signs = s.size(96, 2), s.size(48, 6), s.size(36, 4)
    model = Ward(signs, s.size(160, 8), cells).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=s.cuda)
    x, worse = torch.randn(batch, hours, signs, device=s.device), torch.rand(batch, hours, device=s.device).round()

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            risks = model(x)
        F.binary_cross_entropy_with_logits(risks.float(), worse).backward()
        optimizer.step()

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "ward_monitor",
    "launch-gap",
    "Two layers of LSTMCell, hour by hour over two days of 96 patients, training in FP32.",
    "nn.LSTM",
    ward_monitor,
    {"cells": False},
    alone={"graph-candidate": {"graphed": True}, "precision": {"autocast": True}},
    top=("launch-gap", "graph-candidate"),
)
