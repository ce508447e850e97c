"""data-loading"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from workloads.base import Setup, Step, Workload


class Commands(torch.utils.data.Dataset[tuple[NDArray[np.float32], int]]):
    def __init__(self, many: int, length: int) -> None:
        self.waves = np.random.default_rng(0).standard_normal((32, length)).astype(np.float32)
        self.many = many

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, at: int) -> tuple[NDArray[np.float32], int]:
        random = np.random.default_rng(at)
        wave = np.roll(self.waves[at % len(self.waves)], int(random.integers(1600))) + 0.01 * random.standard_normal(self.waves.shape[1])
        frames = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160] * np.hanning(400)
        spectrum = np.log(np.abs(np.fft.rfft(frames, 512)) ** 2 + 1e-6)[:, :128]
        cut = int(random.integers(spectrum.shape[0] // 2))
        return spectrum[cut // 4 :].astype(np.float32), at % 35


def pad_together(items: list[tuple[NDArray[np.float32], int]]) -> tuple[Tensor, Tensor]:
    longest = max(len(spectrum) for spectrum, _ in items)
    batch = torch.zeros(len(items), longest, 128)
    for row, (spectrum, _) in zip(batch, items, strict=True):
        row[: len(spectrum)] = torch.from_numpy(spectrum)
    return batch, torch.tensor([label for _, label in items])


def speech_commands(s: Setup, *, workers: int = 0) -> Step:
    workers = workers if s.cuda else 0
    data = Commands(1 << 16, s.size(16000, 4000))
    loader = torch.utils.data.DataLoader(
        data, s.size(32, 2), collate_fn=pad_together, num_workers=workers, pin_memory=s.cuda, persistent_workers=workers > 0,
    )  # fmt: skip
    width = s.size(512, 16)
    model = nn.ModuleDict({"rnn": nn.GRU(128, width, 2, batch_first=True), "head": nn.Linear(width, 35)}).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = iter(loader)

    def step() -> None:
        spectra, labels = (part.to(s.device, non_blocking=True) for part in next(batches))
        optimizer.zero_grad()
        loss = F.cross_entropy(model["head"](model["rnn"](spectra)[0].mean(1)), labels)
        loss.backward()
        optimizer.step()

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "speech_commands",
    "data-loading",
    "A GRU on spectrograms that numpy computes, cuts and pads in the training process.",
    "num_workers=8",
    speech_commands,
    partial(speech_commands, workers=8),
    fixed_quiet=False,
)
