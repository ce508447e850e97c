"""Requests whose tensors are prepared by the CPU before the GPU sees them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .base import Setup, Step, Workload


def resized(s: Setup, on_gpu: bool = False) -> Step:
    width, count, side = s.size(64, 4), s.size(8, 2), s.size(224, 8)
    with s.device:
        model = nn.Sequential(nn.Conv2d(3, width, 7, 4, 3), nn.ReLU(), *(layer for _ in range(s.size(12, 1)) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).half().eval()
        mean, scale = torch.tensor([0.48, 0.45, 0.41], dtype=torch.half).view(3, 1, 1), torch.tensor([0.23, 0.22, 0.22], dtype=torch.half).view(3, 1, 1)
    raw = s.pin(torch.randint(256, (count, 3, s.size(720, 16), s.size(1280, 16)), dtype=torch.uint8))
    cpu_mean, cpu_scale = mean.float().cpu(), scale.float().cpu()

    @torch.inference_mode()
    def step() -> None:
        if on_gpu:
            images = raw.to(s.device, non_blocking=True).float() / 255
            images = (F.interpolate(images, size=(side, side), mode="bilinear", antialias=True).half() - mean) / scale
        else:
            images = raw.float() / 255
            images = ((F.interpolate(images, size=(side, side), mode="bilinear", antialias=True) - cpu_mean) / cpu_scale).half().to(s.device)
        model(images).argmax(1).cpu()

    return step


def spectrogram(s: Setup, on_gpu: bool = False) -> Step:
    width, length = s.size(256, 8), s.size(16000 * 30, 1600)
    with s.device:
        model = nn.Sequential(nn.Conv1d(80, width, 3, padding=1), nn.GELU(), *(layer for _ in range(s.size(10, 1)) for layer in (nn.Conv1d(width, width, 3, padding=1), nn.GELU())), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 30)).half().eval()
    waves = s.pin(torch.randn(s.size(4, 2), length))
    where = s.device if on_gpu else torch.device("cpu")
    window, filters = torch.hann_window(400, device=where), torch.rand(80, 201, device=where)

    @torch.inference_mode()
    def step() -> None:
        wave = waves.to(where, non_blocking=True)
        power = torch.stft(wave, 400, 160, window=window, return_complex=True).abs().square()
        features = (filters @ power).clamp(min=1e-10).log10()
        features = (torch.maximum(features, features.amax((1, 2), keepdim=True) - 8) + 4) / 4
        model(features.half().to(s.device)).argmax(1).cpu()

    return step


WORKLOADS = (
    Workload("resized", "host-bound", "requests of eight images of 720p, resized and normalised by the CPU", "resize and normalise on the GPU", lambda s: resized(s, True), lambda s: resized(s), fixed_quiet=False),
    Workload("spectrogram", "host-bound", "requests of audio whose spectrogram the CPU makes", "make it on the GPU", lambda s: spectrogram(s, True), lambda s: spectrogram(s), fixed_quiet=False),
)
