"""A graph network in training on 12,000 grains and 144,000 edges, FP32, norms written out; losses read in each step."""

from __future__ import annotations

from collections import deque
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class Zscore(nn.Module):
    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


def perceptron(inner: int, hidden: int, fused: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), Zscore(hidden, fused))


class Grains(nn.Module):
    def __init__(self, seen: int, hidden: int, layers: int, fused: bool) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 16)
        self.node_in, self.edge_in = perceptron(seen + 16, hidden, fused), perceptron(3, hidden, fused)
        self.edges = nn.ModuleList(perceptron(3 * hidden, hidden, fused) for _ in range(layers))
        self.nodes = nn.ModuleList(perceptron(2 * hidden, hidden, fused) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, seen: Tensor, kind: Tensor, apart: Tensor, sender: Tensor, receiver: Tensor) -> Tensor:
        node = self.node_in(torch.cat([seen, self.kinds(kind)], 1))
        edge = self.edge_in(apart)
        for to_edge, to_node in zip(self.edges, self.nodes, strict=True):
            message = to_edge(torch.cat([edge, node[sender], node[receiver]], 1))
            heard = torch.zeros(node.shape, device=node.device).index_add(0, receiver, message.float())
            node = node + to_node(torch.cat([node, heard], 1))
            edge = edge + message
        return self.out(node).float()


def silo_grains(
    s: Setup,
    *,
    autocast: bool = False,
    tf32: bool = False,
    norm: bool = False,
    compiled: bool = False,
    late: bool = False,
    fused: bool = False,
) -> Step:
    """Training on two scenes of 6000 grains with 12 neighbours each, eight rounds of messages, FP32."""
    scenes, grains, near, past = s.size(2, 2), s.size(6000, 20), s.size(12, 3), s.size(6, 3)
    frames, noise, radius = s.size(40, 8), 3e-4, 0.015
    rng = np.random.default_rng(64)
    # As they come from the discrete element code: doubles; frames, grains, x and y.
    starts = rng.random((4, 1, grains, 2))
    films = starts + np.cumsum(np.cumsum(1e-5 * rng.standard_normal((4, frames, grains, 2)), 1) - np.array([0.0, 4e-4]), 1)
    kinds = rng.integers(0, 4, (4, grains))
    with s.device:
        model = Grains(2 * (past - 1) + 4, s.size(128, 8), s.size(8, 2), norm).train()
        receiver = torch.arange(scenes * grains).repeat_interleave(near)
        shift = (torch.arange(scenes) * grains)[:, None, None]
        noted = torch.zeros(3)
    run = s.compile(model, dynamic=False) if compiled else model
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(weights, lr=1e-4, **({"fused": True} if fused else {}))
    turn, history = counter(), deque(maxlen=100)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        film, first = rng.integers(0, 4, scenes), rng.integers(0, frames - past, scenes)
        window = np.stack([films[f, a : a + past + 1] for f, a in zip(film, first, strict=True)])
        places = torch.from_numpy(window).float().to(s.device)
        return places[:, :past], places[:, past], torch.from_numpy(kinds[film]).to(s.device).flatten()

    @torch.no_grad()
    def graph(last: Tensor) -> tuple[Tensor, Tensor]:
        far = torch.cdist(last, last)
        sender = (far.topk(near + 1, dim=-1, largest=False).indices[..., 1:] + shift).flatten()
        flat = last.flatten(0, 1)
        apart = (flat[sender] - flat[receiver]) / radius
        return sender, torch.cat([apart, torch.sqrt(torch.sum(apart**2, 1, keepdim=True))], 1)

    def step() -> object:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        now = next(turn)
        places, target, kind = batch()
        # A random walk of the velocities, as in rollouts errors add up.
        walk = torch.cumsum(torch.cumsum(noise / past**0.5 * torch.randn_like(places), 1), 1)
        places, target = places + walk, target + walk[:, -1]
        last, speeds = places[:, -1], places[:, 1:] - places[:, :-1]
        sender, apart = graph(last)
        walls = torch.clamp(torch.cat([last, 1.0 - last], -1) / radius, -1.0, 1.0)
        seen = torch.cat([speeds.transpose(1, 2).flatten(2) / 1e-3, walls], -1).flatten(0, 1)
        wanted = ((target - last - speeds[:, -1]) / noise).flatten(0, 1)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = run(seen, kind, apart, sender, receiver)
        moving = (kind != 3).float()[:, None]  # The walls' own grains stay.
        loss = torch.sum(moving * (guess - wanted) ** 2) / moving.sum()
        optimizer.zero_grad()
        loss.backward()
        norm_of = nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.param_groups[0]["lr"] = 1e-6 + 1e-4 * 0.1 ** (now / 50_000)
        optimizer.step()
        with torch.no_grad():
            error = noise * torch.sqrt(torch.mean(moving * (guess - wanted) ** 2))
        if late:
            noted.add_(torch.stack([loss.detach(), norm_of, error]))
            if now % 50 == 49:
                history.append([value / 50 for value in noted.tolist()])
                noted.zero_()
        else:
            history.append([loss.item(), norm_of.item(), error.item()])
        return history

    return step


PROGRAM = written(
    "silo_grains",
    "A graph network in training on 12,000 grains and 144,000 edges, FP32, norms written out; losses read in each step.",
    "bf16 autocast; TF32; layer_norm; torch.compile of the model; losses read every 50 steps; fused Adam",
    silo_grains,
    {
        "precision": {"autocast": True},
        "precision/tf32": {"tf32": True},
        "unfused-norm": {"norm": True},
        "unfused-elementwise": {"compiled": True},
        "sync-stall": {"late": True},
        "optimizer-foreach": {"fused": True},
    },
)
