import torch
import torch.nn as nn
import torch.nn.functional as F


class Gate(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.scale = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x):
        h = self.norm(x)
        h = self.fc2(F.silu(self.fc1(h)))
        return x + h * self.scale


class Tower(nn.Module):
    def __init__(self, n_fields, cardinality, dim=16, depth=48, hidden=16):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(cardinality, dim) for _ in range(n_fields))
        self.project = nn.Linear(n_fields * dim, dim * 2)
        self.layers = nn.ModuleList(Gate(dim * 2, hidden) for _ in range(depth))
        self.out = nn.Linear(dim * 2, 1)

    def forward(self, fields):
        parts = []
        for i, emb in enumerate(self.embeddings):
            parts.append(emb(fields[:, i]))
        x = self.project(torch.cat(parts, dim=1))
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(1)
