"""GatedGraphConv of torch_geometric, training in FP32 on 96 trees batched in the loop; two numbers are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import How, _casting, _optimizer, _placed, _precision, _public


class _Misuse(nn.Module):
    """A gated graph network on programs: which of five variables stands at the slot."""

    def __init__(self, tokens: int, kinds: int, width: int, rounds: int) -> None:
        from torch_geometric.nn import GatedGraphConv

        super().__init__()
        self.tokens, self.kinds = nn.Embedding(tokens, width), nn.Embedding(kinds, width)
        self.start = nn.Linear(width, width)
        self.convs = nn.ModuleList(GatedGraphConv(width, rounds, aggr="mean") for _ in range(2))
        self.score = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, tokens: Tensor, kind: Tensor, edge_index: Tensor, slot: Tensor, candidates: Tensor) -> Tensor:
        known = (tokens != 0).unsqueeze(-1)
        x = (self.tokens(tokens) * known).sum(1) / known.sum(1).clamp(min=1)
        x = self.start(x + self.kinds(kind))
        for conv in self.convs:
            x = x + conv(x, edge_index)
        pairs = torch.cat([x[slot][:, None].expand(-1, 5, -1), x[candidates.view(-1, 5)]], -1)
        return self.score(pairs).squeeze(-1)  # type: ignore[no-any-return]


class _Programs:
    """Graphs of programs, on the device as one, of which a batch is cut out."""

    def __init__(self, graphs: list[Any], device: torch.device) -> None:
        self.nodes, self.edges = (np.array([getattr(graph, count) for graph in graphs]) for count in ("num_nodes", "num_edges"))
        parts = ("tokens", "kind", "slot_index", "candidate_index")
        self.tokens, self.kind, self.slot, self.candidates = (torch.cat([graph[part] for graph in graphs]).to(device) for part in parts)
        self.edge_index = torch.cat([graph.edge_index for graph in graphs], 1).to(device)
        starts = [np.cumsum(counts) - counts for counts in (self.nodes, self.edges)]
        self.table = torch.from_numpy(np.stack([self.nodes, self.edges, *starts])).to(device)

    @staticmethod
    def _places(counts: Tensor, starts: Tensor, total: int) -> tuple[Tensor, Tensor]:
        first = counts.cumsum(0) - counts
        return torch.arange(total, device=counts.device) + torch.repeat_interleave(starts - first, counts, output_size=total), first

    def cut(self, chosen: Any) -> tuple[Tensor, ...]:
        at = torch.from_numpy(chosen).to(self.table.device)
        nodes, edges, node_starts, edge_starts = self.table[:, at]
        node_at, first = self._places(nodes, node_starts, int(self.nodes[chosen].sum()))
        total = int(self.edges[chosen].sum())
        edge_at, _ = self._places(edges, edge_starts, total)
        edge_index = self.edge_index[:, edge_at] + torch.repeat_interleave(first, edges, output_size=total)
        candidates = self.candidates.view(-1, 5)[at] + first[:, None]
        return self.tokens[node_at], self.kind[node_at], edge_index, self.slot[at] + first, candidates.view(-1)


def misused_variables(s: Setup, *, batch: int = 96, resident: bool = False, kept: bool = False, pinned: bool = False, zero: bool = True, **how: Any) -> Step:
    """GatedGraphConv finds misused variables: syntax trees are put together in the loop, the loss and the hits are read in each step."""
    from torch_geometric.data import Batch, Data

    way, tokens, kinds, batch = How(**how), s.size(20_000, 50), s.size(120, 7), s.size(batch, batch // 24)
    drawn = np.random.default_rng(0)

    def program() -> Any:
        nodes = int(drawn.integers(s.size(150, 8), s.size(500, 16)))
        tree = np.stack([(np.arange(1, nodes) * drawn.random(nodes - 1)).astype(np.int64), np.arange(1, nodes)])
        order = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
        uses = drawn.integers(0, nodes, (2, nodes // 3))
        edges = np.concatenate([tree, tree[::-1], order, uses], 1)
        words = drawn.integers(1, tokens, (nodes, 4)) * (np.arange(4) < drawn.integers(1, 5, (nodes, 1)))
        return Data(
            tokens=torch.from_numpy(words), kind=torch.from_numpy(drawn.integers(0, kinds, nodes)), edge_index=torch.from_numpy(edges),
            slot_index=torch.from_numpy(drawn.integers(0, nodes, 1)), candidate_index=torch.from_numpy(drawn.integers(0, nodes, 5)),
            num_nodes=nodes,
        )  # fmt: skip

    graphs = [program() for _ in range(s.size(1500, 24))]
    programs = _Programs(graphs, s.device) if resident else None
    model = _placed(s, way, _Misuse(tokens, kinds, s.size(128, 16), s.size(4, 2))).train()
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, torch.optim.Adam)
    totals, log = torch.zeros(2, device=s.device), [0.0, 0.0]
    right = torch.zeros(batch, dtype=torch.long, device=s.device)

    def collated(chosen: Any) -> tuple[Tensor, ...]:
        data = Batch.from_data_list([graphs[at] for at in chosen])
        data = data.pin_memory().to(s.device, non_blocking=True) if pinned and s.cuda else data.to(s.device)
        return data.tokens, data.kind, data.edge_index, data.slot_index, data.candidate_index

    def step() -> None:
        _precision(way)
        chosen = drawn.choice(len(graphs), batch, replace=False)
        inputs = programs.cut(chosen) if programs else collated(chosen)
        optimizer.zero_grad(set_to_none=not zero)
        with _casting(s, way):
            scores = model(*inputs)
        loss = F.cross_entropy(scores.float(), right)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        hits = (scores.argmax(-1) == 0).float().mean()
        if kept:
            totals.add_(torch.stack([loss.detach(), hits]))
        else:
            log[0] += loss.item()
            log[1] += hits.item()

    return step


PROGRAM = _public(
    "misused_variables",
    "GatedGraphConv of torch_geometric, training in FP32 on 96 trees batched in the loop; two numbers are read.",
    misused_variables,
    {},
    {
        "host-bound": {"resident": True},
        "sync-stall": {"kept": True},
        "memcpy": {"pinned": True},
        "grad-zeroing": {"zero": False},
        "precision": {"tf32": True},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
