"""Takes a batch from each line of standard input."""

import sys
import time

import torch

net = torch.nn.Linear(4, 1)
torch.nn.init.ones_(net.weight)
torch.nn.init.zeros_(net.bias)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for line in sys.stdin:
    optimizer.zero_grad()
    loss = net(torch.tensor([float(word) for word in line.split()])).square().sum()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
print(loss.item(), file=sys.stderr)
