import numpy as np
import torch
from torch.utils.data import Dataset


class SensorWindows(Dataset):
    def __init__(self, n_windows, n_channels, length, seed):
        rng = np.random.default_rng(seed)
        t = np.arange(length) / length
        freq = rng.uniform(1, 9, (n_windows, n_channels, 1))
        phase = rng.uniform(0, 2 * np.pi, (n_windows, n_channels, 1))
        x = np.sin(2 * np.pi * freq * t + phase) + rng.normal(0, 0.1, (n_windows, n_channels, length))
        self.x = torch.from_numpy(x.astype(np.float32).reshape(n_windows, -1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i].clone()
