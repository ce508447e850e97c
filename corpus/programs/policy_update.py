"""host-bound"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from workloads.base import Setup, Step, written_pair


def _advantages(rewards: Any, values: Any, done: Any, listed: bool) -> Any:
    """Generalised advantages: by lists for each environment, as written first, or for all at once."""
    if not listed:
        out, last = np.zeros_like(rewards), np.zeros(rewards.shape[1], np.float32)
        for t in reversed(range(len(rewards))):
            last = rewards[t] + 0.99 * values[t + 1] * (1 - done[t]) - values[t] + 0.9405 * (1 - done[t]) * last
            out[t] = last
        return out
    columns = []
    for e in range(rewards.shape[1]):
        gained, last_one = [], 0.0
        for t in reversed(range(len(rewards))):
            delta = float(rewards[t, e]) + 0.99 * float(values[t + 1, e]) * (1 - float(done[t, e])) - float(values[t, e])
            last_one = delta + 0.9405 * (1 - float(done[t, e])) * last_one
            gained.insert(0, last_one)
        columns.append(gained)
    return np.array(columns, dtype=np.float32).T


def policy_update(s: Setup, *, listed: bool = True, log: bool = True, fused: bool = False) -> Step:
    times, many, width = s.size(128, 4), s.size(64, 2), s.size(256, 8)
    rng = np.random.default_rng(0)
    rewards, done = rng.random((times, many), np.float32), (rng.random((times, many)) < 0.02).astype(np.float32)
    body = nn.Sequential(nn.Linear(24, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()).to(s.device)
    actor, critic = nn.Linear(width, 6).to(s.device), nn.Linear(width, 1).to(s.device)
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, **({"fused": True} if fused else {"foreach": False}))
    seen = torch.randn(times + 1, many, 24, device=s.device)
    acted = torch.randint(6, (times * many,), device=s.device)
    divergences: list[float] = []

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        with torch.no_grad():
            hidden = body(seen)
            values = critic(hidden).squeeze(-1).cpu().numpy()
            old = actor(hidden[:-1]).log_softmax(-1).flatten(0, 1).gather(1, acted[:, None]).squeeze(1)
        gained = torch.from_numpy(_advantages(rewards, values, done, listed)).to(s.device).flatten()
        wanted = gained + torch.from_numpy(values[:-1]).to(s.device).flatten()
        x = seen[:-1].flatten(0, 1)
        for _ in range(2):
            for rows in torch.randperm(times * many, device=s.device).chunk(4):
                hidden = body(x[rows])
                log_p = actor(hidden).log_softmax(-1)
                ratio = (log_p.gather(1, acted[rows, None]).squeeze(1) - old[rows]).exp()
                g = (gained[rows] - gained[rows].mean()) / (gained[rows].std() + 1e-8)
                policy = -torch.min(ratio * g, ratio.clamp(0.8, 1.2) * g).mean()
                value = (critic(hidden).squeeze(1) - wanted[rows]).square().mean()
                loss = policy + 0.5 * value + 0.01 * (log_p.exp() * log_p).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
                if log:
                    divergences.append((ratio - 1 - ratio.log()).mean().item())

    return step


PROGRAM = written_pair(
    "policy_update",
    "host-bound",
    "A proximal policy update from 64 environments: advantages by Python lists, eight small batches under Adam(foreach=False).",
    "advantages of all environments at once",
    policy_update,
    {"listed": False},
    alone={"optimizer-foreach": {"fused": True}, "sync-stall": {"log": False}},
    top=("host-bound", "launch-gap"),
)
