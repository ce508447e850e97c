"""launch-gap"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def state_scan(s: Setup, *, parallel: bool = False, graphed: bool = False, half: bool = False) -> Step:
    rows, length, dim, states = s.size(4, 2), s.size(256, 6), s.size(1536, 8), 16
    dtype = BF16 if half else torch.float32
    x, dt = torch.randn(rows, length, dim, device=s.device, dtype=dtype), torch.rand(rows, length, dim, device=s.device, dtype=dtype) * 0.01
    b, c = (torch.randn(rows, length, states, device=s.device, dtype=dtype) for _ in range(2))
    a = -torch.arange(1, states + 1, device=s.device, dtype=dtype).expand(dim, states)

    @torch.no_grad()
    def step() -> Tensor:
        if parallel:
            decay = (dt[..., None] * a).cumsum(1)
            fed = (dt * x)[..., None] * b[:, :, None]
            return ((fed * torch.exp(-decay)).cumsum(1) * torch.exp(decay) * c[:, :, None]).sum(-1)
        h, ys = torch.zeros(rows, dim, states, device=s.device, dtype=dtype), []
        for t in range(length):
            h = torch.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
            ys.append((h * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1)

    return capture(step, s) if graphed else step


PROGRAM = written_pair(
    "state_scan",
    "launch-gap",
    "A state-space layer scanned in a loop over 256 words.",
    "two cumulative sums",
    state_scan,
    {"parallel": True},
    alone={"graph-candidate": {"graphed": True}, "precision": {"half": True}},
    top=("launch-gap", "graph-candidate"),
)
