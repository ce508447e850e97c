import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class QNet(nn.Module):
    def __init__(self, dim, n_actions, hidden=96):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.adv = nn.Linear(hidden, n_actions)

    def forward(self, x):
        h = self.trunk(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class Agent:
    def __init__(self, dim, n_actions, gamma=0.97, lr=5e-4):
        self.online = QNet(dim, n_actions)
        self.target = copy.deepcopy(self.online)
        self.opt = torch.optim.Adam(self.online.parameters(), lr=lr)
        self.gamma, self.n_actions = gamma, n_actions

    @torch.no_grad()
    def act(self, obs, eps, generator):
        greedy = self.online(obs).argmax(1)
        rand = torch.randint(0, self.n_actions, greedy.shape, generator=generator)
        explore = torch.rand(greedy.shape, generator=generator) < eps
        return torch.where(explore, rand, greedy)

    def learn(self, batch):
        obs, action, reward, next_obs, done = batch
        with torch.no_grad():
            best = self.online(next_obs).argmax(1, keepdim=True)
            future = self.target(next_obs).gather(1, best).squeeze(1)
            goal = reward + self.gamma * (1 - done) * future
        q = self.online(obs).gather(1, action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.opt.step()
        return loss.item()

    def sync(self):
        self.target = copy.deepcopy(self.online)
