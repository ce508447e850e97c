"""precision"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def wgan_penalty(s: Setup, *, autocast: bool = False, last: bool = False, fused: bool = False) -> Step:
    c, batch, noise = s.size(128, 4), s.size(192, 2), s.size(128, 4)
    up: list[nn.Module] = [nn.ConvTranspose2d(noise, 8 * c, 4), nn.BatchNorm2d(8 * c), nn.ReLU()]
    down: list[nn.Module] = [nn.Conv2d(3, c, 4, 2, 1), nn.LeakyReLU(0.2)]
    for k in (1, 2, 4):
        up += [nn.ConvTranspose2d(16 * c // (2 * k), 8 * c // (2 * k), 4, 2, 1), nn.BatchNorm2d(8 * c // (2 * k)), nn.ReLU()]
        down += [nn.Conv2d(k * c, 2 * k * c, 4, 2, 1), nn.LeakyReLU(0.2)]
    layout = torch.channels_last if last else torch.contiguous_format
    painter = nn.Sequential(*up, nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh()).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    critic = nn.Sequential(*down, nn.Conv2d(8 * c, 1, 4)).to(s.device, memory_format=layout)  # type: ignore[call-overload]
    paints, judges = (torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.0, 0.9), fused=fused or None) for net in (painter, critic))
    real = torch.rand(batch, 3, 64, 64, device=s.device).to(memory_format=layout)

    def step() -> None:
        amp = partial(torch.autocast, s.device.type, BF16, enabled=autocast)
        judges.zero_grad()
        with amp():
            with torch.no_grad():
                fake = painter(torch.randn(batch, noise, 1, 1, device=s.device)).float()
            gap = critic(fake).float().mean() - critic(real).float().mean()
            share = torch.rand(batch, 1, 1, 1, device=s.device)
            between = (share * real + (1.0 - share) * fake).requires_grad_()
            score = critic(between).float().sum()
        slope = torch.autograd.grad(score, between, create_graph=True)[0]
        (gap + 10.0 * (slope.flatten(1).norm(2, 1) - 1.0).square().mean()).backward()
        judges.step()
        paints.zero_grad()
        with amp():
            loss = -critic(painter(torch.randn(batch, noise, 1, 1, device=s.device))).float().mean()
        loss.backward()
        paints.step()

    return step


PROGRAM = written_pair(
    "wgan_penalty",
    "precision",
    "A Wasserstein GAN with gradient penalty on 192 pictures of 64 x 64, FP32 convolutions that take TF32, NCHW.",
    "bf16 autocast",
    wgan_penalty,
    {"autocast": True},
    alone={"memory-layout": {"last": True}, "optimizer-foreach": {"fused": True}},
    gpu_bound=True,
)
