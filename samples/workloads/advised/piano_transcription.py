"""Training of Onsets and Frames: from the sound of a piano to the notes that were played, with their velocities.

A log-mel spectrogram goes through four stacks (onsets, offsets, frames, velocities) of convolutions, the first two with a bidirectional LSTM; a
fifth puts onsets, offsets and frames together. Single precision, Adam with a stepped rate, clipped gradients; each loss is logged at
every step. Recordings lie in host memory as 16-bit samples with a label for each frame and key; a DataLoader cuts a random
stretch out of each. The sounds here are made up: decaying harmonics of random chords.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..base import Setup, Step

RATE, HOP, WINDOW, MELS = 16_000, 512, 2048, 229
KEYS, LOWEST = 88, 21


def mel_filters(low: float = 30.0, high: float = RATE / 2) -> np.ndarray:
    """Triangles on the HTK mel scale, each of area 1: (MELS, WINDOW // 2 + 1)."""
    mels = np.linspace(2595 * np.log10(1 + low / 700), 2595 * np.log10(1 + high / 700), MELS + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    slopes = corners[:, None] - bins[None, :]
    widths = np.diff(corners)
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))[:, None]
    return filters.astype(np.float32)


class Recordings(Dataset):
    """Stretches of `frames` frames. Labels: 3 at an onset, 2 while a key is held, 1 right after its end, 0 elsewhere."""

    def __init__(self, pieces: int, seconds: int, notes: int, frames: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.frames, self.random = frames, np.random.default_rng(seed + 1)
        self.pieces = [self.play(rng, seconds * RATE // HOP, notes) for _ in range(pieces)]

    @staticmethod
    def play(rng: np.random.Generator, length: int, notes: int) -> tuple[Tensor, Tensor, Tensor]:
        audio = rng.normal(0, 1e-3, length * HOP)
        label, velocity = np.zeros((length, KEYS), np.uint8), np.zeros((length, KEYS), np.uint8)
        for _ in range(notes):
            key, strength = int(np.clip(rng.normal(44, 14), 0, KEYS - 1)), int(rng.integers(30, 110))
            start, held = int(rng.integers(0, length - 8)), int(rng.integers(4, 40))
            end = min(start + held, length - 1)
            time = np.arange((end - start) * HOP) / RATE
            pitch = 440 * 2 ** ((key + LOWEST - 69) / 12)
            for harmonic in range(1, 6):
                if harmonic * pitch < RATE / 2:
                    tone = np.sin(2 * np.pi * harmonic * pitch * time) * np.exp(-time * (1.5 + 0.6 * harmonic))
                    audio[start * HOP : end * HOP] += 0.12 * strength / 127 / harmonic * tone
            label[start:end, key], label[start, key], label[end, key] = 2, 3, 1
            velocity[start:end, key] = strength
        samples = (audio.clip(-1, 1) * 32767).astype(np.int16)
        return torch.from_numpy(samples), torch.from_numpy(label), torch.from_numpy(velocity)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        samples, label, velocity = self.pieces[number]
        start = int(self.random.integers(0, len(label) - self.frames))
        label, velocity = label[start : start + self.frames], velocity[start : start + self.frames]
        return {
            "audio": samples[start * HOP : (start + self.frames) * HOP].float().div(32768.0),
            "onset": (label == 3).float(),
            "offset": (label == 1).float(),
            "frame": (label > 1).float(),
            "velocity": velocity.float().div(128.0),
        }


class MelSpectrogram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", torch.from_numpy(mel_filters()))
        self.register_buffer("window", torch.hann_window(WINDOW))

    def forward(self, audio: Tensor) -> Tensor:
        """(batch, samples) to (batch, frames, MELS). The last sample is left out, to have one frame for each hop."""
        spectrum = torch.stft(audio[:, :-1], WINDOW, HOP, window=self.window, center=True, pad_mode="reflect", return_complex=True)
        return torch.log(torch.clamp(self.filters @ spectrum.abs(), min=1e-5)).transpose(-1, -2)


class ConvStack(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.channels_last = False
        self.cnn = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
            nn.Dropout(0.25),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
            nn.Dropout(0.25),
        )
        self.fc = nn.Sequential(nn.Linear(2 * width * (MELS // 4), out), nn.Dropout(0.5))

    def forward(self, mel: Tensor) -> Tensor:
        image = mel.unsqueeze(1)
        if self.channels_last:
            image = image.to(memory_format=torch.channels_last)
        x = self.cnn(image)
        return self.fc(x.transpose(1, 2).flatten(-2))


class BiLstm(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(size, hidden, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class OnsetsAndFrames(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        size = 16 * width
        self.onsets = nn.Sequential(ConvStack(width, size), BiLstm(size, size // 2), nn.Linear(size, KEYS), nn.Sigmoid())
        self.offsets = nn.Sequential(ConvStack(width, size), BiLstm(size, size // 2), nn.Linear(size, KEYS), nn.Sigmoid())
        self.frames = nn.Sequential(ConvStack(width, size), nn.Linear(size, KEYS), nn.Sigmoid())
        self.combined = nn.Sequential(BiLstm(3 * KEYS, size // 2), nn.Linear(size, KEYS), nn.Sigmoid())
        self.velocities = nn.Sequential(ConvStack(width, size), nn.Linear(size, KEYS))
        self.compiled: dict[str, Callable[..., Any]] = {}

    def channels_last(self) -> None:
        self.to(memory_format=torch.channels_last)
        for module in self.modules():
            if isinstance(module, ConvStack):
                module.channels_last = True

    def compile_parts(self, s: Setup) -> None:
        """Compiles all but the LSTMs, at which a graph would break: one function for the four stacks, one for the heads."""
        self.compiled = {"stack": s.compile(ConvStack.forward, dynamic=False), "head": s.compile(head, dynamic=False)}

    def forward_in_parts(self, mel: Tensor) -> dict[str, Tensor]:
        stack, last = self.compiled["stack"], self.compiled["head"]
        onset = last(self.onsets[2], self.onsets[1](stack(self.onsets[0], mel)))
        offset = last(self.offsets[2], self.offsets[1](stack(self.offsets[0], mel)))
        activation = last(self.frames[1], stack(self.frames[0], mel))
        frame = last(self.combined[1], self.combined[0](torch.cat([onset.detach(), offset.detach(), activation], dim=-1)))
        return {"onset": onset, "offset": offset, "frame": frame, "velocity": self.velocities[1](stack(self.velocities[0], mel))}

    def forward(self, mel: Tensor) -> dict[str, Tensor]:
        if self.compiled:
            return self.forward_in_parts(mel)
        onset, offset, activation = self.onsets(mel), self.offsets(mel), self.frames(mel)
        frame = self.combined(torch.cat([onset.detach(), offset.detach(), activation], dim=-1))
        return {"onset": onset, "offset": offset, "frame": frame, "velocity": self.velocities(mel)}


def velocity_loss(predicted: Tensor, velocity: Tensor, onset: Tensor) -> Tensor:
    """Squared error at onsets only."""
    count = onset.sum()
    if count == 0:
        return count
    return (onset * (velocity - predicted) ** 2).sum() / count


def head(linear: nn.Module, x: Tensor) -> Tensor:
    return torch.sigmoid(linear(x))


def velocity_loss_on_device(predicted: Tensor, velocity: Tensor, onset: Tensor) -> Tensor:
    """The same without a question to the host: without onsets the sum is 0."""
    return (onset * (velocity - predicted) ** 2).sum() / onset.sum().clamp(min=1.0)


class Late:
    """Numbers of a step on their way to the host, where they are read one step later (those of the first step at once)."""

    def __init__(self, s: Setup, count: int) -> None:
        self.buffers = [s.pin(torch.zeros(count)) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
        self.turn = 0

    def swap(self, values: list[Tensor]) -> list[float]:
        now = self.turn % 2
        self.buffers[now].copy_(torch.stack(values), non_blocking=True)
        if self.events:
            self.events[now].record()
        read = 1 - now if self.turn else now
        if self.events:
            self.events[read].synchronize()
        self.turn += 1
        return self.buffers[read].tolist()


def ahead(loader: DataLoader, depth: int = 4) -> Iterator[dict[str, Tensor]]:
    """Batches, pinned and all, from a thread that stays up to `depth` of them ahead, over the ends of epochs too."""
    ready: queue.Queue[dict[str, Tensor] | BaseException] = queue.Queue(depth)

    def work() -> None:
        try:
            for batch in cycle(loader):
                ready.put(batch)
        except BaseException as error:
            ready.put(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        batch = ready.get()
        if isinstance(batch, BaseException):
            raise batch
        yield batch


def cycle(loader: DataLoader) -> Iterator[dict[str, Tensor]]:
    while True:
        yield from loader


def piano_transcription(s: Setup, *, late: bool = False, channels_last: bool = False, launch: bool = False, workers: bool = False) -> Step:
    torch.manual_seed(31)
    recordings = Recordings(s.size(24, 4), s.size(30, 4), s.size(90, 8), s.size(400, 40), seed=31)
    loader = DataLoader(recordings, s.size(8, 2), shuffle=True, drop_last=True, pin_memory=s.cuda, generator=torch.Generator().manual_seed(31) if workers else None)
    batches = ahead(loader) if workers else cycle(loader)
    spectrogram = MelSpectrogram().to(s.device)
    model = OnsetsAndFrames(s.size(48, 4)).to(s.device)
    if channels_last:
        model.channels_last()
    if launch:
        model.compile_parts(s)
    more: dict[str, Any] = {"fused": True} if launch else {}
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-4, **more)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10_000, gamma=0.98)
    log: list[dict[str, float]] = []
    logged, losses_of_velocity = Late(s, 5), velocity_loss_on_device if late else velocity_loss

    def step() -> dict[str, float]:
        batch = {name: value.to(s.device, non_blocking=True) for name, value in next(batches).items()}
        model.train()
        mel = spectrogram(batch["audio"])
        predicted = model(mel)
        losses = {name: F.binary_cross_entropy(predicted[name], batch[name]) for name in ("onset", "offset", "frame")}
        losses["velocity"] = losses_of_velocity(predicted["velocity"], batch["velocity"], batch["onset"])
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        schedule.step()
        if late:
            log.append(dict(zip(("loss", *losses), logged.swap([loss.detach(), *(value.detach() for value in losses.values())]), strict=False)))
            return log[-1]
        log.append({"loss": loss.item(), **{name: value.item() for name, value in losses.items()}})
        return log[-1]

    return step
