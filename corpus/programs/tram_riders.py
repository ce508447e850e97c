"""GConvGRU on ChebConv of torch_geometric, training in FP32 on 32 windows of 325 stops; the Laplacian is made in each convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture
from workloads.public import How, _casting, _optimizer, _placed, _precision, _public


def _own_cheb() -> Any:
    """ChebConv, whose Laplacian is made with masks instead of shorter lists of edges."""
    from torch_geometric.nn import ChebConv

    class MaskedChebConv(ChebConv):  # type: ignore[misc]
        def __norm__(
            self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor, normalization: str, lambda_max: Any = None, dtype: Any = None,
            batch: Any = None,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            row, col = edge_index
            weight = torch.where(row == col, 0.0, edge_weight)
            degree = weight.new_zeros(num_nodes).scatter_add_(0, row, weight)
            root = torch.where(degree > 0, degree.rsqrt(), 0.0)
            between, own = -root[row] * weight * root[col], weight.new_ones(num_nodes)
            largest = 2.0 * torch.maximum(between.max(), own.max())
            at = torch.arange(num_nodes, device=row.device).expand(2, -1)
            return torch.cat([edge_index, at], 1), torch.cat([2.0 * between / largest, 2.0 * own / largest - 1.0])

    return MaskedChebConv


class _GConvGRU(nn.Module):
    """As in torch_geometric_temporal: a GRU whose products are convolutions on the graph."""

    def __init__(self, inner: int, outer: int, order: int, conv: Any) -> None:
        super().__init__()
        self.outer = outer
        self.conv_x_z, self.conv_h_z = conv(inner, outer, K=order), conv(outer, outer, K=order)
        self.conv_x_r, self.conv_h_r = conv(inner, outer, K=order), conv(outer, outer, K=order)
        self.conv_x_h, self.conv_h_h = conv(inner, outer, K=order), conv(outer, outer, K=order)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, h: Tensor | None = None) -> Tensor:
        if h is None:
            h = torch.zeros(*x.shape[:-1], self.outer, device=x.device)
        z = torch.sigmoid(self.conv_x_z(x, edge_index, edge_weight) + self.conv_h_z(h, edge_index, edge_weight))
        r = torch.sigmoid(self.conv_x_r(x, edge_index, edge_weight) + self.conv_h_r(h, edge_index, edge_weight))
        new = torch.tanh(self.conv_x_h(x, edge_index, edge_weight) + self.conv_h_h(h * r, edge_index, edge_weight))
        return z * h + (1 - z) * new


class _Riders(nn.Module):
    def __init__(self, inner: int, width: int, order: int, ahead: int, conv: Any) -> None:
        super().__init__()
        self.recurrent, self.linear = _GConvGRU(inner, width, order, conv), nn.Linear(width, ahead)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        h = None
        for moment in x.unbind(1):
            h = self.recurrent(moment, edge_index, edge_weight, h)
        return self.linear(F.relu(h)).transpose(1, 2)  # type: ignore[no-any-return, arg-type]


def _masked(error: Tensor, truth: Tensor) -> Tensor:
    """Graph WaveNet's mean over what was counted: nought means that a counter was off."""
    mask = (truth != 0).float()
    mask = mask / mask.mean()
    mask = torch.where(torch.isnan(mask), torch.zeros_like(mask), mask)
    loss = error * mask
    return torch.where(torch.isnan(loss), torch.zeros_like(loss), loss).mean()


def tram_riders(s: Setup, *, batch: int = 32, kept: bool = False, pinned: bool = False, **how: Any) -> Step:
    """GConvGRU foretells an hour of riders at 325 tram stops from the hour before; three numbers are read in each step."""
    from torch_geometric.nn import ChebConv

    way, stops, moments, ahead = How(**how), s.size(325, 12), s.size(12, 3), s.size(12, 3)
    batch = s.size(batch, batch // 16)
    edge_index = torch.randint(stops, (2, s.size(2400, 40)), device=s.device)
    edge_weight = torch.rand(edge_index.shape[1], device=s.device)
    drawn = np.random.default_rng(0)
    counts = drawn.gamma(2.0, 30.0, (s.size(8000, 40), stops)).astype(np.float32)
    counts[drawn.random(counts.shape) < 0.05] = 0.0
    hours = (np.arange(len(counts)) % 288 / 288).astype(np.float32)
    mean, std = float(counts.mean()), float(counts.std())
    series = np.stack([(counts - mean) / std, np.repeat(hours[:, None], stops, 1)], -1)
    conv = _own_cheb() if kept or way.graph else ChebConv
    model = _placed(s, way, _Riders(2, s.size(64, 8), 2, ahead, conv)).train()
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, torch.optim.Adam, weight_decay=1e-4, **({"capturable": True} if way.graph and s.cuda else {}))
    noted, log = torch.zeros(3, device=s.device), [0.0, 0.0, 0.0]

    def windows() -> tuple[Tensor, Tensor]:
        starts = drawn.integers(0, len(counts) - moments - ahead, batch)
        x = np.stack([series[at : at + moments] for at in starts])
        y = np.stack([counts[at + moments : at + moments + ahead] for at in starts])
        return torch.from_numpy(x), torch.from_numpy(y)

    def learn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with _casting(s, way):
            out = model(x, edge_index, edge_weight)
        out = out.float() * std + mean
        loss = _masked((out - y).abs(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        with torch.no_grad():
            return loss.detach(), _masked((out - y).abs() / y, y), _masked((out - y).square(), y).sqrt()

    fixed = [part.to(s.device) for part in windows()] if way.graph else []

    def learn_fixed() -> None:
        torch._foreach_zero_([parameter.grad for parameter in parameters])
        noted.copy_(torch.stack(learn(*fixed)))

    if way.graph:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
    _precision(way)
    replayed = capture(learn_fixed, s) if way.graph else None

    def step() -> None:
        _precision(way)
        host = windows()
        if replayed:
            for there, part in zip(fixed, host, strict=True):
                there.copy_(part)
            replayed()
            log[:] = [part.item() for part in noted]
            return
        x, y = (s.pin(part).to(s.device, non_blocking=True) if pinned else part.to(s.device) for part in host)
        optimizer.zero_grad()
        three = learn(x, y)
        if kept:
            noted.add_(torch.stack(three))
        else:
            log[:] = [part.item() for part in three]

    return step


PROGRAM = _public(
    "tram_riders",
    "GConvGRU on ChebConv of torch_geometric, training in FP32 on 32 windows of 325 stops; the Laplacian is made in each convolution.",
    tram_riders,
    {},
    {
        "graph-candidate": {"graph": True},
        "launch-gap/batch": {"batch": 128},
        "sync-stall": {"kept": True},
        "memcpy": {"pinned": True},
        "precision/tf32": {"tf32": True},
        "optimizer-foreach": {"optimizer": "fused"},
    },
    shared={"launch-gap/batch": 4.0},
)
