"""A dilated residual network over 24 strands of 7000 letters, training in FP32 with TF32 convolutions; numpy makes letters one-hot in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


class Genome(Dataset[tuple[np.ndarray, np.ndarray]]):
    """Pieces of chromosomes, half of them read from the other strand, one-hot; bytes stand for letters."""

    def __init__(self, letters: int, length: int, margin: int) -> None:
        draw = np.random.default_rng(0)
        self.letters, self.sites = draw.integers(0, 4, letters, dtype=np.uint8), np.zeros(letters, dtype=np.uint8)
        self.sites[draw.integers(0, letters, letters // 500)] = draw.integers(1, 3, letters // 500)
        self.length, self.margin = length, margin

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(index)
        start = draw.integers(0, len(self.letters) - self.length - 2 * self.margin)
        seen = self.letters[start : start + self.length + 2 * self.margin]
        sites = self.sites[start + self.margin : start + self.margin + self.length]
        hot = np.eye(4, dtype=np.float32)[seen]
        hot[draw.random(len(hot)) < 0.001] = 0.25
        if draw.random() < 0.5:
            hot, sites = hot[::-1, ::-1], sites[::-1]
        return np.ascontiguousarray(hot.T), sites.astype(np.int64)


class Dilated(nn.Module):
    def __init__(self, width: int, taps: int, apart: int, flat: bool) -> None:
        super().__init__()
        self.parts = nn.Sequential()
        for _ in range(2):
            self.parts += nn.Sequential(_norm(width, flat), nn.ReLU(), _taps(width, width, taps, apart, flat))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


def _norm(width: int, flat: bool) -> nn.Module:
    return nn.BatchNorm2d(width) if flat else nn.BatchNorm1d(width)


def _taps(inner: int, outer: int, taps: int, apart: int, flat: bool) -> nn.Module:
    if flat:
        return nn.Conv2d(inner, outer, (1, taps), dilation=(1, apart), padding=(0, taps // 2 * apart))
    return nn.Conv1d(inner, outer, taps, dilation=apart, padding=taps // 2 * apart)


def splice_sites(s: Setup, *, autocast: bool = False, workers: bool = False, flat: bool = False) -> Step:
    """`flat` takes a strand for a picture one pixel high, whose channels lie last."""
    width, length, margin, count = s.size(32, 4), s.size(5000, 64), s.size(1000, 8), s.size(24, 2)
    blocks = [(11, 1)] * 4 + [(11, 4)] * 4 + [(21, 10)] * 4 if not s.tiny else [(3, 1), (3, 2)]
    layers = [_taps(4, width, 1, 1, flat), *(Dilated(width, taps, apart, flat) for taps, apart in blocks), _taps(width, 3, 1, 1, flat)]
    model = nn.Sequential(*layers).to(s.device)
    if flat:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    weight = torch.tensor([1.0, 50.0, 50.0], device=s.device)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches = iter(DataLoader(Genome(s.size(10_000_000, 2000), length, margin), batch_size=count, **options))

    def step() -> Tensor:
        hot, sites = (part.to(s.device, non_blocking=workers) for part in next(batches))
        if flat:
            hot = hot[:, :, None].contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            scores = model(hot)
        scores = (scores[:, :, 0] if flat else scores)[:, :, margin:-margin]
        loss = F.cross_entropy(scores.float(), sites, weight)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


PROGRAM = written(
    "splice_sites",
    "A dilated residual network over 24 strands of 7000 letters, training in FP32 with TF32 convolutions; numpy makes letters one-hot in this process.",
    "bf16 autocast; num_workers=8 and pin_memory; channels_last as pictures one pixel high",
    splice_sites,
    {"precision": {"autocast": True}, "data-loading": {"workers": True}, "memory-layout": {"flat": True}},
    gpu_bound=True,
)
