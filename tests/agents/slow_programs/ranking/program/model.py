import torch
import torch.nn as nn


class Recommender(nn.Module):
    def __init__(self, dim, n_items, hidden=224):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Dropout(0.1),
        )
        self.items = nn.Parameter(torch.randn(n_items, hidden) * 0.05)
        self.bias = nn.Parameter(torch.zeros(n_items))

    def forward(self, x):
        return self.net(x) @ self.items.t().contiguous() + self.bias
