"""NNConv of torch_geometric, training in FP32 on 64 molecules that are joined in this process; the loss is read."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import How, _forever, _optimizer, _placed, _precision, _public


class EdgeNet(nn.Module):
    """The network of torch_geometric's example qm9_nn_conv."""

    def __init__(self, features: int, edges: int, dim: int) -> None:
        from torch_geometric.nn import NNConv, Set2Set

        super().__init__()
        self.first = nn.Linear(features, dim)
        weights = nn.Sequential(nn.Linear(edges, 128), nn.ReLU(), nn.Linear(128, dim * dim))
        self.conv, self.gru = NNConv(dim, dim, weights, aggr="mean"), nn.GRU(dim, dim)
        self.pool, self.second, self.last = Set2Set(dim, processing_steps=3), nn.Linear(2 * dim, dim), nn.Linear(dim, 1)

    def forward(self, data: Any) -> Tensor:
        out = F.relu(self.first(data.x))
        hidden = out.unsqueeze(0)
        for _ in range(3):
            message = F.relu(self.conv(out, data.edge_index, data.edge_attr))
            out, hidden = self.gru(message.unsqueeze(0), hidden)
            out = out.squeeze(0)
        return self.last(F.relu(self.second(self.pool(out, data.batch)))).view(-1)


def _complete_molecules(count: int) -> list[Any]:
    """Molecules of QM9's sizes, each atom bound to each other, with the kind of bond and the distance."""
    from torch_geometric.data import Data

    made = []
    for _ in range(count):
        atoms = int(torch.randint(12, 24, ()))
        edges = (1 - torch.eye(atoms)).nonzero().T.contiguous()
        made.append(Data(x=torch.rand(atoms, 11), edge_index=edges, edge_attr=torch.rand(edges.shape[1], 5), y=torch.randn(1)))
    return made


def edge_networks(s: Setup, *, workers: bool = False, kept: bool = False, **how: Any) -> Step:
    """torch_geometric's example of neural message passing on QM9: 64 molecules a step, joined in this process; the loss is added up."""
    from torch_geometric.loader import DataLoader as GraphLoader

    way = How(**how)
    options, batches = _forever(s, workers and s.cuda)
    stream = batches(GraphLoader(_complete_molecules(s.size(1024, 8)) * s.size(8, 1), s.size(64, 2), shuffle=True, **options))
    model = _placed(s, way, EdgeNet(11, 5, s.size(64, 8))).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam)
    total: Any = torch.zeros((), device=s.device) if kept else 0.0

    def step() -> object:
        nonlocal total
        _precision(way)
        data = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        loss: Any = F.mse_loss(model(data), data.y)
        loss.backward()
        total += (loss.detach() if kept else loss.item()) * data.num_graphs
        optimizer.step()
        return total

    return step


PROGRAM = _public(
    "nnconv_molecules",
    "NNConv of torch_geometric, training in FP32 on 64 molecules that are joined in this process; the loss is read.",
    edge_networks,
    {},
    {"data-loading": {"workers": True}, "sync-stall": {"kept": True}, "precision": {"tf32": True}},
)
