"""graph-candidate"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from workloads.base import Setup, Step, capture, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


def sampling_planner(s: Setup, *, graphed: bool = False, compiled: bool = False, autocast: bool = False) -> Step:
    plans, horizon, state, act = s.size(4096, 8), s.size(30, 3), 12, 4
    model = _mlp(state + act, s.size(256, 8), s.size(256, 8), s.size(256, 8), state, act=nn.SiLU).to(s.device).eval().requires_grad_(False)
    dynamics = s.compile(model, mode="reduce-overhead") if compiled else model
    goal, posts = torch.tensor([2.0, 1.0, 0.5], device=s.device), torch.rand(6, 3, device=s.device)
    start, nominal = torch.zeros(state, device=s.device), torch.zeros(horizon, act, device=s.device)
    measured = [np.random.default_rng(i).standard_normal(state).astype(np.float32) * 0.1 for i in range(4)]
    turn = [0]

    @torch.no_grad()
    def plan() -> None:
        torch.set_float32_matmul_precision("highest")
        noise = 0.3 * torch.randn(horizon, plans, act, device=s.device)
        x, cost = start.expand(plans, state), torch.zeros(plans, device=s.device)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for t in range(horizon):
                u = (nominal[t] + noise[t]).clamp(-1.0, 1.0)
                x = x + 0.05 * dynamics(torch.cat([x, u], 1))
                near = (x[:, None, :3] - posts).square().sum(-1)
                cost = cost + (x[:, :3] - goal).square().sum(1) + 10.0 * torch.exp(-20.0 * near).sum(1)
                cost = cost + 0.01 * u.square().sum(1) + 0.1 * (nominal[t] * noise[t]).sum(1)
        weight = torch.softmax(-cost.float(), 0)
        better = (nominal + torch.einsum("p,tpa->ta", weight, noise)).clamp(-1.0, 1.0)
        nominal.copy_(torch.roll(better, -1, 0))

    run = capture(plan, s) if graphed else plan

    def step() -> Any:
        turn[0] += 1
        start.copy_(torch.from_numpy(measured[turn[0] % 4]))
        run()
        return nominal[-1].cpu().numpy()

    return step


PROGRAM = written_pair(
    "sampling_planner",
    "graph-candidate",
    "A controller that draws 4096 plans of thirty moments, moment by moment through a small network in FP32.",
    "the plan as a CUDA graph",
    sampling_planner,
    {"graphed": True},
    alone={"launch-gap": {"compiled": True}, "precision": {"autocast": True}},
    top=("launch-gap", "graph-candidate"),
)
