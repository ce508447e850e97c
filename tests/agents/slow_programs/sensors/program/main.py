import random

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from autoencoder import AutoEncoder
from sensors import SensorWindows

torch.set_num_threads(1)

EPOCHS = 5
BATCH = 512
CHANNELS = 8
LENGTH = 64


class RunningStats:
    def __init__(self):
        self.history = []
        self.ema = None

    def push(self, value):
        self.history.append(value)
        self.ema = value if self.ema is None else 0.9 * self.ema + 0.1 * value
        return sorted(self.history)[len(self.history) // 2]


def grad_norm(model):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.norm().item() ** 2
    return total**0.5


def main():
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    data = SensorWindows(BATCH * 12, CHANNELS, LENGTH, seed=8)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=0, generator=torch.Generator().manual_seed(9))
    model = AutoEncoder(CHANNELS * LENGTH, 928, 128)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    stats = RunningStats()
    norms = []
    median = 0.0
    for epoch in range(EPOCHS):
        for clean in loader:
            model.train()
            keep = (torch.rand(clean.shape[0], CHANNELS, 1) > 0.1).float()
            noisy = (clean.view(-1, CHANNELS, LENGTH) * keep).reshape(clean.shape)
            out = model(noisy)
            loss = F.mse_loss(out, clean)
            opt.zero_grad()
            loss.backward()
            norms.append(grad_norm(model))
            opt.step()
            median = stats.push(loss.item())
    model.eval()
    with torch.no_grad():
        sample = torch.stack([data[i] for i in range(256)])
        err = F.mse_loss(model(sample), sample).item()
    print("checksum %.8f" % (err + median + stats.ema + sum(norms) / len(norms)))


if __name__ == "__main__":
    main()
