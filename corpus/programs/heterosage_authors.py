"""SAGEConv for each of six kinds of edge of torch_geometric, training in FP32 on a graph of DBLP's size; a boolean mask picks, the loss is read."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _public, training


class _Authors(nn.Module):
    """torch_geometric's example hetero_conv_dblp: two layers of one SAGEConv for each kind of edge."""

    def __init__(self, widths: dict[str, int], kinds: list[tuple[str, str, str]], hidden: int) -> None:
        super().__init__()
        from torch_geometric.nn import HeteroConv, SAGEConv

        reached = {kind[2] for kind in kinds}
        first: Any = HeteroConv({kind: SAGEConv((widths[kind[0]], widths[kind[2]]), hidden) for kind in kinds})
        second: Any = HeteroConv({kind: SAGEConv((hidden, hidden), hidden) for kind in kinds if kind[0] in reached})
        self.convs, self.lin = nn.ModuleList([first, second]), nn.Linear(hidden, 4)

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> Tensor:
        for conv in self.convs:
            x = {kind: F.leaky_relu(value) for kind, value in conv(x, edges).items()}
        return self.lin(x["author"])  # type: ignore[no-any-return]


def hetero_sage(s: Setup, *, masked: bool = True, **how: Any) -> Step:
    """Who of 4057 authors writes in which of four fields, from their papers, the papers' terms and conferences, all at once."""
    small, way = s.size(1, 100), How(**how)
    counts = {"author": 4057 // small, "paper": 14_328 // small, "term": 7723 // small, "conference": 20}
    widths = {"author": 334, "paper": s.size(4231, 40), "term": 50, "conference": 20}
    ends = {("author", "paper"): 19_645, ("paper", "term"): 85_810, ("paper", "conference"): 14_328}
    edges: dict[tuple[str, str, str], Tensor] = {}
    for (one, other), count in ends.items():
        links = torch.stack([torch.randint(counts[one], (count // small,)), torch.randint(counts[other], (count // small,))]).to(s.device)
        edges[one, "to", other], edges[other, "to", one] = links, links.flip(0).contiguous()
    features = {kind: torch.rand(count, widths[kind], device=s.device) for kind, count in counts.items()}
    fields = torch.randint(4, (counts["author"],), device=s.device)
    seen = torch.rand(counts["author"], device=s.device) < 0.1
    share = seen.float() / seen.sum()

    def loss(model: Any) -> Tensor:
        guess = model(features, edges)
        if masked:
            return F.cross_entropy(guess[seen], fields[seen])
        return (F.cross_entropy(guess, fields, reduction="none") * share).sum()

    return training(s, way, _Authors(widths, list(edges), s.size(64, 16)), loss, torch.optim.Adam, weight_decay=1e-3)


PROGRAM = _public(
    "heterosage_authors",
    "SAGEConv for each of six kinds of edge of torch_geometric, training in FP32 on a graph of DBLP's size; a boolean mask picks, the loss is read.",
    hetero_sage,
    {"read_loss": True},
    {
        "launch-gap": {"compiled": COMPILED},
        "sync-stall": {"masked": False, "read_loss": False},
        "optimizer-foreach": {"optimizer": "fused"},
        "precision": {"tf32": True},
    },
)
