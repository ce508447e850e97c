"""Public models of delays in netlists and of vaults on video, by an author who starts from the libraries' examples."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Setup, Step
from .public_models import BF16
from .public_models_4 import _public


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


# Netlists.


class Netlists(Dataset[Any]):
    """Cells and wires of placed circuits; structure is described by degrees and random walks."""

    def __init__(self, circuits: int, fewest: int, most: int, kinds: int, walk: int, prepared: bool) -> None:
        from torch_geometric.transforms import AddRandomWalkPE, Compose, LocalDegreeProfile

        rng = np.random.default_rng(88)
        self.transform = Compose([LocalDegreeProfile(), AddRandomWalkPE(walk, attr_name="walk")])
        self.raw = []
        for _ in range(circuits):
            cells = int(rng.integers(fewest, most))
            wires = np.stack([rng.integers(0, cells, 3 * cells), rng.integers(0, cells, 3 * cells)])
            self.raw.append({
                "kind": rng.integers(0, kinds, cells), "x": rng.standard_normal((cells, 4), dtype=np.float32), "edge_index": wires,
                "edge_attr": rng.random((3 * cells, 3), dtype=np.float32), "delay": rng.random(cells, dtype=np.float32),
                "worst": rng.random(1, dtype=np.float32),
            })  # fmt: skip
        self.prepared = [self.read(raw) for raw in self.raw] if prepared else None

    def read(self, raw: dict[str, np.ndarray]) -> Any:
        from torch_geometric.data import Data

        return self.transform(Data(**{key: torch.from_numpy(value) for key, value in raw.items()}))

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> Any:
        return self.prepared[index] if self.prepared else self.read(self.raw[index])


class DelayLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        from torch_geometric.nn import GINEConv, GraphNorm

        self.conv = GINEConv(nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)), edge_dim=width)
        self.norm = GraphNorm(width)

    def forward(self, x: Tensor, edge_index: Tensor, edge: Tensor, batch: Tensor, graphs: int | None) -> Tensor:
        return x + F.dropout(F.relu(self.norm(self.conv(x, edge_index, edge), batch, graphs)), 0.1, self.training)


class DelayNet(nn.Module):
    def __init__(self, kinds: int, features: int, walk: int, width: int, depth: int) -> None:
        super().__init__()
        self.kind, self.cell, self.walk = nn.Embedding(kinds, width), nn.Linear(features, width), nn.Linear(walk, width)
        self.wire = nn.Linear(3, width)
        self.layers = nn.ModuleList(DelayLayer(width) for _ in range(depth))
        self.delay = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.worst = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, data: Any, graphs: int | None) -> tuple[Tensor, Tensor]:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        x = self.kind(data.kind) + self.cell(data.x) + self.walk(data.walk)
        edge = self.wire(data.edge_attr)
        for layer in self.layers:
            x = layer(x, data.edge_index, edge, data.batch, graphs)
        pooled = torch.cat([global_mean_pool(x, data.batch, graphs), global_max_pool(x, data.batch, graphs)], -1)
        return self.delay(x)[:, 0], self.worst(pooled)[:, 0]


def netlist_delays(
    s: Setup,
    *,
    workers: bool = False,
    prepared: bool = False,
    known: bool = False,
    read: bool = True,
    pinned: bool = False,
    autocast: bool = False,
    fused: bool = False,
    compiled: bool = False,
) -> Step:
    """GINE of torch_geometric learns delays of 24 netlists a step; the loader describes and collates them in the training process."""
    from torch_geometric.loader import DataLoader as GraphLoader

    kinds, walk, rows = s.size(96, 5), s.size(4, 3), s.size(24, 3)
    data = Netlists(s.size(768, 12), s.size(60, 12), s.size(240, 20), kinds, walk, prepared)
    more: dict[str, Any] = {"num_workers": s.size(6, 0), "persistent_workers": not s.tiny} if workers else {}
    loader = GraphLoader(data, batch_size=rows, shuffle=True, drop_last=True, pin_memory=(workers or pinned) and s.cuda, **more)
    with s.device:
        model = DelayNet(kinds, 4 + 5, walk, s.size(192, 16), s.size(5, 2)).train()
        sums = torch.zeros(3)
    if compiled:
        for layer in model.layers:
            layer.forward = s.compile(layer.forward, dynamic=True)
    known = known or compiled
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=1e-5, **({"fused": True} if fused else {}))
    turn, totals = counter(1), {"loss": 0.0, "delay_mae": 0.0, "worst_mae": 0.0}

    batches = forever(loader)

    def step() -> dict[str, float]:
        torch.set_float32_matmul_precision("highest")
        batch = next(batches).to(s.device, non_blocking=workers or pinned)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            delay, worst = model(batch, batch.num_graphs if known else None)
        delay, worst = delay.float(), worst.float()
        loss = F.huber_loss(delay, batch.delay) + 0.5 * F.huber_loss(worst, batch.worst)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            errors = (delay - batch.delay).abs().mean(), (worst - batch.worst).abs().mean()
        if read:
            totals["loss"] += loss.item() * batch.num_graphs
            totals["delay_mae"] += errors[0].item() * batch.num_graphs
            totals["worst_mae"] += errors[1].item() * batch.num_graphs
        else:
            sums.add_(torch.stack([loss.detach(), *errors]), alpha=batch.num_graphs)
            if next(turn) % 50 == 0:
                for name, value in zip(totals, sums.tolist(), strict=True):
                    totals[name] += value
                sums.zero_()
        return totals

    return step


# Vaults.


class Vaults(Dataset[tuple[Tensor, int]]):
    """Films of vaults as decoded frames in host memory; an item is a window and a crop of one."""

    def __init__(self, films: int, length: int, height: int, width: int, kinds: int, frames: int, side: int) -> None:
        rng = np.random.default_rng(89)
        self.films, self.kinds = rng.integers(0, 256, (films, length, height, width, 3), dtype=np.uint8), rng.integers(0, kinds, films)
        self.frames, self.side = frames, side

    def __len__(self) -> int:
        return 16 * len(self.films)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        film, span, side = self.films[index % len(self.films)], 2 * self.frames - 1, self.side
        start, top, left = (random.randint(0, a - b) for a, b in zip(film.shape, (span, side, side), strict=False))
        clip = film[start : start + span : 2, top : top + side, left : left + side]
        if random.random() < 0.5:
            clip = clip[:, :, ::-1]
        return torch.from_numpy(clip.copy()), int(self.kinds[index % len(self.films)])


def accuracy(output: Tensor, target: Tensor, topk: tuple[int, ...]) -> list[Tensor]:
    """As in torchvision's references."""
    with torch.inference_mode():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / len(target)) for k in topk]


def gymnast_vaults(
    s: Setup,
    *,
    workers: bool = False,
    last: bool = False,
    fused: bool = False,
    bf16: bool = False,
    read: bool = True,
    pinned: bool = False,
    compiled: bool = False,
    at_once: bool = False,
) -> Step:
    """MC3-18 of torchvision learns vaults from 8 clips of 16 frames in fp16 with a scaler; three reads, an average of the weights by a loop."""
    from torchvision.models.video import mc3_18

    rows, frames, side, kinds = s.size(8, 2), s.size(16, 4), s.size(112, 32), s.size(120, 6)
    films = Vaults(s.size(24, 3), s.size(64, 10), s.size(128, 36), s.size(171, 48), kinds, frames, side)
    more: dict[str, Any] = {"num_workers": s.size(4, 0), "persistent_workers": not s.tiny} if workers else {}
    batches = forever(DataLoader(films, batch_size=rows, shuffle=True, drop_last=True, pin_memory=(workers or pinned) and s.cuda, **more))
    with s.device:
        model = mc3_18(num_classes=kinds).train()
        mean = torch.tensor([0.43216, 0.394666, 0.37645])[:, None, None, None]
        std = torch.tensor([0.22803, 0.22145, 0.216989])[:, None, None, None]
        sums = torch.zeros(3)
    if last:
        model = model.to(memory_format=torch.channels_last_3d)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    run = s.compile(model, dynamic=False) if compiled else model
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4, **({"fused": True} if fused else {}))
    scaler = torch.amp.GradScaler(s.device.type, enabled=not bf16 and s.cuda)
    dtype = BF16 if bf16 or not s.cuda else torch.float16
    turn, logs, decay = counter(1), {"loss": 0.0, "acc1": 0.0, "acc5": 0.0}, 0.999
    pairs = [(old, new) for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True)]
    floats, counts = ([pair for pair in pairs if pair[0].is_floating_point() == kind] for kind in (True, False))

    @torch.no_grad()
    def update_average() -> None:
        if at_once:
            torch._foreach_lerp_([old for old, _ in floats], [new for _, new in floats], 1 - decay)
            torch._foreach_copy_([old for old, _ in counts], [new for _, new in counts])
            return
        now = model.state_dict()
        for name, old in average.state_dict().items():
            if old.is_floating_point():
                old.mul_(decay).add_(now[name], alpha=1 - decay)
            else:
                old.copy_(now[name])

    def step() -> dict[str, float]:
        torch.set_float32_matmul_precision("highest")
        clips, target = (part.to(s.device, non_blocking=workers or pinned) for part in next(batches))
        clips = (clips.permute(0, 4, 1, 2, 3).float() / 255.0 - mean) / std
        clips = clips.contiguous(memory_format=torch.channels_last_3d if last else torch.contiguous_format)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, dtype):
            output = run(clips)
            loss = F.cross_entropy(output, target, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 5.0)
        scaler.step(optimizer)
        scaler.update()
        update_average()
        acc1, acc5 = accuracy(output.detach(), target, (1, 5))
        if read:
            logs.update(loss=loss.item(), acc1=acc1.item(), acc5=acc5.item())
        else:
            sums.add_(torch.stack([loss.detach(), acc1, acc5]))
            if next(turn) % 50 == 0:
                logs.update(zip(logs, [value / 50 for value in sums.tolist()], strict=True))
                sums.zero_()
        return logs

    return step


WORKLOADS = (
    _public(
        "netlist_delays", "GINE of torch_geometric on 24 netlists, training in FP32: described and collated in the process; sizes and losses are read.",
        netlist_delays, {},
        {"data-loading": {"workers": True}, "host-bound": {"prepared": True}, "sync-stall": {"known": True, "read": False},
         "sync-stall/read": {"read": False}, "memcpy": {"pinned": True}, "precision": {"autocast": True},
         "optimizer-foreach": {"fused": True}, "launch-gap": {"compiled": True}},
    ),
    _public(
        "gymnast_vaults", "MC3-18 of torchvision, training in fp16 with a scaler on 8 clips: NCDHW, an average by a loop, three reads.",
        gymnast_vaults, {},
        {"data-loading": {"workers": True}, "memory-layout": {"last": True}, "amp-scaler-sync": {"fused": True}, "amp-scaler-sync/bf16": {"bf16": True},
         "sync-stall": {"read": False}, "memcpy": {"pinned": True}, "unfused-elementwise": {"compiled": True},
         "optimizer-foreach": {"at_once": True}},
    ),
)  # fmt: skip
