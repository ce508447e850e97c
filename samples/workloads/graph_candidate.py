"""A step that launches the same kernels each time, in turn with the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Make, Setup, Step, Workload, capture


class Policy(nn.Module):
    """A small recurrent policy, unrolled over a window of observations."""

    def __init__(self, s: Setup) -> None:
        super().__init__()
        self.width = s.size(256, 8)
        self.cell = nn.GRUCell(s.size(64, 4), self.width)
        self.heads = nn.ModuleList(nn.Linear(self.width, n) for n in (s.size(18, 3), 1))

    def forward(self, window: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        for observation in window:
            state = self.cell(observation, state)
        return tuple(head(state) for head in self.heads)  # type: ignore[return-value]


def _policy(graph: bool) -> Make:
    def make(s: Setup) -> Step:
        model = Policy(s).to(s.device).eval()
        window = torch.randn(s.size(32, 2), s.size(64, 2), s.size(64, 4), device=s.device)
        state = torch.zeros(s.size(64, 2), model.width, device=s.device)

        @torch.no_grad()
        def step() -> tuple[Tensor, Tensor]:
            return model(window, state)

        return capture(step, s) if graph else step

    return make


WORKLOADS = (
    Workload(
        name="unrolled_policy", rule="graph-candidate", main=True, make_slow=_policy(False), make_fixed=_policy(True),
        what="A small recurrent policy, unrolled in Python: the same 160 launches in each step.",
        fix="the step captured as one CUDA graph",
        top=("launch-gap", "graph-candidate"), severity="info",
    ),
)  # fmt: skip
