"""memory-layout"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair
from workloads.public import BF16


class TileCodes(nn.Module):
    def __init__(self, width: int, codes: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 4, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1), nn.SiLU(),
            nn.Conv2d(width, dim, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, width, 3, 1, 1), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1), nn.SiLU(), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip
        self.codes = nn.Parameter(torch.randn(codes, dim))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat = z.flatten(0, 2).float()
        far = flat.square().sum(1, keepdim=True) - 2 * flat @ self.codes.T + self.codes.square().sum(1)
        hot = F.one_hot(far.argmin(1), len(self.codes)).float()
        chosen = (hot @ self.codes).view(z.shape)
        loss = F.mse_loss(chosen, z.detach().float()) + 0.25 * F.mse_loss(z.float(), chosen.detach())
        used = hot.mean(0)
        passed = (z + (chosen - z).detach()).permute(0, 3, 1, 2)
        return self.decoder(passed), loss, torch.exp(-(used * torch.log(used + 1e-10)).sum())


def map_tiles(s: Setup, *, autocast: bool = False, last: bool = False, log: bool = True) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    model = TileCodes(s.size(128, 8), s.size(1024, 16), s.size(64, 4)).to(s.device, memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tiles = torch.rand(s.size(32, 2), 3, s.size(128, 16), s.size(128, 16), device=s.device).to(memory_format=layout)
    history: list[tuple[float, float]] = []

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again, loss, perplexity = model(tiles)
        loss = loss + F.mse_loss(again.float(), tiles)
        loss.backward()
        optimizer.step()
        if log:
            history.append((loss.item(), perplexity.item()))

    return step


PROGRAM = written_pair(
    "map_tiles",
    "memory-layout",
    "A VQ-VAE of 32 tiles of 128 x 128, FP32 with TF32 convolutions, NCHW: two numbers are read in each step.",
    "channels_last",
    map_tiles,
    {"last": True},
    alone={"precision": {"autocast": True}, "sync-stall": {"log": False}},
    gpu_bound=True,
)
