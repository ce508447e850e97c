"""DiffWave makes a clip of one second in six steps, FP32 with TF32 convolutions: noise drawn on the host, each step asked for NaN."""

from __future__ import annotations

import math
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class DiffusionEmbedding(nn.Module):
    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        angle = torch.arange(steps)[:, None] * 10.0 ** (torch.arange(64)[None] * 4.0 / 63.0)
        self.register_buffer("embedding", torch.cat([torch.sin(angle), torch.cos(angle)], dim=1), persistent=False)
        self.projection1, self.projection2 = nn.Linear(128, width), nn.Linear(width, width)

    def forward(self, t: Tensor) -> Tensor:
        low, high = torch.floor(t).long(), torch.ceil(t).long()
        x = self.embedding[low] + (self.embedding[high] - self.embedding[low]) * (t - low)[:, None]
        return F.silu(self.projection2(F.silu(self.projection1(x))))


class SpectrogramUpsampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(1, 1, (3, 32), stride=(1, 16), padding=(1, 8))
        self.conv2 = nn.ConvTranspose2d(1, 1, (3, 32), stride=(1, 16), padding=(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(x[:, None]), 0.4)
        return F.leaky_relu(self.conv2(x), 0.4)[:, 0]


class GatedBlock(nn.Module):
    def __init__(self, mels: int, channels: int, dilation: int, width: int) -> None:
        super().__init__()
        self.dilated_conv = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)
        self.diffusion_projection = nn.Linear(width, channels)
        self.conditioner_projection = nn.Conv1d(mels, 2 * channels, 1)
        self.output_projection = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, x: Tensor, conditioner: Tensor, diffusion_step: Tensor) -> tuple[Tensor, Tensor]:
        y = x + self.diffusion_projection(diffusion_step).unsqueeze(-1)
        y = self.dilated_conv(y) + self.conditioner_projection(conditioner)
        gate, filtered = torch.chunk(y, 2, dim=1)
        y = torch.sigmoid(gate) * torch.tanh(filtered)
        residual, skip = torch.chunk(self.output_projection(y), 2, dim=1)
        return (x + residual) / math.sqrt(2.0), skip


class DiffWave(nn.Module):
    def __init__(self, mels: int, channels: int, layers: int, cycle: int, steps: int, width: int) -> None:
        super().__init__()
        self.input_projection, self.diffusion_embedding = nn.Conv1d(1, channels, 1), DiffusionEmbedding(steps, width)
        self.upsampler = SpectrogramUpsampler()
        self.residual_layers = nn.ModuleList(GatedBlock(mels, channels, 2 ** (n % cycle), width) for n in range(layers))
        self.skip_projection, self.output_projection = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, 1, 1)

    def forward(self, audio: Tensor, t: Tensor, spectrogram: Tensor) -> Tensor:
        x = F.relu(self.input_projection(audio[:, None]))
        diffusion_step, spectrogram = self.diffusion_embedding(t), self.upsampler(spectrogram)
        skip = None
        for layer in self.residual_layers:
            x, connection = layer(x, spectrogram, diffusion_step)
            skip = connection if skip is None else skip + connection
        x = F.relu(self.skip_projection(skip / math.sqrt(len(self.residual_layers))))
        return self.output_projection(x)[:, 0].float()


def carillon_waves(
    s: Setup,
    *,
    clips: int = 1,
    compiled: bool = False,
    graphed: bool = False,
    autocast: bool = False,
    asked: bool = True,
    made: bool = False,
) -> Step:
    """DiffWave makes one clip of 22,016 samples in six steps, FP32 with TF32 convolutions: noise and moments come from the host, each step is asked for NaN."""
    mels, frames, steps = s.size(80, 6), s.size(86, 2), 50
    length = 256 * frames
    rng = np.random.default_rng(332)
    scores = [torch.from_numpy(rng.random((clips, mels, frames), dtype=np.float32)) for _ in range(8)]
    with s.device:
        model = DiffWave(mels, s.size(64, 8), s.size(16, 2), s.size(8, 2), steps, s.size(512, 16)).eval()
        score, sounded = torch.zeros(clips, mels, frames), torch.zeros(clips, length)
    network = s.compile(model, dynamic=False) if compiled else model
    training = np.linspace(1e-4, 0.05, steps)
    fast = np.array([0.0001, 0.001, 0.01, 0.05, 0.2, 0.5])
    kept, alpha = np.cumprod(1.0 - training), np.cumprod(1.0 - fast)
    moments: list[float] = []
    for level in alpha:
        after = int(np.searchsorted(-(kept**0.5), -(level**0.5)).clip(1, steps - 1))
        share = (kept[after - 1] ** 0.5 - level**0.5) / (kept[after - 1] ** 0.5 - kept[after] ** 0.5)
        moments.append(float(np.clip(after - 1 + share, 0.0, steps - 1.0)))
    on_device = made or graphed
    known = [torch.tensor([t], dtype=torch.float32, device=s.device) for t in moments] if on_device else []
    seeded, turn = torch.Generator().manual_seed(332), counter()

    def noise() -> Tensor:
        if on_device:
            return torch.randn(clips, length, device=s.device)
        return torch.randn(clips, length, generator=seeded).to(s.device)

    def denoise(mel: Tensor) -> Tensor:
        audio = noise()
        for n in range(len(fast) - 1, -1, -1):
            c1, c2 = 1.0 / (1.0 - fast[n]) ** 0.5, fast[n] / (1.0 - alpha[n]) ** 0.5
            t = known[n] if on_device else torch.tensor([moments[n]], dtype=torch.float32).to(s.device)
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                guess = network(audio, t, mel)
            audio = float(c1) * (audio - float(c2) * guess)
            if n > 0:
                sigma = ((1.0 - alpha[n - 1]) / (1.0 - alpha[n]) * fast[n]) ** 0.5
                audio = audio + float(sigma) * noise()
            audio = torch.clamp(audio, -1.0, 1.0)
            if asked and not graphed and torch.isnan(audio).any():
                raise FloatingPointError("a step gave no sound")
        return audio

    def static() -> None:
        sounded.copy_(denoise(score))

    torch.set_float32_matmul_precision("high")
    with torch.no_grad():
        work = capture(static, s) if graphed else None

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("high")
        host = scores[next(turn) % len(scores)]
        if work is not None:
            score.copy_(host)
            work()
            audio = sounded
        else:
            audio = denoise(host.to(s.device))
        if asked:
            peak = audio.abs().max().item()
            return (audio / max(peak, 1e-5)).cpu().numpy()
        heard = (audio / audio.abs().max().clamp(min=1e-5)).cpu().numpy()
        if np.isnan(heard).any():
            raise FloatingPointError("a step gave no sound")
        return heard

    return step


PROGRAM = written(
    "carillon_waves",
    "DiffWave makes a clip of one second in six steps, FP32 with TF32 convolutions: noise drawn on the host, each step asked for NaN.",
    "torch.compile of the network; CUDA graph of the six steps; bf16 autocast; nothing asked between; noise made on the GPU; eight clips at once",
    carillon_waves,
    {
        "unfused-elementwise": {"compiled": True},
        "graph-candidate": {"graphed": True},
        "precision": {"autocast": True},
        "sync-stall": {"asked": False},
        "memcpy": {"made": True},
        "low-arithmetic-intensity": {"clips": 8},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
