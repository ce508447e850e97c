"""What the programs here train: steps long enough that few of them fill the time in which steps are timed."""

import time

import torch

torch.set_num_threads(1)
STEPS = 50


def train(steps=STEPS, seed=0, pause_s=0.02):
    """Yields after each step: its number and loss."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(torch.rand(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(pause_s)
        yield step, loss


def trained(**options):
    """The last loss, all digits."""
    return [loss.item() for _, loss in train(**options)][-1]
