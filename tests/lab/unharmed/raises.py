"""An error in the midst of a step, deep inside of a module: its traceback is the program's."""

import torch
from loop import train


class Broken(torch.nn.Module):
    def forward(self, x):
        raise ValueError("the shapes do not fit")


if __import__("sys").argv[1:] == ["at once"]:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), Broken())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4))
for step, _ in train():
    if step == 40:
        torch.nn.Sequential(torch.nn.Identity(), Broken())(torch.ones(2, 4))
