"""PPO of 4096 sailing boats on the GPU, 8 moves and six minibatches a step: boats start anew by masks, Normal checks, losses are read."""

from __future__ import annotations

import math
from collections import deque
from itertools import count as counter

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


def sail(boats: Tensor, action: Tensor, wind: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """boats: x, y, heading, speed, next mark, clock."""
    x, y, heading, speed, mark, clock = boats.unbind(1)
    rudder, sheet = action.clamp(-1.0, 1.0).unbind(1)
    cos, sin = heading.cos(), heading.sin()
    angle = cos * wind[0] + sin * wind[1]
    trim = 1.0 - 0.5 * (sheet - angle).abs()
    drive = wind[2] * (1.0 - angle.clamp(min=0.0) ** 4) * trim
    speed = 0.9 * speed + 0.1 * drive
    heading = heading + 0.15 * rudder * (0.2 + speed)
    goal = marks[mark.long()]
    before = torch.sqrt((goal[:, 0] - x) ** 2 + (goal[:, 1] - y) ** 2)
    x, y = x + 0.05 * speed * cos, y + 0.05 * speed * sin
    after = torch.sqrt((goal[:, 0] - x) ** 2 + (goal[:, 1] - y) ** 2)
    reached = (after < 0.1).float()
    mark, clock = mark + reached, clock + 1.0
    reward = 10.0 * (before - after) + 5.0 * reached - 0.01
    done = (mark >= len(marks)) | (torch.maximum(x.abs(), y.abs()) > 3.0) | (clock >= 200.0)
    return torch.stack([x, y, heading, speed, mark, clock], 1), reward, done


def observe(boats: Tensor, wind: Tensor, marks: Tensor) -> Tensor:
    x, y, heading, speed, mark, clock = boats.unbind(1)
    goal = marks[mark.long()]
    cos, sin = heading.cos(), heading.sin()
    ahead, aside = goal[:, 0] - x, goal[:, 1] - y
    seen = [
        cos * ahead + sin * aside, cos * aside - sin * ahead, cos * wind[0] + sin * wind[1], cos * wind[1] - sin * wind[0],
        speed, wind[2].expand_as(x), x / 3.0, y / 3.0, mark / len(marks), clock / 200.0,
    ]  # fmt: skip
    return torch.stack(seen, 1)


def start_line(boats: int, device: torch.device) -> Tensor:
    line = torch.zeros(boats, 6, device=device)
    line[:, 0] = torch.rand(boats, device=device) - 0.5
    line[:, 1] = -1.0
    line[:, 2] = torch.rand(boats, device=device) * math.pi
    return line


def layer(inner: int, out: int, gain: float = math.sqrt(2.0)) -> nn.Linear:
    linear = nn.Linear(inner, out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Skipper(nn.Module):
    def __init__(self, seen: int, hidden: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(layer(seen, hidden), nn.Tanh(), layer(hidden, hidden), nn.Tanh(), layer(hidden, actions, 0.01))
        self.critic = nn.Sequential(layer(seen, hidden), nn.Tanh(), layer(hidden, hidden), nn.Tanh(), layer(hidden, 1, 1.0))
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(seen).float(), self.critic(seen).float()[:, 0]


def log_density(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    return (-0.5 * ((action - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)


def regatta_skippers(
    s: Setup,
    *,
    still: bool = False,
    read: bool = True,
    hoisted: bool = False,
    compiled: bool = False,
    update: bool = False,
    graphed: bool = False,
    fused: bool = False,
    autocast: bool = False,
) -> Step:
    """PPO of 4096 boats: 8 moves, then three epochs of two minibatches."""
    fleet, moves, epochs, parts = s.size(4096, 8), s.size(8, 3), s.size(3, 2), s.size(2, 2)
    gamma, lam, clip = 0.99, 0.95, 0.2
    size = fleet * moves // parts
    with s.device:
        agent = Skipper(10, s.size(64, 8), 2)
        marks = torch.tensor([[0.0, 1.5], [-1.5, 0.0], [1.5, 0.0], [0.0, -1.0]])
        boats, returns = start_line(fleet, s.device), torch.zeros(fleet)
        boats[:, 5] = torch.randint(200, (fleet,)).float()
        noted, finished = torch.zeros(5), torch.zeros(2)
        held = [torch.zeros(size, 10), torch.zeros(size, 2), *(torch.zeros(size) for _ in range(4))]
    weights = list(agent.parameters())
    optimizer = torch.optim.Adam(weights, lr=3e-4, eps=1e-5, capturable=graphed and s.cuda, **({"fused": True} if fused else {}))
    move = s.compile(sail, dynamic=False) if compiled else sail
    turn, recent, history = counter(), deque(maxlen=100), deque(maxlen=100)

    def breeze(now: int) -> list[float]:
        at = 2.0 * math.pi * (now % 4000) / 4000
        angle = -0.5 * math.pi + 0.4 * math.sin(at) + 0.1 * math.sin(7 * at)
        return [math.cos(angle), math.sin(angle), 1.0 + 0.3 * math.sin(11 * at)]

    def winds(now: int) -> list[Tensor]:
        if hoisted:
            return list(torch.tensor([breeze(now + i) for i in range(moves + 1)]).to(s.device).unbind(0))
        return []

    def losses(seen: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            mean, now = agent(seen)
        if still or update or graphed:
            density = log_density(action, mean, agent.log_std)
            entropy = (0.5 + 0.5 * math.log(2.0 * math.pi) + agent.log_std).expand_as(mean).sum(-1).mean()
        else:
            policy = Normal(mean, agent.log_std.exp().expand_as(mean))
            density, entropy = policy.log_prob(action).sum(-1), policy.entropy().sum(-1).mean()
        log_ratio = density - old
        ratio = log_ratio.exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
        near = value + (now - value).clamp(-clip, clip)
        value_loss = 0.5 * torch.max((now - target) ** 2, (near - target) ** 2).mean()
        with torch.no_grad():
            kl, clipped = (ratio - 1 - log_ratio).mean(), ((ratio - 1).abs() > clip).float().mean()
        return policy_loss - 0.01 * entropy + 0.5 * value_loss, policy_loss, value_loss, entropy, kl, clipped

    loss_of = s.compile(losses, dynamic=False) if update else losses

    def learn(batch: list[Tensor]) -> list[Tensor]:
        loss, *told = loss_of(*batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.5)
        optimizer.step()
        return [part.detach() for part in told]

    out: list[Tensor] = []

    def captured() -> None:
        out[:] = learn(held)

    torch.set_float32_matmul_precision("highest")
    replay = capture(captured, s) if graphed else None

    @torch.no_grad()
    def sampled(seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            mean, value = agent(seen)
        if still:
            action = mean + agent.log_std.exp() * torch.randn_like(mean)
            return action, log_density(action, mean, agent.log_std), value
        policy = Normal(mean, agent.log_std.exp().expand_as(mean))
        action = policy.sample()
        return action, policy.log_prob(action).sum(-1), value

    @torch.no_grad()
    def restart(done: Tensor) -> None:
        nonlocal boats, returns
        if still:
            finished.add_(torch.stack([(returns * done).sum(), done.sum()]))
            boats = torch.where(done[:, None], start_line(fleet, s.device), boats)
            returns = returns.masked_fill(done, 0.0)
        elif done.any():
            recent.extend(returns[done].tolist())
            boats[done] = start_line(int(done.sum()), s.device)
            returns[done] = 0.0

    @torch.no_grad()
    def rollout(now: int) -> list[Tensor]:
        nonlocal boats, returns
        ahead, rows = winds(now), []
        for i in range(moves):
            wind = ahead[i] if hoisted else torch.tensor(breeze(now + i), device=s.device)
            seen = observe(boats, wind, marks)
            action, density, value = sampled(seen)
            boats, reward, done = move(boats, action, wind, marks)
            returns = returns + reward
            rows.append((seen, action, density, value, reward, done.float()))
            restart(done)
        wind = ahead[moves] if hoisted else torch.tensor(breeze(now + moves), device=s.device)
        seen, action, density, value, reward, done = (torch.stack(part) for part in zip(*rows, strict=True))
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            following = agent(observe(boats, wind, marks))[1]
        advantage, last = torch.zeros_like(reward), torch.zeros_like(following)
        for i in reversed(range(moves)):
            alive = 1.0 - done[i]
            delta = reward[i] + gamma * following * alive - value[i]
            advantage[i] = last = delta + gamma * lam * alive * last
            following = value[i]
        return [part.flatten(0, 1) for part in (seen, action, density, advantage, advantage + value, value)]

    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        memory = rollout(next(turn) * moves)
        for _ in range(epochs):
            order = torch.randperm(fleet * moves, device=s.device)
            for picked in order.split(size):
                batch = [part[picked] for part in memory]
                if replay:
                    for kept, part in zip(held, batch, strict=True):
                        kept.copy_(part)
                    replay()
                    told = out
                else:
                    told = learn(batch)
                if read:
                    history.append([part.item() for part in told])
                else:
                    noted.add_(torch.stack(told))
        return history

    return step


PROGRAM = written(
    "regatta_skippers",
    "PPO of 4096 sailing boats on the GPU, 8 moves and six minibatches a step: boats start anew by masks, Normal checks, losses are read.",
    "where() instead of masks, densities without checks and no reads; no reads; winds of all moves copied at once; torch.compile of a move; "
    "torch.compile of the losses; CUDA graph of a minibatch; fused Adam; bf16 autocast",
    regatta_skippers,
    {
        "sync-stall": {"still": True, "read": False},
        "sync-stall/read": {"read": False},
        "memcpy": {"hoisted": True},
        "launch-gap": {"compiled": True},
        "launch-gap/update": {"update": True},
        "graph-candidate": {"graphed": True},
        "optimizer-foreach": {"fused": True},
        "precision": {"autocast": True},
    },
)
