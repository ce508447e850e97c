"""precision"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


class Ahead:
    """Batches drawn on the host, pinned, and copied on a stream of their own one batch ahead."""

    def __init__(self, draw: Callable[[], tuple[Tensor, ...]], s: Setup) -> None:
        self.draw, self.setup = draw, s
        self.stream = torch.cuda.Stream() if s.cuda else None
        self.batch = self._copy()

    def _copy(self) -> tuple[Tensor, ...]:
        host = [self.setup.pin(part) for part in self.draw()]
        with torch.cuda.stream(self.stream):
            return tuple(part.to(self.setup.device, non_blocking=True) for part in host)

    def next(self) -> tuple[Tensor, ...]:
        if self.stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self.stream)
            for part in self.batch:
                part.record_stream(current)
        return self.batch

    def refill(self) -> None:
        self.batch = self._copy()


class Excerpts(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, mix: Tensor, drums: Tensor, length: int) -> None:
        self.mix, self.drums, self.length = mix, drums, length

    def __len__(self) -> int:
        return (self.mix.shape[1] - self.length) // 1024

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        part = slice(1024 * at, 1024 * at + self.length)
        return self.mix[:, part], self.drums[:, part]


class WaveUNet(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(nn.Conv1d(inner, outer, 15, padding=7) for inner, outer in pairwise((2, *widths)))
        self.middle = nn.Conv1d(widths[-1], widths[-1], 15, padding=7)
        above = (*widths[1:], widths[-1])
        self.ups = nn.ModuleList(nn.Conv1d(lower + skip, skip, 5, padding=2) for lower, skip in reversed(list(zip(above, widths, strict=True))))
        self.out = nn.Conv1d(widths[0] + 2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        sound, kept = x, []
        for down in self.downs:
            x = F.leaky_relu(down(x), 0.2)
            kept.append(x)
            x = x[:, :, ::2]
        x = F.leaky_relu(self.middle(x), 0.2)
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2.0, mode="linear")
            x = F.leaky_relu(up(torch.cat([x, kept.pop()], 1)), 0.2)
        return torch.tanh(self.out(torch.cat([x, sound], 1)))


def drum_stems(s: Setup, *, autocast: bool = False, workers: int = 0, ahead: bool = False) -> Step:
    length, widths = s.size(32768, 64), (64, 128, 192, 256, 320, 384) if not s.tiny else (4, 6)
    mix, drums = (torch.rand(2, s.size(3_000_000, 8000)) - 0.5 for _ in range(2))

    def loaded() -> Iterator[tuple[Tensor, Tensor]]:
        here = workers if s.cuda else 0
        loader = torch.utils.data.DataLoader(
            Excerpts(mix, drums, length), s.size(16, 2), shuffle=True, num_workers=here, pin_memory=here > 0, persistent_workers=here > 0, drop_last=True,
            multiprocessing_context="fork" if here else None,
        )  # fmt: skip
        while True:
            yield from loader

    batches = loaded()
    copied = Ahead(lambda: next(batches), s) if ahead else None
    model = WaveUNet(widths).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        sound, wanted = copied.next() if copied else (part.to(s.device, non_blocking=workers > 0) for part in next(batches))
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            found = model(sound)
        F.l1_loss(found.float(), wanted).backward()
        optimizer.step()
        if copied:
            copied.refill()

    return step


PROGRAM = written_pair(
    "drum_stems",
    "precision",
    "Training of a Wave-U-Net in FP32 with TF32 convolutions on excerpts cut in memory by a loader without workers.",
    "bf16 autocast",
    drum_stems,
    {"autocast": True},
    alone={"data-loading": {"workers": 8}, "memcpy": {"ahead": True}},
    gpu_bound=True,
)
