"""data-loading"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16
WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


class Nights(Dataset[tuple[Tensor, int]]):
    """Half a minute of each channel, with mains hum and drift taken out, and no two channels equally loud."""

    def __init__(self, s: Setup) -> None:
        rng = np.random.default_rng(0)
        self.nights = rng.standard_normal((s.size(6, 4), s.size(400_000, 2000))).astype(np.float32)
        self.length, self.points = s.size(3000, 256), s.size(10_000, 12)

    def __len__(self) -> int:
        return self.points

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        start = (index * 7919) % (self.nights.shape[1] - self.length)
        piece = self.nights[:, start : start + self.length]
        spectrum = np.fft.rfft(piece * np.hanning(self.length), axis=1)
        pitch = np.fft.rfftfreq(self.length, 0.01)
        spectrum[:, (pitch < 0.3) | (pitch > 35.0)] = 0.0
        piece = np.fft.irfft(spectrum, self.length, axis=1)
        middle = np.median(piece, axis=1, keepdims=True)
        spread = np.percentile(piece, 75, axis=1, keepdims=True) - np.percentile(piece, 25, axis=1, keepdims=True)
        return torch.from_numpy(np.clip((piece - middle) / (spread + 1e-6), -20, 20).astype(np.float32)), index % 5


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def sleep_stages(s: Setup, *, workers: bool = False, read: bool = True, autocast: bool = False) -> Step:
    width = s.size(64, 8)
    layers: list[nn.Module] = []
    for inner, kernel, stride in ((s.size(6, 4), 25, 6), (width, 9, 2), (width, 9, 2), (width, 9, 2)):
        layers += [nn.Conv1d(inner, width, kernel, stride, kernel // 2), nn.BatchNorm1d(width), nn.GELU()]
    body, rnn = nn.Sequential(*layers).to(s.device), nn.GRU(width, width, batch_first=True, bidirectional=True).to(s.device)
    head = nn.Linear(2 * width, 5).to(s.device)
    optimizer = torch.optim.AdamW([*body.parameters(), *rnn.parameters(), *head.parameters()], lr=1e-3)
    options = WORKERS | {"pin_memory": True} if workers and s.cuda else {}
    batches, sums = _without_end(DataLoader(Nights(s), batch_size=s.size(32, 3), shuffle=True, drop_last=True, **options)), [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        waves, stages = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(head(rnn(body(waves).transpose(1, 2))[0].mean(1)), stages)
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item()

    return step


PROGRAM = written_pair(
    "sleep_stages",
    "data-loading",
    "A convolutional and recurrent network on 32 pieces of a night, which numpy filters in the training process.",
    "num_workers=8, persistent_workers and pin_memory",
    sleep_stages,
    {"workers": True},
    alone={"sync-stall": {"read": False}, "precision": {"autocast": True}},
)
