"""A residual network in FP32 on one electrocardiogram a call; numpy takes drift and spikes out of lead after lead."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, written


class Beat(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(inner, outer, 15, stride, 7, bias=False), nn.Conv1d(outer, outer, 15, 1, 7, bias=False)
        self.norms, self.skip = nn.ModuleList(nn.BatchNorm1d(outer) for _ in range(2)), nn.Conv1d(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.skip(x))


def _lead(lead: np.ndarray, wide: int) -> np.ndarray:
    """One lead without its drift and spikes."""
    drift = np.convolve(lead, np.full(wide, 1.0 / wide), mode="same")
    flat = lead - drift
    flat = np.clip(flat, *np.percentile(flat, (0.1, 99.9)))
    return (flat - flat.mean()) / (flat.std() + 1e-6)


def _leads(leads: np.ndarray, wide: int) -> np.ndarray:
    """All leads at once, by running sums, kept in FP32; the limits come from a partition."""
    sums = np.cumsum(np.pad(leads, ((0, 0), (wide // 2 + 1, wide // 2))), axis=1, dtype=np.float64)
    flat = leads - ((sums[:, wide:] - sums[:, :-wide]) / wide).astype(np.float32)
    edge = max(1, leads.shape[1] // 1000)
    ordered = np.partition(flat, (edge, -edge), axis=1)
    flat = np.clip(flat, ordered[:, edge : edge + 1], ordered[:, -edge : -edge + 1 or None])
    return (flat - flat.mean(1, keepdims=True)) / (flat.std(1, keepdims=True) + 1e-6)


def heart_service(s: Setup, *, patients: int = 1, at_once: bool = False, pinned: bool = False) -> Step:
    length, width, wide = s.size(5000, 256), s.size(64, 4), s.size(301, 21)
    blocks = [Beat(inner, outer, 2) for inner, outer in ((width, width), (width, 2 * width), (2 * width, 3 * width), (3 * width, 4 * width))]
    model = nn.Sequential(nn.Conv1d(12, width, 15, 2, 7), nn.ReLU(), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4 * width, 27))
    model = model.to(s.device).eval()
    arrived = np.random.default_rng(0).standard_normal((16, 12, length)).astype(np.float32)
    turn = [0]

    @torch.inference_mode()
    def step() -> list[list[float]]:
        torch.set_float32_matmul_precision("highest")
        cleaned = []
        for _ in range(patients):
            turn[0] += 1
            leads = arrived[turn[0] % 16]
            cleaned.append(_leads(leads, wide) if at_once else np.stack([_lead(lead, wide) for lead in leads]).astype(np.float32))
        waves = torch.from_numpy(np.stack(cleaned))
        waves = s.pin(waves).to(s.device, non_blocking=True) if pinned else waves.to(s.device)
        return torch.sigmoid(model(waves)).tolist()

    return step


PROGRAM = written(
    "heart_service",
    "A residual network in FP32 on one electrocardiogram a call; numpy takes drift and spikes out of lead after lead.",
    "sixteen patients a call; all leads at once by running sums; pinned memory and non_blocking",
    heart_service,
    {"low-arithmetic-intensity": {"patients": 16}, "host-bound": {"at_once": True}, "memcpy": {"pinned": True}},
    shared={"low-arithmetic-intensity": 16.0},
)
