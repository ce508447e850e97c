import torch


class Replay:
    def __init__(self, capacity, dim):
        self.capacity = capacity
        self.obs = torch.empty(capacity, dim)
        self.next_obs = torch.empty(capacity, dim)
        self.action = torch.empty(capacity, dtype=torch.long)
        self.reward = torch.empty(capacity)
        self.done = torch.empty(capacity)
        self.head = 0
        self.size = 0

    def __len__(self):
        return self.size

    def add(self, obs, action, reward, next_obs, done):
        n = obs.shape[0]
        at = (self.head + self.size + torch.arange(n)) % self.capacity
        self.obs[at] = obs
        self.next_obs[at] = next_obs
        self.action[at] = action
        self.reward[at] = reward
        self.done[at] = done.float()
        overflow = max(0, self.size + n - self.capacity)
        self.head = (self.head + overflow) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n, generator):
        idx = torch.randint(0, self.size, (n,), generator=generator)
        idx = (idx + self.head) % self.capacity
        return (self.obs[idx], self.action[idx], self.reward[idx], self.next_obs[idx], self.done[idx])
