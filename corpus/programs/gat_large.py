"""GAT of torch_geometric on a graph of a million edges."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _graph, _workload, training


def graph_training(kind: str, nodes: int, edges: int, features: int, hidden: int, s: Setup, how: How) -> Step:
    from torch_geometric.nn.models import GAT, GCN, GraphSAGE

    x, edge, labels = _graph(s, nodes, edges, features)
    model = {"gcn": GCN, "gat": GAT, "sage": GraphSAGE}[kind](x.shape[1], s.size(hidden, 16), 3, 7, dropout=0.5)
    return training(s, how, model, lambda model: F.cross_entropy(model(x, edge), labels), torch.optim.Adam)


PROGRAM = _workload(
    "gat_large",
    "GAT of torch_geometric on a graph of a million edges.",
    partial(graph_training, "gat", 60_000, 1_000_000, 128, 128),
    How(),
    unfused_elementwise=How(compiled=COMPILED),
    precision=How(autocast=BF16),
    optimizer_foreach=How(optimizer="fused"),
)
