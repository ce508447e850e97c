import torch


class Replay:
    def __init__(self, capacity, dim):
        self.capacity = capacity
        self.obs = torch.empty(0, dim)
        self.next_obs = torch.empty(0, dim)
        self.action = torch.empty(0, dtype=torch.long)
        self.reward = torch.empty(0)
        self.done = torch.empty(0)

    def __len__(self):
        return self.obs.shape[0]

    def add(self, obs, action, reward, next_obs, done):
        cap = self.capacity
        self.obs = torch.cat([self.obs, obs])[-cap:]
        self.next_obs = torch.cat([self.next_obs, next_obs])[-cap:]
        self.action = torch.cat([self.action, action])[-cap:]
        self.reward = torch.cat([self.reward, reward])[-cap:]
        self.done = torch.cat([self.done, done.float()])[-cap:]

    def sample(self, n, generator):
        idx = torch.randint(0, len(self), (n,), generator=generator)
        return (self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx], self.done[idx])
