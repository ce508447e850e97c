"""RevGNN of torch_geometric, training in FP32 on random sixths of a graph that this process cuts; loss is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import How, _casting, _optimizer, _placed, _precision, _public

WORKERS: dict[str, Any] = {"num_workers": 4, "persistent_workers": True, "pin_memory": True, "multiprocessing_context": "fork"}


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


class Block(nn.Module):
    """As in torch_geometric's example rev_gnn: the dropout's mask is shared among the blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.norm, self.conv = nn.LayerNorm(width), SAGEConv(width, width)

    def reset_parameters(self) -> None:
        self.norm.reset_parameters()
        self.conv.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
        return self.conv(self.norm(x).relu() * mask, edge_index)


class Reversible(nn.Module):
    def __init__(self, parts: int, width: int, classes: int, layers: int, groups: int = 2) -> None:
        super().__init__()
        from torch_geometric.nn import GroupAddRev

        self.first, self.last, self.norm = nn.Linear(parts, width), nn.Linear(width, classes), nn.LayerNorm(width)
        self.convs = nn.ModuleList([GroupAddRev(Block(width // groups), num_groups=groups) for _ in range(layers)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        mask = torch.zeros_like(x).bernoulli_(0.5) / 0.5
        for conv in self.convs:
            x = conv(x, edge_index, mask)
        return self.last(F.dropout(self.norm(x).relu(), 0.5, self.training))


def rev_gnn(s: Setup, *, workers: bool = False, graph_there: bool = False, kept: bool = False, **how: Any) -> Step:
    """RevGNN learns what 60,000 wares of a shop are by random sixths of them; what is between these is looked up on the host."""
    from torch_geometric.data import Data
    from torch_geometric.loader import RandomNodeLoader

    way, nodes, edges, parts, classes, pieces = How(**how), s.size(60_000, 60), s.size(1_200_000, 400), s.size(100, 8), 47, s.size(6, 2)
    one, other = torch.randint(nodes, (2, edges // 2))
    data = Data(
        x=torch.randn(nodes, parts), edge_index=torch.cat([torch.stack([one, other]), torch.stack([other, one])], 1),
        y=torch.randint(classes, (nodes, 1)), train_mask=torch.rand(nodes) < 0.4,
    )  # fmt: skip
    options = WORKERS if workers and s.cuda else {}
    order = torch.utils.data.RandomSampler(range(nodes), num_samples=100 * nodes)  # a hundred epochs in one go
    stream = _endless(RandomNodeLoader(data, pieces, sampler=order, **options))
    there = data.to(s.device) if graph_there else data
    model = _placed(s, way, Reversible(parts, s.size(160, 16), classes, s.size(5, 2))).train()
    optimizer, total, known = _optimizer(way, model.parameters(), torch.optim.Adam), torch.zeros((), device=s.device), 0
    sum_of, log = torch.zeros((), device=s.device), [0.0]

    def step() -> None:
        nonlocal known
        _precision(way)
        if graph_there:
            batch = there.subgraph(torch.randperm(nodes, device=s.device)[: -(-nodes // pieces)])
        else:
            batch = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        with _casting(s, way):
            out = model(batch.x, batch.edge_index)
        chosen, labels = batch.train_mask, batch.y.view(-1)
        if kept:
            loss = (F.cross_entropy(out, labels, reduction="none") * chosen).sum() / chosen.sum()
        else:
            loss = F.cross_entropy(out[chosen], labels[chosen])
        loss.backward()
        optimizer.step()
        if kept:
            total.add_(loss.detach() * chosen.sum())
            sum_of.add_(chosen.sum())
        else:
            count = int(chosen.sum())
            log[0] += float(loss) * count
            known += count

    return step


PROGRAM = _public(
    "rev_gnn_wares",
    "RevGNN of torch_geometric, training in FP32 on random sixths of a graph that this process cuts; loss is read.",
    rev_gnn,
    {},
    {
        "data-loading": {"workers": True},
        "host-bound": {"graph_there": True},
        "sync-stall": {"kept": True},
        "precision/tf32": {"tf32": True},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
