"""A minute of a detector's strain against 128 chirps, one after another, by FFT; each peak is read at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step, written


def _chirps(count: int, bins: int, device: torch.device) -> Tensor:
    """Each of length one; a heavier pair of stars sweeps faster."""
    f = torch.linspace(0.0, 1.0, bins, device=device).clamp(min=0.01)
    mass = torch.linspace(1.0, 6.0, count, device=device)[:, None]
    chirps = torch.polar((f ** (-7.0 / 6.0)).expand(count, -1).contiguous(), 40.0 * (mass * f) ** (-5.0 / 3.0) - 9.0 * mass * f)
    return chirps / torch.linalg.vector_norm(chirps, dim=-1, keepdim=True)


def _whitened(strain: Tensor, piece: int) -> Tensor:
    """The strain by frequency, over what the detector's noise is there (Welch's method)."""
    window = torch.hann_window(piece, device=strain.device)
    power = torch.fft.rfft(strain.unfold(0, piece, piece // 2) * window).abs().square().mean(0) / window.square().sum()
    power = F.interpolate(power[None, None], size=len(strain) // 2 + 1, mode="linear", align_corners=True)[0, 0]
    return torch.fft.rfft(strain) / torch.sqrt(power * len(strain))


def _loudness(data: Tensor, chirp: Tensor) -> Tensor:
    """How loud a chirp is, if it ended at each moment."""
    product = data * chirp.conj()
    length = 2 * (data.shape[-1] - 1)
    return math.sqrt(2.0) * length * torch.fft.ifft(F.pad(product, (0, length - product.shape[-1]))).abs()


def _unlike(data: Tensor, chirp: Tensor, moment: int, bands: int = 16) -> float:
    """Whether each band of frequencies has its share of it (chi squared)."""
    product = data * chirp.conj()
    angle = 2.0 * math.pi * moment * torch.arange(len(product), device=data.device) / (2 * (len(product) - 1))
    shares = torch.stack([part.sum() for part in (product * torch.polar(torch.ones_like(angle), angle)).tensor_split(bands)]).abs()
    return float((bands * (shares - shares.mean()).square().sum()).item())


def chirp_bank(s: Setup, *, at_end: bool = False, together: int = 1, pinned: bool = False) -> Step:
    length, count, threshold = s.size(262_144, 256), s.size(128, 4), 5.5
    together = min(together, count)
    chirps = _chirps(count, length // 2 + 1, s.device)
    minutes = [torch.randn(length) for _ in range(4)]
    if pinned:
        minutes = [s.pin(minute) for minute in minutes]
    turn = [0]

    @torch.no_grad()
    def step() -> list[tuple[int, int, float, float]]:
        turn[0] += 1
        data = _whitened(minutes[turn[0] % 4].to(s.device, non_blocking=pinned), s.size(16_384, 32))
        found, waiting = list[tuple[int, int, float, float]](), list[Tensor]()
        for first in range(0, count, together):
            peak, moment = _loudness(data, chirps[first] if together == 1 else chirps[first : first + together]).max(-1)
            if at_end:
                waiting.append(torch.stack([peak, moment.to(peak.dtype)]))
                continue
            if together == 1:
                if peak.item() > threshold:
                    found.append((first, int(moment.item()), peak.item(), _unlike(data, chirps[first], int(moment.item()))))
                continue
            for n, (loud, when) in enumerate(zip(peak.tolist(), moment.tolist(), strict=True)):
                if loud > threshold:
                    found.append((first + n, when, loud, _unlike(data, chirps[first + n], when)))
        if waiting:
            for n, (loud, when) in enumerate(torch.stack(waiting).tolist()):
                if loud > threshold:
                    found.append((n, int(when), loud, _unlike(data, chirps[n], int(when))))
        return found

    return step


PROGRAM = written(
    "chirp_bank",
    "A minute of a detector's strain against 128 chirps, one after another, by FFT; each peak is read at once.",
    "peaks are read when all are known; 32 chirps in one call; pinned memory and non_blocking",
    chirp_bank,
    {"sync-stall": {"at_end": True}, "small-grid": {"together": 32}, "memcpy": {"pinned": True}},
)
