"""SGFormer of torch_geometric on the whole of a graph of 169,343 papers, training in FP32; papers are picked by a mask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _public, training


def sgformer(s: Setup, *, cached: bool = False, numbered: bool = False, **how: Any) -> Step:
    """SGFormer sorts papers by field: linear attention of all nodes beside a graph convolution, on the whole graph."""
    from torch_geometric.nn.models import SGFormer

    way, nodes, edges, features, fields = How(**how), s.size(169_343, 60), s.size(1_166_243, 240), s.size(128, 8), s.size(40, 4)
    x, y = torch.randn(nodes, features, device=s.device), torch.randint(fields, (nodes,), device=s.device)
    one_way = torch.randint(nodes, (2, edges), device=s.device)
    edge = torch.cat([one_way, one_way.flip(0)], 1)
    owner = torch.zeros(nodes, dtype=torch.long, device=s.device)  # one graph
    known = torch.rand(nodes, device=s.device) < 0.54
    picked = known.nonzero()[:, 0] if numbered else known
    model = SGFormer(features, s.size(128, 16), fields, trans_num_layers=1, gnn_num_layers=3)
    for conv in model.graph_conv.convs:
        conv.cached = cached
    return training(s, way, model, lambda model: F.nll_loss(model(x, edge, owner)[picked], y[picked]), torch.optim.Adam, weight_decay=5e-4)


PROGRAM = _public(
    "sgformer_papers",
    "SGFormer of torch_geometric on the whole of a graph of 169,343 papers, training in FP32; papers are picked by a mask.",
    sgformer,
    {},
    {"host-bound": {"cached": True}, "sync-stall": {"numbered": True}, "unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": BF16}},
)
