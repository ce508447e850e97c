import torch
import torch.nn as nn


class ClickModel(nn.Module):
    def __init__(self, n_users, n_items, dim, n_dense, hidden=256):
        super().__init__()
        self.user = nn.Embedding(n_users, dim, sparse=True)
        self.item = nn.Embedding(n_items, dim, sparse=True)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        self.dense = nn.Linear(n_dense, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim * 4, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, user, item, dense):
        u, v, d = self.user(user), self.item(item), torch.relu(self.dense(dense))
        features = torch.cat([u, v, d, u * v], dim=1)
        return self.mlp(features).squeeze(1)
