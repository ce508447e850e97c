"""Eight rounds of messages along 81,900 edges, training in fp16 with a GradScaler, layer norm written out, gradients filled with zeros."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


class LatentNorm(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.gain, self.shift, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, self.gain.shape, self.gain, self.shift, 1e-5)
        x = x.float()
        mean = x.mean(-1, keepdim=True)
        spread = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(spread + 1e-5) * self.gain + self.shift


def _blend(inner: int, width: int, library: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, width), nn.SiLU(), nn.Linear(width, width), LatentNorm(width, library))


class Globe(nn.Module):
    def __init__(self, s: Setup, fields: int, library: bool) -> None:
        super().__init__()
        width = s.size(256, 8)
        self.enter, self.edges = _blend(fields, width, library), _blend(4, width, library)
        self.along = nn.ModuleList(_blend(3 * width, width, library) for _ in range(s.size(8, 2)))
        self.at = nn.ModuleList(_blend(2 * width, width, library) for _ in range(s.size(8, 2)))
        self.last = nn.Linear(width, fields)

    def forward(self, state: Tensor, shapes: Tensor, come: Tensor, go: Tensor) -> Tensor:
        x, e = self.enter(state), self.edges(shapes)
        for along, at in zip(self.along, self.at, strict=True):
            message = along(torch.cat([e, x[come], x[go]], -1))
            e = e + message
            heard = torch.zeros_like(x).index_add(0, go, message.to(x.dtype))
            x = x + at(torch.cat([x, heard], -1))
        return state + self.last(x)


def mesh_weather(s: Setup, *, norms: bool = False, fused: bool = False, filled: bool = True) -> Step:
    nodes, edges, fields = s.size(10_242, 12), s.size(81_900, 40), s.size(78, 5)
    model = Globe(s, fields, norms).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    come, go = torch.randint(nodes, (edges,), device=s.device), torch.randint(nodes, (edges,), device=s.device).sort().values
    shapes, state, later = torch.randn(edges, 4, device=s.device), torch.randn(nodes, fields, device=s.device), torch.randn(nodes, fields, device=s.device)
    area = torch.rand(nodes, 1, device=s.device) + 0.5

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad(set_to_none=not filled)
        with torch.autocast(s.device.type, torch.float16, enabled=s.cuda):
            forecast = model(state, shapes, come, go)
        loss = (area * (forecast.float() - later) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 32.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


PROGRAM = written(
    "mesh_weather",
    "Eight rounds of messages along 81,900 edges, training in fp16 with a GradScaler, layer norm written out, gradients filled with zeros.",
    "F.layer_norm; AdamW(fused=True); zero_grad(set_to_none=True)",
    mesh_weather,
    {"unfused-norm": {"norms": True}, "amp-scaler-sync": {"fused": True}, "grad-zeroing": {"filled": False}},
    gpu_bound=True,
)
