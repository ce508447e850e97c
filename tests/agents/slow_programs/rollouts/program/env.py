import torch


class DriftField:
    """A batch of linear-drift control tasks with discrete pushes."""

    def __init__(self, n_envs, dim, n_actions, seed):
        g = torch.Generator().manual_seed(seed)
        self.n_envs, self.dim = n_envs, dim
        a = torch.randn(dim, dim, generator=g)
        self.drift = 0.97 * torch.linalg.qr(a)[0]
        self.push = 0.25 * torch.randn(n_actions, dim, generator=g)
        self.gen = g
        self.state = torch.randn(n_envs, dim, generator=g)
        self.age = torch.zeros(n_envs, dtype=torch.long)

    def observe(self):
        return self.state.clone()

    def step(self, action):
        noise = 0.02 * torch.randn(self.n_envs, self.dim, generator=self.gen)
        self.state = self.state @ self.drift + self.push[action] + noise
        reward = -self.state.pow(2).mean(1)
        self.age += 1
        done = (self.age >= 100) | (reward < -6.0)
        nxt = self.state.clone()
        for i in done.nonzero().flatten().tolist():
            self.state[i] = torch.randn(self.dim, generator=self.gen)
            self.age[i] = 0
        return nxt, reward, done
