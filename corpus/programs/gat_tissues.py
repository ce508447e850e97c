"""torch_geometric's example ppi.py, GAT in FP32 on one graph of 61,000 edges a step; loops are added in each layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import How, _casting, _forever, _optimizer, _placed, _precision, _public


def _tissues(count: int, proteins: int, bonds: int, parts: int, roles: int, loops: bool) -> list[Any]:
    """Graphs of about PPI's sizes."""
    from torch_geometric.data import Data
    from torch_geometric.utils import add_remaining_self_loops, remove_self_loops, to_undirected

    some = []
    for at in range(count):
        nodes = int(proteins * (0.7 + 0.6 * at / count))
        edges = to_undirected(torch.randint(nodes, (2, int(bonds * nodes / proteins / 2))), num_nodes=nodes)
        if loops:
            edges = add_remaining_self_loops(remove_self_loops(edges)[0], num_nodes=nodes)[0]
        some.append(Data(x=torch.rand(nodes, parts), edge_index=edges, y=(torch.rand(nodes, roles) < 0.3).float()))
    return some


def gat_tissues(s: Setup, *, loops_once: bool = False, read: bool = True, resident: bool = False, **how: Any) -> Step:
    """torch_geometric's example ppi.py: three GAT layers with linear ones beside them, one tissue's graph a step."""
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GATConv

    way, parts, roles, heads, width = How(**how), s.size(50, 8), s.size(121, 5), 4, s.size(256, 8)
    own = {"add_self_loops": not loops_once}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.lin1 = GATConv(parts, width, heads=heads, **own), nn.Linear(parts, heads * width)
            self.conv2, self.lin2 = GATConv(heads * width, width, heads=heads, **own), nn.Linear(heads * width, heads * width)
            self.conv3, self.lin3 = GATConv(heads * width, roles, heads=6, concat=False, **own), nn.Linear(heads * width, roles)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = F.elu(self.conv1(x, edges) + self.lin1(x))
            x = F.elu(self.conv2(x, edges) + self.lin2(x))
            return self.conv3(x, edges) + self.lin3(x)  # type: ignore[no-any-return]

    model = _placed(s, way, Net()).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam)
    graphs = _tissues(s.size(20, 3), s.size(2245, 20), s.size(61_000, 80), parts, roles, loops_once)
    if resident:
        graphs = [graph.to(s.device) for graph in graphs]
    _, batches = _forever(s, False)
    stream = batches(GraphLoader(graphs, batch_size=1, shuffle=True))
    total, seen = torch.zeros((), device=s.device), 0.0

    def step() -> None:
        nonlocal seen
        _precision(way)
        data = next(stream).to(s.device)
        optimizer.zero_grad()
        with _casting(s, way):
            loss = F.binary_cross_entropy_with_logits(model(data.x, data.edge_index), data.y)
        if read:
            seen += loss.item() * data.num_graphs
        else:
            total.add_(loss.detach(), alpha=data.num_graphs)
        loss.backward()
        optimizer.step()

    return step


PROGRAM = _public(
    "gat_tissues",
    "torch_geometric's example ppi.py, GAT in FP32 on one graph of 61,000 edges a step; loops are added in each layer.",
    gat_tissues,
    {},
    {
        "sync-stall/loops": {"loops_once": True},
        "sync-stall": {"read": False},
        "memcpy": {"resident": True},
        "precision/tf32": {"tf32": True},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
