"""DDSP in training: a network turns pitch and loudness of a viola into a bank of sines, filtered noise and a room.

The recordings, their pitch (CREPE) and their loudness were worked out beforehand; a step takes random excerpts of them.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..base import Setup, Step, capture

RATE = 16000
HOP = 160
SCALES = (2048, 1024, 512, 256, 128, 64)


def record(rng: np.random.Generator, seconds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A made-up recording: int16 samples, and pitch in Hz and loudness in dB for each frame."""
    frames = seconds * RATE // HOP
    notes = rng.integers(48, 84, frames // 40 + 1)
    midi = np.repeat(notes, 40)[:frames] + 0.2 * np.sin(np.arange(frames) * 2 * np.pi * 5.5 * HOP / RATE)
    pitch = (440 * 2 ** ((midi - 69) / 12)).astype(np.float32)
    bow = np.abs(np.sin(np.arange(frames) * np.pi / 40)) ** 0.5 * rng.uniform(0.4, 1, frames // 40 + 1).repeat(40)[:frames]
    phase = np.cumsum(2 * np.pi * np.repeat(pitch, HOP) / RATE)
    wave = sum(np.sin(k * phase) / k**1.3 for k in range(1, 6)) * np.repeat(bow, HOP) * 0.25
    wave += rng.normal(0, 0.003, wave.shape)
    loudness = 20 * np.log10(bow * 0.2 + 1e-4)
    return (wave * 32767).clip(-32768, 32767).astype(np.int16), pitch, loudness.astype(np.float32)


class Recordings(torch.utils.data.Dataset):
    def __init__(self, count: int, seconds: int, frames: int) -> None:
        rng = np.random.default_rng(12)
        self.recordings = [record(rng, seconds) for _ in range(count)]
        self.frames = frames
        loud = np.concatenate([r[2] for r in self.recordings])
        self.mean, self.std = loud.mean(), loud.std()

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        index, start = place
        wave, pitch, loudness = self.recordings[index]
        part = slice(start, start + self.frames)
        wave = wave[start * HOP : (start + self.frames) * HOP].astype(np.float32) / 32768
        loudness = (loudness[part] - self.mean) / self.std
        return torch.from_numpy(wave), torch.from_numpy(pitch[part])[:, None], torch.from_numpy(loudness)[:, None]


def mlp(inputs: int, hidden: int, layers: int) -> nn.Sequential:
    widths = [inputs] + [hidden] * layers
    parts = []
    for a, b in itertools.pairwise(widths):
        parts += [nn.Linear(a, b), nn.LayerNorm(b), nn.LeakyReLU()]
    return nn.Sequential(*parts)


def scale_function(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(x) ** math.log(10) + 1e-7


def upsample(x: Tensor, factor: int, enlarge: Callable[..., Tensor] = F.interpolate) -> Tensor:
    """From frames to samples, [batch, frames, channels]."""
    x = enlarge(x.permute(0, 2, 1), scale_factor=factor, mode="linear")
    return x.permute(0, 2, 1)


def fft_convolve(signal: Tensor, kernel: Tensor) -> Tensor:
    length = signal.shape[-1]
    signal = F.pad(signal, (0, length))
    kernel = F.pad(kernel, (0, signal.shape[-1] - kernel.shape[-1]))
    return torch.fft.irfft(torch.fft.rfft(signal) * torch.fft.rfft(kernel), n=signal.shape[-1])[..., :length]


def harmonic_synth(pitch: Tensor, amplitudes: Tensor) -> Tensor:
    number = torch.arange(1, amplitudes.shape[-1] + 1, device=pitch.device)
    phase = torch.cumsum(2 * math.pi * pitch / RATE, dim=1)
    return (torch.sin(phase * number) * amplitudes).sum(-1)


def noise_synth(bands: Tensor) -> Tensor:
    """White noise, filtered frame by frame by impulse responses that come from the bands' magnitudes."""
    impulse = torch.fft.irfft(torch.complex(bands, torch.zeros_like(bands)))
    size = impulse.shape[-1]
    impulse = torch.roll(impulse, size // 2, -1) * torch.hann_window(size, device=bands.device)
    impulse = torch.roll(F.pad(impulse, (0, HOP - size)), -size // 2, -1)
    noise = torch.rand(*impulse.shape, device=bands.device) * 2 - 1
    return fft_convolve(noise, impulse).reshape(bands.shape[0], -1)


class Room(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.rand(length) * 2 - 1)
        self.decay = nn.Parameter(torch.tensor(5.0))
        self.wet = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("time", torch.arange(length) / RATE)

    def forward(self, x: Tensor) -> Tensor:
        impulse = self.noise * torch.exp(-F.softplus(-self.decay) * self.time * 500) * torch.sigmoid(self.wet)
        impulse = torch.cat([torch.ones(1, device=x.device), impulse[1:]])
        return fft_convolve(x, impulse)


class Viola(nn.Module):
    def __init__(self, hidden: int, harmonics: int, bands: int, room: int) -> None:
        super().__init__()
        self.pitch_mlp, self.loud_mlp = mlp(1, hidden, 3), mlp(1, hidden, 3)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.out_mlp = mlp(hidden + 2, hidden, 3)
        self.harmonics, self.noise = nn.Linear(hidden, harmonics + 1), nn.Linear(hidden, bands)
        self.room = Room(room)
        self.enlarge = F.interpolate

    def forward(self, pitch: Tensor, loudness: Tensor) -> Tensor:
        x = torch.cat([self.pitch_mlp(torch.log2(pitch / 440)), self.loud_mlp(loudness)], dim=-1)
        x = self.out_mlp(torch.cat([self.gru(x)[0], torch.log2(pitch / 440), loudness], dim=-1))

        param = scale_function(self.harmonics(x))
        total, amplitudes = param[..., :1], param[..., 1:]
        number = torch.arange(1, amplitudes.shape[-1] + 1, device=pitch.device)
        amplitudes = amplitudes * ((pitch * number < RATE / 2).float() + 1e-4)
        amplitudes = amplitudes / amplitudes.sum(-1, keepdim=True) * total
        tone = harmonic_synth(upsample(pitch, HOP, self.enlarge), upsample(amplitudes, HOP, self.enlarge))

        return self.room(tone + noise_synth(scale_function(self.noise(x) - 5)))


def multiscale_stft(signal: Tensor) -> list[Tensor]:
    spectra = []
    for scale in SCALES:
        window = torch.hann_window(scale, device=signal.device)
        spectra.append(torch.stft(signal, scale, scale // 4, scale, window, normalized=True, return_complex=True).abs())
    return spectra


def distance(wave: Tensor, made: Tensor) -> Tensor:
    loss = 0
    for real, fake in zip(multiscale_stft(wave), multiscale_stft(made), strict=False):
        linear = (real - fake).abs().mean()
        log = (torch.log(real + 1e-5) - torch.log(fake + 1e-5)).abs().mean()
        loss = loss + linear + log
    return loss


def viola_timbre(s: Setup, *, graphed: bool = False, compiled: bool = False, late: bool = False, enlarged: bool = False) -> Step:
    batch, frames = s.size(24, 2), s.size(200, 26)
    data = Recordings(s.size(8, 1), s.size(60, 2), frames)
    model = Viola(s.size(512, 16), s.size(100, 8), s.size(65, 17), s.size(RATE, 400)).to(s.device).train()
    if enlarged:
        model.enlarge = s.compile(F.interpolate)
    if graphed:
        model = s.compile(model)
        # the rate is a tensor, so that the scheduler changes what the graph reads
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(3e-4, device=s.device), fused=True, capturable=s.cuda)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    rng = np.random.default_rng(5)
    last = len(data.recordings[0][1]) - frames
    state = {"step": 0, "mean_loss": 0.0}

    def objective(wave: Tensor, pitch: Tensor, loudness: Tensor) -> Tensor:
        return distance(wave, model(pitch, loudness))

    if compiled:
        objective = s.compile(objective)

    def update(wave: Tensor, pitch: Tensor, loudness: Tensor) -> Tensor:
        loss = objective(wave, pitch, loudness)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    kept: dict[str, object] = {}

    def replay(*batch: Tensor) -> Tensor:
        """The same update as one CUDA graph, from copies of the batch that stay where they are."""
        if not kept:
            kept["batch"] = [part.clone() for part in batch]
            before = copy.deepcopy(model.state_dict())

            def whole() -> None:
                kept["loss"] = update(*kept["batch"])

            kept["update"] = capture(whole, s)
            if s.cuda:  # undo the steps that warmed up
                model.load_state_dict(before)
                for values in optimizer.state.values():
                    for value in values.values():
                        value.zero_()
        for to, part in zip(kept["batch"], batch, strict=False):
            to.copy_(part)
        kept["update"]()
        return kept["loss"].clone()

    def step() -> dict[str, object]:
        places = [(int(rng.integers(len(data.recordings))), int(rng.integers(last))) for _ in range(batch)]
        wave, pitch, loudness = torch.utils.data.default_collate([data[place] for place in places])
        wave, pitch, loudness = wave.to(s.device), pitch.to(s.device), loudness.to(s.device)

        loss = (replay if graphed else update)(wave, pitch, loudness)
        scheduler.step()
        state["step"] += 1
        value = loss if late else loss.item()
        state["mean_loss"] = state["mean_loss"] + (value - state["mean_loss"]) / state["step"]
        return {"loss": loss, "mean_loss": state["mean_loss"], "decay": model.room.decay.detach().clone()}

    return step
