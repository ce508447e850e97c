"""precision"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def image_vae(s: Setup, *, autocast: bool = False, last: bool = False, log: bool = True) -> Step:
    width, side = s.size(128, 4), s.size(64, 8)
    layout = torch.channels_last if last else torch.contiguous_format

    def block(inner: int, outer: int, up: bool) -> list[nn.Module]:
        conv: nn.Module = nn.ConvTranspose2d(inner, outer, 4, 2, 1) if up else nn.Conv2d(inner, outer, 4, 2, 1)
        return [conv, nn.BatchNorm2d(outer), nn.LeakyReLU(0.2), nn.Conv2d(outer, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2)]

    encode = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *block(width, 2 * width, False), *block(2 * width, 4 * width, False))
    decode = nn.Sequential(*block(2 * width, 2 * width, True), *block(2 * width, width, True), nn.Conv2d(width, 3, 3, padding=1))
    model = nn.ModuleList([encode, decode]).to(s.device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = torch.rand(s.size(128, 2), 3, side, side, device=s.device).to(memory_format=layout)
    logged: dict[str, float] = {}

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            mean, log_var = encode(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
            again = decode(z)
        rebuilt = F.mse_loss(again.float(), x)
        divergence = -0.5 * (1 + log_var.float() - mean.float().square() - log_var.float().exp()).mean()
        loss = rebuilt + 1e-2 * divergence
        loss.backward()
        optimizer.step()
        if log:
            logged.update(loss=loss.item(), rebuilt=rebuilt.item(), divergence=divergence.item())

    return step


PROGRAM = written_pair(
    "image_vae",
    "precision",
    "Training of a convolutional VAE in FP32; three losses are read in each step.",
    "bf16 autocast",
    image_vae,
    {"autocast": True},
    alone={"memory-layout": {"last": True}, "sync-stall": {"log": False}},
    gpu_bound=True,
)
