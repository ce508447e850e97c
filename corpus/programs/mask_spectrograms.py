"""sync-stall"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def mask_spectrograms(s: Setup, *, masks: str = "items", autocast: bool = False) -> Step:
    clips, length, width = s.size(48, 2), s.size(32000, 2000), s.size(48, 4)
    waves, labels = torch.randn(clips, length, device=s.device), torch.randint(35, (clips,), device=s.device)
    window, bank = torch.hann_window(400, device=s.device), torch.rand(201, 80, device=s.device)
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(s.size(3, 1)):
        layers += [nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 35)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    dice = random.Random(0)

    def masked(mel: Tensor) -> Tensor:
        if masks == "together":
            first = torch.randint(60, (clips, 1), device=s.device)
            band = torch.arange(80, device=s.device)
            hidden = (band >= first) & (band < first + torch.randint(1, 16, (clips, 1), device=s.device))
            return mel.masked_fill(hidden[:, :, None], 0.0)
        for i in range(clips):
            if masks == "items":
                first, many = int(torch.randint(60, (1,), device=s.device).item()), int(torch.randint(1, 16, (1,), device=s.device).item())
            else:
                first, many = dice.randrange(60), dice.randrange(1, 16)
            mel[i, first : first + many] = 0.0
        return mel

    def step() -> None:
        optimizer.zero_grad()
        spectrum = torch.stft(waves, 400, 160, window=window, return_complex=True).abs().square()
        mel = torch.log(bank.T @ spectrum + 1e-6)
        mel = masked(mel)[:, None]
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.cross_entropy(model(mel), labels)
        loss.backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "mask_spectrograms",
    "sync-stall",
    "Spectrograms masked clip by clip, where .item() reads each random number from the GPU.",
    "draw on the host",
    mask_spectrograms,
    {"masks": "host"},
    alone={"launch-gap": {"masks": "together"}, "precision": {"autocast": True}},
    top=("sync-stall", "launch-gap"),
    with_stack=True,
)
