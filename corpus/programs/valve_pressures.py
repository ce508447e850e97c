"""Pressures in a town's water mains from the few valves with a gauge: a GATv2 network fills in all other junctions.

After GATRes (Truong et al., 2024): snapshots of one network, 95 % of the junctions hidden anew for each snapshot.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GraphNorm

from workloads.base import Setup, Step, advised

HIDDEN_SHARE = 0.95


def make_mains(rows: int, columns: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Streets on a grid: a random spanning tree and a fifth of the other streets. Pipes [E, 2], lengths and widths [E]."""
    number = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1)
    down = np.stack([number[:-1].ravel(), number[1:].ravel()], 1)
    streets = rng.permutation(np.concatenate([across, down]))
    parent = list(range(rows * columns))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    kept = []
    for a, b in streets.tolist():
        root_a, root_b = root(a), root(b)
        if root_a != root_b or rng.random() < 0.2:
            parent[root_a] = root_b
            kept.append((a, b))
    pipes = np.array(kept)
    lengths = rng.uniform(40.0, 260.0, len(pipes))
    widths = rng.choice([0.08, 0.1, 0.15, 0.2, 0.3], len(pipes), p=[0.3, 0.3, 0.2, 0.15, 0.05])
    return pipes, lengths, widths


def simulate(pipes: np.ndarray, lengths: np.ndarray, widths: np.ndarray, ground: np.ndarray, snapshots: int, rng: np.random.Generator) -> np.ndarray:
    """Pressures [snapshots, junctions] in metres by a linearised network with three tanks, good enough for pretraining."""
    junctions = len(ground)
    flow = widths**2 / lengths
    flow = flow / flow.mean()
    laplace = np.zeros((junctions, junctions))
    a, b = pipes.T
    np.add.at(laplace, (a, a), flow)
    np.add.at(laplace, (b, b), flow)
    np.add.at(laplace, (a, b), -flow)
    np.add.at(laplace, (b, a), -flow)
    tanks = rng.choice(junctions, 3, replace=False)
    laplace[tanks, tanks] += 1e3
    hour = rng.uniform(0, 24, (snapshots, 1))
    daily = 1.0 + 0.6 * np.sin((hour - 6.0) / 24 * 2 * math.pi)
    demand = rng.gamma(2.0, 0.5, (1, junctions)) * daily * rng.uniform(0.7, 1.3, (snapshots, junctions))
    supply = -demand * 10.0 / junctions
    supply[:, tanks] += 1e3 * rng.uniform(68.0, 75.0, (snapshots, 3))
    head = np.linalg.solve(laplace, supply.T).T
    return head - ground


class Block(nn.Module):
    """GATv2 with the pipes' features, a norm over each snapshot, and a shortcut."""

    def __init__(self, width: int, heads: int, edge_width: int) -> None:
        super().__init__()
        self.norm = GraphNorm(width)
        self.conv = GATv2Conv(width, width // heads, heads=heads, edge_dim=edge_width, add_self_loops=False)
        self.own = nn.Linear(width, width)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, snapshots: int) -> Tensor:
        h = self.norm(x, batch, batch_size=snapshots)
        h = self.conv(h, edge_index, edge_attr) + self.own(h)
        return x + torch.nn.functional.gelu(h)


class MainsNet(nn.Module):
    def __init__(self, node_features: int, edge_features: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.nodes = nn.Sequential(nn.Linear(node_features, width), nn.GELU(), nn.Linear(width, width))
        self.edges = nn.Sequential(nn.Linear(edge_features, 32), nn.GELU(), nn.Linear(32, 32))
        self.blocks = nn.ModuleList(Block(width, heads, 32) for _ in range(blocks))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, snapshots: int) -> Tensor:
        x = self.nodes(x)
        edge_attr = self.edges(edge_attr)
        for block in self.blocks:
            x = block(x, edge_index, edge_attr, batch, snapshots)
        return self.head(x).squeeze(-1)


def valve_pressures(s: Setup, *, compiled: bool = False) -> Step:
    torch.backends.cuda.matmul.allow_tf32 = True
    rng = np.random.default_rng(7)
    rows, columns = s.size(40, 5), s.size(60, 6)
    junctions, count = rows * columns, s.size(1024, 12)
    snapshots = s.size(24, 3)

    pipes, lengths, widths = make_mains(rows, columns, rng)
    y, x = np.divmod(np.arange(junctions), columns)
    ground = 12.0 * np.sin(x / 17.0) + 9.0 * np.cos(y / 11.0) + rng.normal(0, 0.8, junctions)
    pressures = simulate(pipes, lengths, widths, ground, count, rng)
    mean, deviation = pressures.mean(), pressures.std()

    # Everything fits on the GPU. The network is the same in all snapshots, so its batched graph is made once.
    table = torch.tensor((pressures - mean) / deviation, dtype=torch.float32, device=s.device)
    height = torch.tensor((ground - ground.mean()) / ground.std(), dtype=torch.float32, device=s.device)
    both_ways = torch.tensor(np.concatenate([pipes, pipes[:, ::-1]]).T.copy(), device=s.device)
    pipe_features = np.stack([np.log(lengths), np.log(widths), np.abs(ground[pipes[:, 0]] - ground[pipes[:, 1]])], 1)
    pipe_features = (pipe_features - pipe_features.mean(0)) / pipe_features.std(0)
    edge_attr = torch.tensor(np.concatenate([pipe_features] * 2), dtype=torch.float32, device=s.device).repeat(snapshots, 1)
    offsets = torch.arange(snapshots, device=s.device) * junctions
    edge_index = (both_ways.unsqueeze(1) + offsets.view(1, -1, 1)).reshape(2, -1)
    batch = torch.arange(snapshots, device=s.device).repeat_interleave(junctions)
    heights = height.repeat(snapshots)
    degree = torch.bincount(both_ways[0], minlength=junctions).float().repeat(snapshots) / 4

    model = MainsNet(4, edge_attr.shape[1], s.size(128, 16), 4, s.size(10, 2)).to(s.device).train()
    if compiled:
        model = s.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    order, position = torch.randperm(count, device=s.device), 0

    def step() -> dict[str, Tensor]:
        nonlocal order, position
        if position + snapshots > count:
            order, position = torch.randperm(count, device=s.device), 0
        target = table[order[position : position + snapshots]].reshape(-1)
        position += snapshots

        hidden = (torch.rand_like(target) < HIDDEN_SHARE).float()
        gauge = target + 0.01 * torch.randn_like(target)
        x = torch.stack([gauge * (1 - hidden), 1 - hidden, heights, degree], dim=1)

        predicted = model(x, edge_index, edge_attr, batch, snapshots)
        loss = ((predicted - target) ** 2 * hidden).sum() / hidden.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

        with torch.no_grad():
            metres = ((predicted - target).abs() * hidden).sum() / hidden.sum() * deviation
        return {"loss": loss.detach(), "metres": metres}

    return step


PROGRAM = advised(
    "valve_pressures",
    "GATv2Conv of torch_geometric, ten blocks in training on 24 snapshots of 2,400 junctions on the GPU, TF32; no reads.",
    valve_pressures,
    {"unfused-elementwise": {"compiled": True}},
)
