"""Public models of cameras' detection and of riders of trams on a graph, by an author who has not read the rules."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture
from .public_models import BF16, How, _casting, _optimizer, _placed, _precision, _vision
from .public_models_4 import _public
from .public_models_20 import _settle

# Detection.


def _frozen(module: nn.Module) -> None:
    """Batch norms as torchvision freezes those of a backbone with pretrained weights."""
    from torchvision.ops import FrozenBatchNorm2d

    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm = FrozenBatchNorm2d(child.num_features)
            norm.load_state_dict(child.state_dict())
            setattr(module, name, norm)
        else:
            _frozen(child)


def forecourt_cameras(
    s: Setup, *, bytes_sent: bool = False, pinned: bool = False, fused: bool = False, kept: bool = False, **how: Any
) -> Step:
    """Faster R-CNN on MobileNetV3 looks at four cameras of a petrol station: frames as OpenCV gives them, calls timed for a dashboard."""
    from torchvision.transforms.functional import to_tensor

    way, cameras, high, wide, kinds = How(**how), s.size(4, 2), s.size(720, 96), s.size(1280, 128), ("car", "truck", "person", "motorcycle")
    sizes: dict[str, Any] = {"min_size": s.size(800, 96), "max_size": s.size(1333, 128), "box_detections_per_img": s.size(100, 5)}
    model: Any = _vision("fasterrcnn_mobilenet_v3_large_fpn", weights_backbone=None, num_classes=len(kinds) + 1, **sizes)
    _settle(model.backbone, torch.rand(2, 3, s.size(160, 96), s.size(160, 96)))
    _frozen(model.backbone)
    nn.init.normal_(model.roi_heads.box_predictor.cls_score.weight, std=0.2)
    model = _placed(s, way, model).eval()
    if fused:
        model.backbone = s.compile(model.backbone)
    drawn = np.random.default_rng(0)
    shots = [[drawn.integers(0, 256, (high, wide, 3), dtype=np.uint8) for _ in range(cameras)] for _ in range(3)]
    taken: deque[float] = deque(maxlen=100)
    turn, enough = 0, 0.5

    def prepared(frame: Any) -> Tensor:
        if bytes_sent:
            return torch.from_numpy(frame).to(s.device).flip(-1).permute(2, 0, 1).contiguous().float() / 255
        picture = to_tensor(np.ascontiguousarray(frame[:, :, ::-1]))
        return s.pin(picture).to(s.device, non_blocking=True) if pinned else picture.to(s.device)

    def said(boxes: Any, labels: Any, scores: Any) -> list[dict[str, Any]]:
        return [
            {"kind": kinds[int(label) - 1], "score": round(float(score), 3), "box": [round(float(x)) for x in box]}
            for box, label, score in zip(boxes, labels, scores, strict=True) if score >= enough
        ]  # fmt: skip

    @torch.no_grad()
    def step() -> list[list[dict[str, Any]]]:
        nonlocal turn
        _precision(way)
        frames = shots[turn % len(shots)]
        turn += 1
        images = [prepared(frame) for frame in frames]
        if not kept:
            s.synchronize()
        begun = time.perf_counter()
        with _casting(s, way):
            outputs = model(images)
        if kept:
            rows = torch.cat([torch.cat([out["boxes"], out["labels"][:, None], out["scores"][:, None]], 1).float() for out in outputs])
            tables = rows.cpu().split([len(out["scores"]) for out in outputs])
            taken.append(time.perf_counter() - begun)
            return [said(table[:, :4].numpy(), table[:, 4].numpy(), table[:, 5].numpy()) for table in tables]
        s.synchronize()
        taken.append(time.perf_counter() - begun)
        return [said(*(out[part].float().cpu().numpy() for part in ("boxes", "labels", "scores"))) for out in outputs]

    return step


# Graphs.


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


WORKLOADS = (
    _public(
        "forecourt_cameras", "Faster R-CNN on MobileNetV3 of torchvision, FP32, 4 frames of 720p that the host makes floats; frozen norms, calls are timed.",
        forecourt_cameras, {},
        {"host-bound": {"bytes_sent": True}, "memcpy": {"pinned": True}, "unfused-elementwise": {"fused": True}, "sync-stall": {"kept": True},
         "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "tram_riders", "GConvGRU on ChebConv of torch_geometric, training in FP32 on 32 windows of 325 stops; the Laplacian is made in each convolution.",
        tram_riders, {},
        {"graph-candidate": {"graph": True}, "launch-gap/batch": {"batch": 128}, "sync-stall": {"kept": True}, "memcpy": {"pinned": True},
         "precision/tf32": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
        shared={"launch-gap/batch": 4.0},
    ),
)  # fmt: skip
