"""Training steps that fill gradients with zeros."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .base import Make, Setup, Step, Workload


def _ensemble(set_to_none: bool) -> Make:
    """Many small regressors trained side by side: a gradient for each of their parameters."""

    def make(s: Setup) -> Step:
        width = s.size(256, 8)
        members = [
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
            for _ in range(s.size(24, 2))
        ]
        model = nn.ModuleList(members).to(s.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # neither fused nor foreach: fills gradients one by one
        x = torch.randn(s.size(512, 4), width, device=s.device)
        y = torch.randn(s.size(512, 4), 1, device=s.device)

        def step() -> None:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = torch.stack([F.mse_loss(member(x), y) for member in model]).sum()
            loss.backward()
            optimizer.step()

        return step

    return make


WORKLOADS = (
    Workload(
        name="ensemble_zeros", rule="grad-zeroing", main=True, make_slow=_ensemble(False), make_fixed=_ensemble(True),
        what="An ensemble of 24 small networks, whose 144 gradients are filled with zeros in each step.",
        fix="zero_grad(set_to_none=True)",
        top=("grad-zeroing", "launch-gap", "graph-candidate"),
    ),
)  # fmt: skip
