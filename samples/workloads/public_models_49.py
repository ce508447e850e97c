"""Two graph networks of torch_geometric, one in training and one that serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, GRAPHS, How, _casting, _optimizer, _precision
from .public_models_4 import _public


class _Films(nn.Module):
    """As in torch_geometric's example of FiLM: convolutions, batch norms and dropout."""

    def __init__(self, features: int, hidden: int, labels: int, layers: int) -> None:
        from torch_geometric.nn import FiLMConv

        super().__init__()
        sizes = [features] + [hidden] * (layers - 1)
        self.convs = nn.ModuleList([FiLMConv(size, hidden) for size in sizes[:-1]] + [FiLMConv(sizes[-1], labels, act=None)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden) for _ in sizes[:-1]])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
            x = F.dropout(norm(conv(x, edges)), p=0.1, training=self.training)
        return self.convs[-1](x, edges)


def supplier_hazards(
    s: Setup, *, compiled: bool = False, autocast: bool = False, tf32: bool = False, rare: bool = False, fused: bool = False,
    padded: bool = False,
) -> Step:  # fmt: skip
    """Who supplies whom, and which of 121 hazards each company's goods were recalled for: FiLM of torch_geometric trains on 500,000 edges.

    FP32; the loss and F1 of the training companies are read in each step.
    rare: the training companies' numbers are found once, and the scores are read every fiftieth step. padded: 50 features and 121 labels
    are filled up to 64 and 128.
    """
    how = How(autocast=BF16 if autocast else None, tf32=tf32, optimizer="fused" if fused else None)
    count, labels = s.size(60_000, 60), 121
    x = F.pad(torch.randn(count, 50, device=s.device), (0, 14 if padded else 0))
    edges = torch.randint(count, (2, s.size(500_000, 240)), device=s.device)
    hazards = (torch.rand(count, labels, device=s.device) < 0.3).float()
    train_mask = torch.rand(count, device=s.device) < 0.8
    with s.device:
        model = _Films(x.shape[1], s.size(256, 16), 128 if padded else labels, s.size(4, 2)).train()
    run = s.compile(model) if compiled else model
    optimizer = _optimizer(how, model.parameters(), torch.optim.Adam)
    training = train_mask.nonzero().flatten()
    wanted = hazards[training]
    log: dict[str, float] = {}
    steps = 0

    def step() -> dict[str, float]:
        nonlocal steps
        _precision(how)
        optimizer.zero_grad()
        with _casting(s, how):
            out = run(x, edges)[:, :labels]
            out, truth = (out[training], wanted) if rare else (out[train_mask], hazards[train_mask])
            loss = F.binary_cross_entropy_with_logits(out, truth)
        loss.backward()
        optimizer.step()
        steps += 1
        with torch.no_grad():
            found, true = out > 0, truth > 0.5
            hits, false, missed = (found & true).sum(), (found & ~true).sum(), (~found & true).sum()
        if not rare or steps % 50 == 0:
            right = 2 * hits.item()
            log["loss"] = loss.item()
            log["f1"] = right / max(right + false.item() + missed.item(), 1)
        return log

    return step


class _Tags(nn.Module):
    def __init__(self, features: int, hidden: int, layers: int) -> None:
        from torch_geometric.nn import TAGConv

        super().__init__()
        self.encoder = nn.Linear(features, hidden)
        self.convs = nn.ModuleList([TAGConv(hidden, hidden, K=3) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(layers)])
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        x = self.encoder(x).relu()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edges, weights).relu()
        return self.head(x).squeeze(-1)


class _Lazy(list[tuple[Tensor, ...]]):
    """Batches that are made as they are read."""

    def __init__(self, make: Callable[[], tuple[Tensor, ...]]) -> None:
        super().__init__([()])
        self.make = make

    def __getitem__(self, at: Any) -> Any:
        return self.make()


def district_heating(
    s: Setup, *, compiled: bool = False, graph: bool = False, half: bool = False, pinned: bool = False, rare: bool = False,
    once: bool = False, snapshots: int = 1,
) -> Step:  # fmt: skip
    """Yesterday's readings of a city's heating go through TAGConv of torch_geometric, which says what each substation should return.

    One reading of 2400 substations in a step; launches are the bound. Readings are scaled by NumPy and copied (115 kB), and substations that
    return too much heat are listed. once: the archive is scaled before. rare: alarms stay on the GPU and are listed every fiftieth step.
    snapshots: readings in one step.
    """
    count, features, pipes = s.size(2400, 40), 12, s.size(3000, 60)
    archive = np.random.default_rng(0).normal(60.0, 15.0, (s.size(288, 16), count, features))
    mean, spread = archive.mean((0, 1)), archive.std((0, 1))
    ends = torch.randint(count, (2, pipes), device=s.device)
    edges, weights = torch.cat([ends, ends.flip(0)], 1), torch.rand(pipes, device=s.device).add(0.1).repeat(2)
    offsets = count * torch.arange(snapshots, device=s.device).view(1, -1, 1)
    edges, weights = (edges.unsqueeze(1) + offsets).reshape(2, -1).contiguous(), weights.repeat(snapshots)
    dtype = BF16 if half else torch.float32
    with s.device:
        model, weights = _Tags(features, s.size(64, 16), s.size(10, 2)).eval().to(dtype), weights.to(dtype)
    run = s.compile(model, mode=GRAPHS) if compiled else model
    archive = ((archive - mean) / spread).astype(np.float32) if once else archive
    turn = 0

    def read() -> Tensor:
        nonlocal turn
        rows, turn = archive[turn : turn + snapshots], (turn + snapshots) % len(archive)
        rows = rows if once else ((rows - mean) / spread).astype(np.float32)
        return torch.from_numpy(rows.reshape(-1, features))

    loader = Prefetcher(_Lazy(lambda: (s.pin(read()),)), s) if pinned else None
    held_input = torch.zeros(snapshots * count, features, device=s.device)
    held_output = torch.zeros(snapshots * count, device=s.device)

    @torch.no_grad()
    def forward() -> None:
        held_output.copy_(model(held_input.to(dtype), edges, weights))

    _precision(How())
    replay = capture(forward, s) if graph else None

    @torch.no_grad()
    def expected(x: Tensor) -> Tensor:
        if replay is None:
            return run(x.to(dtype), edges, weights).float()
        held_input.copy_(x)
        replay()
        return held_output

    kept: list[Tensor] = []

    def step() -> list[int]:
        _precision(How())
        x = loader.next()[0] if loader else read().to(s.device)
        alarms = x[:, 0] - expected(x) > 2.5
        if not rare:
            return alarms.nonzero().flatten().tolist()
        kept.append(alarms)
        if len(kept) < 50:
            return []
        listed = torch.stack(kept).nonzero()[:, 1].tolist()
        kept.clear()
        return listed

    return step


WORKLOADS = (
    _public(
        "supplier_hazards", "FiLM of torch_geometric, training in FP32 on 500,000 edges, F1 read in each step.", supplier_hazards, {},
        {
            "unfused-elementwise": {"compiled": True}, "precision": {"autocast": True}, "precision/tf32": {"tf32": True},
            "sync-stall": {"rare": True}, "optimizer-foreach": {"fused": True}, "gemm-alignment": {"padded": True},
        },
    ),
    _public(
        "district_heating", "TAGConv of torch_geometric on 2400 substations: launches are the bound.", district_heating, {},
        {
            "launch-gap": {"compiled": True}, "graph-candidate": {"graph": True}, "precision": {"half": True}, "memcpy": {"pinned": True},
            "sync-stall": {"rare": True}, "host-bound": {"once": True}, "low-arithmetic-intensity": {"snapshots": 8},
        },
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
