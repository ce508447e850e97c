"""data-loading"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step, written_pair
from workloads.public import BF16

WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _loaded(s: Setup, data: Dataset[Any], batch: int, workers: bool) -> Iterator[Any]:
    options = WORKERS | {"pin_memory": s.cuda} if workers and s.cuda else {}
    return _without_end(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options))


PARTS = re.compile(r"[a-z]+|\d+\.\d+\.\d+\.\d+|0x[0-9a-f]+|\d+|[^\sa-z\d]")


class Lines(Dataset[tuple[Tensor, int]]):
    def __init__(self, s: Setup, parsed: bool) -> None:
        rng, words = np.random.default_rng(0), [f"{a}{b}" for a in ("disk", "node", "user", "job", "net") for b in "abcdefghij"]
        self.length = s.size(128, 12)
        self.known = {word: i + 3 for i, word in enumerate(words)}
        self.lines = [
            " ".join(f"{words[i]}=0x{i:04x} [{i}.{i}.0.1] {i};" for i in rng.integers(len(words), size=s.size(14, 2))) for _ in range(s.size(4000, 16))
        ]
        self.parsed = [torch.tensor(self.parse(line)) for line in self.lines] if parsed else None

    def parse(self, line: str) -> list[int]:
        numbers = []
        for part in PARTS.findall(line.strip().lower()):
            if part.startswith("0x") or part[0].isdigit():
                numbers.append(1)
            else:
                numbers.append(self.known.get(part, 2 if part.isalpha() else 60 + ord(part[0]) % 40))
        return (numbers + [0] * self.length)[: self.length]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.parsed[index] if self.parsed else torch.tensor(self.parse(self.lines[index])), index % 2


class LineModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(128, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.rnn(self.table(ids))
        return self.head(out.amax(1))  # type: ignore[no-any-return]


def log_lines(s: Setup, *, workers: bool = False, parsed: bool = False, autocast: bool = False) -> Step:
    model = LineModel(s.size(192, 8)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = _loaded(s, Lines(s, parsed), s.size(256, 4), workers)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        ids, labels = (part.to(s.device, non_blocking=workers) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "log_lines",
    "data-loading",
    "A GRU on 256 lines of a log, which a regular expression takes apart in the training process.",
    "num_workers=8, persistent_workers and pin_memory",
    log_lines,
    {"workers": True},
    alone={"host-bound": {"parsed": True}, "precision": {"autocast": True}},
)
