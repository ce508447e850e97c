"""HiFi-GAN's generator on 48 frames a call, FP32 with TF32 convolutions, its weights normed in each call."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


class Echo(nn.Module):
    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.far = nn.ModuleList(weight_norm(nn.Conv1d(width, width, taps, dilation=d, padding=taps // 2 * d)) for d in (1, 3, 5))
        self.near = nn.ModuleList(weight_norm(nn.Conv1d(width, width, taps, padding=taps // 2)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for far, near in zip(self.far, self.near, strict=True):
            x = x + near(F.leaky_relu(far(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Voice(nn.Module):
    """HiFi-GAN's generator."""

    def __init__(self, width: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.enter = weight_norm(nn.Conv1d(80, width, 7, padding=3))
        wide = [width // 2**level for level in range(len(rates) + 1)]
        self.up = nn.ModuleList(weight_norm(nn.ConvTranspose1d(wide[n], wide[n + 1], 2 * rate, rate, rate // 2)) for n, rate in enumerate(rates))
        self.echoes = nn.ModuleList(nn.ModuleList(Echo(each, taps) for taps in (3, 7, 11)) for each in wide[1:])
        self.last = weight_norm(nn.Conv1d(wide[-1], 1, 7, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for up, echoes in zip(self.up, self.echoes, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = torch.stack([echo(x) for echo in echoes]).mean(0)
        return torch.tanh(self.last(F.leaky_relu(x)))


def voice_service(s: Setup, *, compiled: bool = False, autocast: bool = False, baked: bool = False, callers: int = 1) -> Step:
    """The checkpoint is that of training, with its norms of weights; what is said goes out as int16."""
    model = Voice(s.size(512, 16), (8, 8, 2, 2) if not s.tiny else (2, 2)).to(s.device).eval()
    if baked:
        for part in model.modules():
            if isinstance(part, (nn.Conv1d, nn.ConvTranspose1d)):
                remove_parametrizations(part, "weight")
    speak = s.compile(model, mode="reduce-overhead") if compiled else model
    wanted = [torch.randn(callers, 80, s.size(48, 4)) for _ in range(4)]
    turn = [0]

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("highest")
        turn[0] += 1
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            sound = speak(wanted[turn[0] % 4].to(s.device))
        return (sound.float() * 32767).to(torch.int16).cpu().numpy()

    return step


PROGRAM = written(
    "voice_service",
    "HiFi-GAN's generator on 48 frames a call, FP32 with TF32 convolutions, its weights normed in each call.",
    "torch.compile(mode='reduce-overhead'); bf16 autocast; norms of weights taken once; four callers together",
    voice_service,
    {"launch-gap": {"compiled": True}, "precision": {"autocast": True}, "host-bound": {"baked": True}, "low-arithmetic-intensity": {"callers": 4}},
    shared={"low-arithmetic-intensity": 4.0},
)
