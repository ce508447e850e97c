"""Learner of QMIX for a squad of marines in a skirmish (the micromanagement challenge, map 8m_vs_9m).

Runners play episodes and fill a replay buffer in host memory. A step here is one update of the learner: sample whole episodes, cut them to
the longest one, unroll the agents' recurrent network and its target over time, mix the chosen values into a team value, and fit it to
TD(lambda) targets. FP32.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, advised


@dataclass(frozen=True)
class Args:
    n_agents: int
    n_actions: int
    obs_shape: int
    state_shape: int
    episode_limit: int
    buffer_size: int
    batch_size: int
    rnn_hidden_dim: int = 64
    mixing_embed_dim: int = 32
    hypernet_embed: int = 64
    gamma: float = 0.99
    td_lambda: float = 0.6
    lr: float = 1e-3
    grad_norm_clip: float = 10.0
    target_update_interval: int = 200
    learner_log_interval: int = 10

    @property
    def input_shape(self) -> int:
        return self.obs_shape + self.n_actions + self.n_agents


class ReplayBuffer:
    """Whole episodes, padded to the limit, in host memory."""

    def __init__(self, args: Args, seed: int = 0) -> None:
        self.args, self.rng = args, np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        episodes, times, agents = args.buffer_size, args.episode_limit + 1, args.n_agents
        lengths = torch.randint(args.episode_limit // 3, args.episode_limit + 1, (episodes, 1, 1), generator=generator)
        clock = torch.arange(times).view(1, times, 1)
        death = torch.randint(args.episode_limit // 6, args.episode_limit + 1, (episodes, 1, agents, 1), generator=generator)
        alive = clock.unsqueeze(-1) < death
        obs = torch.rand((episodes, times, agents, args.obs_shape), generator=generator).mul_(2).sub_(1).mul_(alive)
        avail = (torch.rand((episodes, times, agents, args.n_actions), generator=generator) < 0.6) & alive
        avail[..., 0:1] = ~alive
        avail[..., 1:2] = alive  # a living unit may always stop
        liking = torch.rand(avail.shape, generator=generator) * avail
        damage = torch.rand((episodes, times, 1), generator=generator) * (torch.rand((episodes, times, 1), generator=generator) < 0.3)
        self.data: dict[str, Tensor] = {
            "state": torch.rand((episodes, times, args.state_shape), generator=generator),
            "obs": obs,
            "actions": liking.argmax(dim=-1, keepdim=True),
            "avail_actions": avail.int(),
            "reward": 0.3 * damage,
            "terminated": (clock == lengths - 1).to(torch.uint8),
            "filled": (clock <= lengths).long(),
        }
        self.data["actions_onehot"] = F.one_hot(self.data["actions"].squeeze(-1), args.n_actions).float()

    def sample(self, count: int) -> dict[str, Tensor]:
        ids = torch.from_numpy(self.rng.choice(self.args.buffer_size, count, replace=False))
        return {key: value[ids] for key, value in self.data.items()}


class RNNAgent(nn.Module):
    def __init__(self, args: Args) -> None:
        super().__init__()
        self.args = args
        self.fc1 = nn.Linear(args.input_shape, args.rnn_hidden_dim)
        self.rnn = nn.GRUCell(args.rnn_hidden_dim, args.rnn_hidden_dim)
        self.fc2 = nn.Linear(args.rnn_hidden_dim, args.n_actions)

    def init_hidden(self) -> Tensor:
        return self.fc1.weight.new_zeros(1, self.args.rnn_hidden_dim)

    def forward(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.fc1(inputs))
        h = self.rnn(x, hidden.reshape(-1, self.args.rnn_hidden_dim))
        return self.fc2(h), h


class Controller:
    """The agents of the squad; they share one network and are told apart by a one-hot id."""

    def __init__(self, args: Args, device: torch.device) -> None:
        self.args, self.device = args, device
        self.agent = RNNAgent(args).to(device)
        self.hidden: Tensor | None = None

    def init_hidden(self, batch_size: int) -> None:
        self.hidden = self.agent.init_hidden().unsqueeze(0).expand(batch_size, self.args.n_agents, -1)

    def build_inputs(self, batch: dict[str, Tensor], t: int) -> Tensor:
        bs = batch["obs"].shape[0]
        inputs = [batch["obs"][:, t]]
        if t == 0:
            inputs.append(torch.zeros_like(batch["actions_onehot"][:, t]))
        else:
            inputs.append(batch["actions_onehot"][:, t - 1])
        inputs.append(torch.eye(self.args.n_agents, device=self.device).unsqueeze(0).expand(bs, -1, -1))
        return torch.cat([x.reshape(bs * self.args.n_agents, -1) for x in inputs], dim=1)

    def forward(self, batch: dict[str, Tensor], t: int) -> Tensor:
        outs, self.hidden = self.agent(self.build_inputs(batch, t), self.hidden)
        return outs.view(batch["obs"].shape[0], self.args.n_agents, -1)


class QMixer(nn.Module):
    """Mixes the agents' values into the team's, monotonically, with weights that a network makes from the state."""

    def __init__(self, args: Args) -> None:
        super().__init__()
        self.args = args
        embed, hyper, state = args.mixing_embed_dim, args.hypernet_embed, args.state_shape
        self.hyper_w_1 = nn.Sequential(nn.Linear(state, hyper), nn.ReLU(), nn.Linear(hyper, embed * args.n_agents))
        self.hyper_w_final = nn.Sequential(nn.Linear(state, hyper), nn.ReLU(), nn.Linear(hyper, embed))
        self.hyper_b_1 = nn.Linear(state, embed)
        self.V = nn.Sequential(nn.Linear(state, embed), nn.ReLU(), nn.Linear(embed, 1))

    def forward(self, agent_qs: Tensor, states: Tensor) -> Tensor:
        bs = agent_qs.size(0)
        states = states.reshape(-1, self.args.state_shape)
        agent_qs = agent_qs.reshape(-1, 1, self.args.n_agents)
        w1 = torch.abs(self.hyper_w_1(states)).view(-1, self.args.n_agents, self.args.mixing_embed_dim)
        b1 = self.hyper_b_1(states).view(-1, 1, self.args.mixing_embed_dim)
        hidden = F.elu(torch.bmm(agent_qs, w1) + b1)
        w_final = torch.abs(self.hyper_w_final(states)).view(-1, self.args.mixing_embed_dim, 1)
        v = self.V(states).view(-1, 1, 1)
        return (torch.bmm(hidden, w_final) + v).view(bs, -1, 1)


def td_lambda_targets(rewards: Tensor, terminated: Tensor, mask: Tensor, target_qs: Tensor, gamma: float, td_lambda: float) -> Tensor:
    ret = target_qs.new_zeros(*target_qs.shape)
    ret[:, -1] = target_qs[:, -1] * (1 - torch.sum(terminated, dim=1))
    for t in range(ret.shape[1] - 2, -1, -1):
        ret[:, t] = td_lambda * gamma * ret[:, t + 1] + mask[:, t] * (rewards[:, t] + (1 - td_lambda) * gamma * target_qs[:, t + 1] * (1 - terminated[:, t]))
    return ret[:, 0:-1]


class QLearner:
    def __init__(self, args: Args, device: torch.device) -> None:
        self.args = args
        self.mac = Controller(args, device)
        self.mixer = QMixer(args).to(device)
        self.target_mac = Controller(args, device)
        self.target_mac.agent.load_state_dict(self.mac.agent.state_dict())
        self.target_mixer = copy.deepcopy(self.mixer)
        self.params = [*self.mac.agent.parameters(), *self.mixer.parameters()]
        self.optimiser = torch.optim.Adam(self.params, lr=args.lr)
        self.updates = 0
        self.stats: list[dict[str, float]] = []

    def unroll(self, mac: Controller, batch: dict[str, Tensor]) -> Tensor:
        mac.init_hidden(batch["obs"].shape[0])
        return torch.stack([mac.forward(batch, t) for t in range(batch["obs"].shape[1])], dim=1)

    def train(self, batch: dict[str, Tensor]) -> Tensor:
        rewards = batch["reward"][:, :-1]
        actions = batch["actions"][:, :-1]
        terminated = batch["terminated"][:, :-1].float()
        mask = batch["filled"][:, :-1].float()
        mask[:, 1:] = mask[:, 1:] * (1 - terminated[:, :-1])

        mac_out = self.unroll(self.mac, batch)
        chosen = torch.gather(mac_out[:, :-1], dim=3, index=actions).squeeze(3)

        with torch.no_grad():
            target_out = self.unroll(self.target_mac, batch)
            best = mac_out.clone().detach()
            best[batch["avail_actions"] == 0] = -9999999
            best_actions = best.max(dim=3, keepdim=True)[1]
            target_max = torch.gather(target_out, 3, best_actions).squeeze(3)
            target_max = self.target_mixer(target_max, batch["state"])
            targets = td_lambda_targets(rewards, terminated, mask, target_max, self.args.gamma, self.args.td_lambda)

        q_total = self.mixer(chosen, batch["state"][:, :-1])
        td_error = q_total - targets.detach()
        mask = mask.expand_as(td_error)
        masked_error = td_error * mask
        loss = (masked_error**2).sum() / mask.sum()

        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.params, self.args.grad_norm_clip)
        self.optimiser.step()

        self.updates += 1
        if self.updates % self.args.target_update_interval == 0:
            self.target_mac.agent.load_state_dict(self.mac.agent.state_dict())
            self.target_mixer.load_state_dict(self.mixer.state_dict())
        if self.updates % self.args.learner_log_interval == 0:
            elements = mask.sum().item()
            self.stats.append(
                {
                    "loss": loss.item(),
                    "grad_norm": grad_norm.item(),
                    "td_error_abs": masked_error.abs().sum().item() / elements,
                    "q_taken_mean": (q_total * mask).sum().item() / (elements * self.args.n_agents),
                    "target_mean": (targets * mask).sum().item() / (elements * self.args.n_agents),
                }
            )
        return loss.detach()


def unroll_some(agent: RNNAgent, obs: Tensor, before: Tensor, names: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The agents' network over a few times, of which `before` holds the actions of the time before. The GRU cell is written out."""
    bs, times, n_agents, _ = obs.shape
    names = names.unsqueeze(0).expand(bs, -1, -1)
    cell, outs = agent.rnn, []
    for t in range(times):
        x = F.relu(agent.fc1(torch.cat([obs[:, t], before[:, t], names], dim=2).reshape(bs * n_agents, -1)))
        in_r, in_z, in_n = F.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, dim=1)
        hid_r, hid_z, hid_n = F.linear(hidden, cell.weight_hh, cell.bias_hh).chunk(3, dim=1)
        reset, update = torch.sigmoid(in_r + hid_r), torch.sigmoid(in_z + hid_z)
        new = torch.tanh(in_n + reset * hid_n)
        hidden = new + update * (hidden - new)
        outs.append(agent.fc2(hidden).view(bs, n_agents, -1))
    return torch.stack(outs, dim=1), hidden


def td_some(later: Tensor, rewards: Tensor, terminated: Tensor, mask: Tensor, next_qs: Tensor, gamma: float, td_lambda: float) -> Tensor:
    """The recursion of td_lambda_targets over a few times, from the last to the first; `later` is the return after them."""
    returns = []
    for t in range(rewards.shape[1] - 1, -1, -1):
        later = td_lambda * gamma * later + mask[:, t] * (rewards[:, t] + (1 - td_lambda) * gamma * next_qs[:, t] * (1 - terminated[:, t]))
        returns.append(later)
    return torch.stack(returns[::-1], dim=1)


def mix(mixer: QMixer, qs: Tensor, states: Tensor) -> Tensor:
    return mixer(qs, states)


def greedy(mac_out: Tensor, target_out: Tensor, avail: Tensor) -> Tensor:
    """The target's value of the action that the agents like best among those that they may take."""
    best = mac_out.detach().masked_fill(avail == 0, -9999999)
    return torch.gather(target_out, 3, best.max(dim=3, keepdim=True)[1]).squeeze(3)


def fit(q_total: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    masked_error = (q_total - targets.detach()) * mask
    return (masked_error**2).sum() / mask.sum(), masked_error, mask


class CompiledLearner(QLearner):
    """Compiled in pieces of a few times each, since all of an episode would be too large a graph, and with the fused Adam.

    Episodes come padded to the limit, so that shapes are fixed; what is beyond an episode's end is masked, as before.
    """

    UNROLL, RETURNS = 11, 12

    def __init__(self, args: Args, s: Setup) -> None:
        super().__init__(args, s.device)
        self.optimiser = torch.optim.Adam(self.params, lr=args.lr, fused=True)
        self.names = torch.eye(args.n_agents, device=s.device)
        self.unroll_some, self.td_some, self.mix, self.greedy, self.fit = (
            s.compile(function, dynamic=False) for function in (unroll_some, td_some, mix, greedy, fit)
        )

    def unroll(self, mac: Controller, batch: dict[str, Tensor]) -> Tensor:
        obs, taken = batch["obs"], batch["actions_onehot"]
        before = torch.cat((torch.zeros_like(taken[:, :1]), taken[:, :-1]), dim=1)
        hidden = obs.new_zeros(obs.shape[0] * self.args.n_agents, self.args.rnn_hidden_dim)
        hidden.requires_grad_(torch.is_grad_enabled())  # as all that follow, so that the first piece is no graph of its own
        outs = []
        for some_obs, some_before in zip(obs.split(self.UNROLL, dim=1), before.split(self.UNROLL, dim=1), strict=False):
            out, hidden = self.unroll_some(mac.agent, some_obs, some_before, self.names, hidden)
            outs.append(out)
        return torch.cat(outs, dim=1)

    def td_targets(self, rewards: Tensor, terminated: Tensor, mask: Tensor, target_qs: Tensor) -> Tensor:
        later = target_qs[:, -1] * (1 - torch.sum(terminated, dim=1))
        pieces = zip(*(values.split(self.RETURNS, dim=1) for values in (rewards, terminated, mask, target_qs[:, 1:])), strict=False)
        returns = []
        for piece in reversed(list(pieces)):
            some = self.td_some(later, *piece, self.args.gamma, self.args.td_lambda)
            later = some[:, 0].contiguous()  # strides as at first, or it compiles again
            returns.append(some)
        return torch.cat(returns[::-1], dim=1)

    def train(self, batch: dict[str, Tensor]) -> Tensor:
        rewards = batch["reward"][:, :-1]
        actions = batch["actions"][:, :-1]
        terminated = batch["terminated"][:, :-1].float()
        mask = batch["filled"][:, :-1].float()
        mask[:, 1:] = mask[:, 1:] * (1 - terminated[:, :-1])

        mac_out = self.unroll(self.mac, batch)
        chosen = torch.gather(mac_out[:, :-1], dim=3, index=actions).squeeze(3)
        with torch.no_grad():
            target_out = self.unroll(self.target_mac, batch)
            target_max = self.greedy(mac_out.detach(), target_out, batch["avail_actions"])
            target_max = self.mix(self.target_mixer, target_max, batch["state"])
            targets = self.td_targets(rewards, terminated, mask, target_max)
        q_total = self.mix(self.mixer, chosen, batch["state"][:, :-1])
        loss, masked_error, mask = self.fit(q_total, targets, mask)

        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(self.params, self.args.grad_norm_clip)
        self.optimiser.step()
        self.after_update(loss, grad_norm, masked_error, q_total, targets, mask)
        return loss.detach()

    def after_update(self, loss: Tensor, grad_norm: Tensor, masked_error: Tensor, q_total: Tensor, targets: Tensor, mask: Tensor) -> None:
        self.updates += 1
        if self.updates % self.args.target_update_interval == 0:
            self.target_mac.agent.load_state_dict(self.mac.agent.state_dict())
            self.target_mixer.load_state_dict(self.mixer.state_dict())
        if self.updates % self.args.learner_log_interval == 0:
            elements = mask.sum().item()
            self.stats.append(
                {
                    "loss": loss.item(),
                    "grad_norm": grad_norm.item(),
                    "td_error_abs": masked_error.detach().abs().sum().item() / elements,
                    "q_taken_mean": (q_total * mask).sum().item() / (elements * self.args.n_agents),
                    "target_mean": (targets * mask).sum().item() / (elements * self.args.n_agents),
                }
            )


def marine_skirmish(s: Setup, *, compiled: bool = False) -> Step:
    torch.manual_seed(3)
    args = Args(
        n_agents=s.size(8, 3),
        n_actions=s.size(15, 7),
        obs_shape=s.size(85, 12),
        state_shape=s.size(179, 20),
        episode_limit=s.size(120, 12),
        buffer_size=s.size(600, 16),
        batch_size=s.size(32, 4),
    )
    buffer = ReplayBuffer(args)
    learner = CompiledLearner(args, s) if compiled else QLearner(args, s.device)

    def step() -> Tensor:
        episodes = buffer.sample(args.batch_size)
        longest = args.episode_limit + 1 if compiled else int(episodes["filled"].sum(dim=1).max())
        batch = {key: value[:, :longest].to(s.device) for key, value in episodes.items()}
        return learner.train(batch)

    return step


PROGRAM = advised(
    "marine_skirmish",
    "QMIX in training, FP32: episodes from the host, GRU agents and targets unrolled over time, TD(lambda).",
    marine_skirmish,
    {"launch-gap": {"compiled": True}},
)
