"""A graph net of PyTorch Geometric on one graph, as its introduction trains it."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

device = "cuda" if torch.cuda.is_available() else "cpu"


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList([GCNConv(500, 64), *(GCNConv(64, 64) for _ in range(6)), GCNConv(64, 7)])

    def forward(self, x, edges):
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edges)), training=self.training)
        return self.convs[-1](x, edges)


model = GCN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
x, edges = torch.randn(3000, 500, device=device), torch.randint(0, 3000, (2, 12_000), device=device)
y = torch.randint(0, 7, (3000,), device=device)
model.train()
for _ in range(20_000):
    optimizer.zero_grad()
    F.nll_loss(F.log_softmax(model(x, edges), dim=1), y).backward()
    optimizer.step()
