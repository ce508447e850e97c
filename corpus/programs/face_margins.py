"""ArcFace's head over 85,742 people, training with TF32 products: the margin is a chain over all of them, gradients are filled with zeros."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


def _margins(cosines: Tensor, names: Tensor, margin: float, scale: float) -> Tensor:
    """ArcFace's logits, as its first code in PyTorch wrote them."""
    sines = torch.sqrt((1.0 - cosines * cosines).clamp(0.0, 1.0))
    wider = cosines * math.cos(margin) - sines * math.sin(margin)
    wider = torch.where(cosines > math.cos(math.pi - margin), wider, cosines - math.sin(math.pi - margin) * margin)
    own = torch.zeros_like(cosines).scatter_(1, names[:, None], 1.0)
    return (own * wider + (1.0 - own) * cosines) * scale


class Head(nn.Module):
    def __init__(self, width: int, people: int, margins: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight, self.margins = nn.Parameter(torch.empty(people, width)), margins
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, names: Tensor) -> Tensor:
        return self.margins(F.linear(F.normalize(x), F.normalize(self.weight)), names, 0.5, 64.0)


def face_margins(s: Setup, *, compiled: bool = False, people: int = 85_742, filled: bool = True) -> Step:
    """The network's features of 512 faces are learnt with it; the network is two layers here."""
    count, width, known = s.size(512, 4), s.size(512, 16), s.size(people, 30 + people % 8)
    margins = s.compile(_margins) if compiled else _margins
    body = nn.Sequential(nn.Linear(2 * width, width), nn.BatchNorm1d(width), nn.PReLU(), nn.Linear(width, width)).to(s.device)
    head = Head(width, known, margins).to(s.device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=5e-4)
    pooled, names = torch.randn(count, 2 * width, device=s.device), torch.randint(30, (count,), device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad(set_to_none=not filled)
        F.cross_entropy(head(body(pooled), names), names).backward()
        optimizer.step()

    return step


PROGRAM = written(
    "face_margins",
    "ArcFace's head over 85,742 people, training with TF32 products: the margin is a chain over all of them, gradients are filled with zeros.",
    "torch.compile of the margin; 85,744 people; zero_grad(set_to_none=True)",
    face_margins,
    {"unfused-elementwise": {"compiled": True}, "gemm-alignment": {"people": 85_744}, "grad-zeroing": {"filled": False}},
    gpu_bound=True,
)
