"""launch-gap"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload


class Pendulums:
    """Torque-driven pendulums, all advanced together."""

    def __init__(self, many: int) -> None:
        self.random = np.random.default_rng(0)
        self.angle, self.speed = self.random.uniform(-3, 3, many), np.zeros(many)

    def observe(self) -> NDArray[np.float32]:
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], 1).astype(np.float32)

    def act(self, action: NDArray[np.int64]) -> NDArray[np.float32]:
        torque = action.astype(np.float64) - 2.0
        self.speed = np.clip(self.speed + 0.05 * (15 * np.sin(self.angle) + 3 * torque), -8, 8)
        self.angle = (self.angle + 0.05 * self.speed + math.pi) % (2 * math.pi) - math.pi
        return -(self.angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2).astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 5), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.actor(x), self.critic(x)


def rollout(s: Setup, *, compiled: bool = False, validate: bool | None = None, pinned: bool = False) -> Step:
    many, length = s.size(128, 4), s.size(48, 3)
    world, model = Pendulums(many), ActorCritic(s.size(256, 16)).to(s.device)
    policy = s.compile(model, mode="reduce-overhead") if compiled else model
    values, logged, rewards = (torch.zeros(length, many, device=s.device) for _ in range(3))
    staging = s.pin(torch.zeros(many, 3))

    @torch.no_grad()
    def step() -> Tensor:
        for t in range(length):
            if pinned:
                staging.copy_(torch.from_numpy(world.observe()))
                seen = staging.to(s.device, non_blocking=True)
            else:
                seen = torch.from_numpy(world.observe()).to(s.device)
            logits, value = policy(seen)
            choice = torch.distributions.Categorical(logits=logits, validate_args=validate)
            action = choice.sample()
            logged[t] = choice.log_prob(action)
            values[t] = value.flatten()
            rewards[t] = torch.from_numpy(world.act(action.cpu().numpy())).to(s.device)
        return (rewards - values).mean()

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "actor_critic_rollout",
    "launch-gap",
    "Rollout of 48 steps: environments in numpy, a small policy on the GPU, Categorical with its checks.",
    "torch.compile(mode='reduce-overhead') of the policy",
    rollout,
    partial(rollout, compiled=True),
    alone={"sync-stall": partial(rollout, validate=False), "memcpy": partial(rollout, pinned=True)},
    top=("launch-gap", "graph-candidate", "sync-stall", "host-bound"),
    fixed_quiet=False,
)
