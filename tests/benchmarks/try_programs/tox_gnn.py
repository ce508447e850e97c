"""Multi-task toxicity prediction with a GIN; labels are sparse, like in the usual assay tables."""

import copy
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, GINConv, global_mean_pool

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
N_ATOM, N_TASK, HID = 16, 12, 192
assay = torch.randn(N_ATOM, N_TASK)


def random_molecule():
    n = random.randint(12, 40)
    src = torch.arange(1, n)
    tree = torch.stack([src, (torch.rand(n - 1) * src).long()])
    e = torch.cat([tree, torch.randint(0, n, (2, 3))], 1)
    atoms = torch.randint(0, N_ATOM, (n,))
    y = (assay[atoms].mean(0) + 0.05 * torch.randn(N_TASK) > 0).float()
    y[torch.rand(N_TASK) < 0.4] = float("nan")
    return Data(x=atoms, edge_index=torch.cat([e, e.flip(0)], 1), y=y[None])


class GIN(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.emb = nn.Embedding(N_ATOM, HID)
        self.convs = nn.ModuleList([GINConv(MLP([HID, 2 * HID, HID]), train_eps=True) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(HID) for _ in range(layers)])
        self.head = nn.Linear(HID, N_TASK)

    def forward(self, d):
        h = self.emb(d.x)
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.relu(norm(conv(h, d.edge_index)))
        return self.head(global_mean_pool(h, d.batch, size=d.num_graphs))


model = GIN().to(device)
ema = copy.deepcopy(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [b.to(device) for b in DataLoader([random_molecule() for _ in range(5120)], batch_size=256)]  # fits on the card

for step in range(6000):
    batch = random.choice(batches)
    out = model(batch)
    loss = 0.0
    for t in range(N_TASK):
        ok = ~torch.isnan(batch.y[:, t])
        loss = loss + F.binary_cross_entropy_with_logits(out[ok, t], batch.y[ok, t])
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), ema.parameters()):
            q.mul_(0.999).add_(p, alpha=0.001)
    if step % 100 == 0:
        print(f"step {step:5d}  bce {loss.item() / N_TASK:.4f}", flush=True)
