"""memcpy"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step, written_pair


def _detected(power: Tensor) -> Tensor:
    """How many of three widths see each cell above its surroundings."""
    level = 10.0 * torch.log10(power + 1e-9)
    hits = torch.zeros_like(level)
    for guard, ring, offset in ((2, 8, 9.0), (4, 16, 8.0), (8, 32, 7.0)):
        near = (torch.roll(power, guard, -1) + torch.roll(power, -guard, -1)) * 0.5
        far = (torch.roll(power, ring, -1) + torch.roll(power, -ring, -1)) * 0.5
        ground = 10.0 * torch.log10(torch.minimum(near, far).clamp(min=1e-9))
        hits = hits + torch.sigmoid(4.0 * (level - ground - offset))
    return hits / 3.0


def radar_pulses(s: Setup, *, ahead: bool = False, compiled: bool = False, moved: bool = True) -> Step:
    antennas, pulses, samples = s.size(16, 2), s.size(192, 8), s.size(2048, 16)
    host = [torch.randint(-2048, 2048, (2, antennas, pulses, samples, 2), dtype=torch.int16) for _ in range(2)]
    prefetcher = Prefetcher([(s.pin(frame),) for frame in host], s) if ahead else None
    fast, slow = (torch.hann_window(length, device=s.device) for length in (samples, pulses))
    detected, turn = s.compile(_detected) if compiled else _detected, [0]

    @torch.no_grad()
    def step() -> Tensor:
        if prefetcher:
            (raw,) = prefetcher.next()
        else:
            turn[0] += 1
            raw = host[turn[0] % 2].to(s.device)
        echo = torch.view_as_complex(raw.float() / 2048)
        spectrum = torch.fft.fft(echo * fast, 2 * samples)
        if moved:
            turned = spectrum.transpose(-1, -2).contiguous()
            spectrum = torch.fft.fftshift(torch.fft.fft(turned * slow), -1).transpose(-1, -2).contiguous()
        else:
            spectrum = torch.fft.fftshift(torch.fft.fft(spectrum * slow[:, None], dim=-2), -2)
        return detected(spectrum.real**2 + spectrum.imag**2).sum(1)

    return step


PROGRAM = written_pair(
    "radar_pulses",
    "memcpy",
    "Range and speed from 2 x 16 antennas' pulses, int16 in pageable memory; pulses are turned to the last axis and back.",
    "pinned memory, the next frame copied ahead",
    radar_pulses,
    {"ahead": True},
    alone={"unfused-elementwise": {"compiled": True}, "memory-layout": {"moved": False}},
)
