"""A policy that learns from episodes of many small objects, and collects garbage in each step to keep memory down."""

import gc

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Step:
    def __init__(self, number):
        self.number, self.parent, self.tags = number, None, {"at": number}


policy = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 8)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
episodes = [Step(i) for i in range(200_000)]
state = torch.randn(256, 64, device=device)
for _ in range(20_000):
    logits = policy(state)
    actions = torch.distributions.Categorical(logits=logits, validate_args=False).sample()
    reward = (actions == 3).float() - 0.1
    loss = -(torch.log_softmax(logits, -1).gather(1, actions[:, None])[:, 0] * reward).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gc.collect()
