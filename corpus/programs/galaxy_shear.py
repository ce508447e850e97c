"""Three networks on 256 galaxies drawn on the GPU, FP16 with a scaler, NCHW; NumPy smears; gradients filled with zeros."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16, FP16 = torch.bfloat16, torch.float16


def drawn_galaxies(grid: Tensor, light: Tensor, radius: Tensor, index: Tensor, shape: Tensor, middle: Tensor) -> Tensor:
    """Sersic's profiles, three times as fine as the camera's pixels."""
    one, two = shape[:, 0, None, None], shape[:, 1, None, None]
    x, y = grid - middle[:, 0, None, None], grid[:, None] - middle[:, 1, None, None]
    u, v = (1.0 - one) * x - two * y, (1.0 + one) * y - two * x
    away = torch.sqrt((u**2 + v**2) / (1.0 - one**2 - two**2) + 1e-3) / radius[:, None, None]
    steep = 1.9992 * index[:, None, None] - 0.3271
    profile = torch.exp(-steep * (away ** (1.0 / index[:, None, None]) - 1.0))
    return light[:, None, None] * profile / profile.sum((-2, -1), keepdim=True)


def smeared(picture: Tensor, blur: Tensor) -> Tensor:
    """A convolution by way of Fourier space."""
    side = picture.shape[-1]
    seen = torch.fft.rfft2(picture, s=(2 * side, 2 * side)) * torch.fft.rfft2(blur, s=(2 * side, 2 * side))
    return torch.fft.irfft2(seen, s=(2 * side, 2 * side))[:, side // 2 : side // 2 + side, side // 2 : side // 2 + side]


def moffat(grid: np.ndarray, width: np.ndarray, beta: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How the air and the telescope smear a star in each exposure."""
    width, beta, first, second = (part[:, None, None] for part in (width, beta, first, second))
    x, y = grid[None, None, :], grid[None, :, None]
    away = ((1.0 - first) * x - second * y) ** 2 + ((1.0 + first) * y - second * x) ** 2
    core = width / (2.0 * np.sqrt(2.0 ** (1.0 / beta) - 1.0))
    star = (1.0 + away / core**2) ** -beta
    return (star / star.sum((1, 2), keepdims=True)).astype(np.float32)


def moffat_tensor(grid: Tensor, width: Tensor, beta: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The same on the GPU."""
    width, beta, first, second = (part[:, None, None] for part in (width, beta, first, second))
    away = ((1.0 - first) * grid - second * grid[:, None]) ** 2 + ((1.0 + first) * grid[:, None] - second * grid) ** 2
    core = width / (2.0 * torch.sqrt(2.0 ** (1.0 / beta) - 1.0))
    star = (1.0 + away / core**2) ** -beta
    return star / star.sum((1, 2), keepdim=True)


class Patch(nn.Module):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inner, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm, self.norm_too = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.past = nn.Identity() if stride == 1 and inner == width else nn.Conv2d(inner, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.norm(self.one(x)))
        return F.gelu(self.norm_too(self.two(y)) + self.past(x))


class Shear(nn.Module):
    """Two numbers and the doubt about each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 5, 1, 2)
        self.patches = nn.Sequential(
            Patch(width, width, 1), Patch(width, 2 * width, 2), Patch(2 * width, 2 * width, 1),
            Patch(2 * width, 4 * width, 2), Patch(4 * width, 4 * width, 1),
        )  # fmt: skip
        self.say = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.patches(F.gelu(self.stem(x)))
        shear, doubt = self.say(x.mean((2, 3))).chunk(2, -1)
        return shear, doubt


def galaxy_shear(s: Setup, *, last: bool = False, compiled: bool = False, fused: bool = False, on_gpu: bool = False, filled: bool = True) -> Step:
    """Training in FP16 autocast with a scaler on 256 stamps of 32 exposures; NumPy works out how each exposure is smeared."""
    count, exposures, side, many = s.size(256, 4), s.size(32, 2), s.size(64, 16), s.size(3, 2)
    with s.device:
        members = nn.ModuleList(Shear(s.size(64, 4)) for _ in range(many))
        grid = (torch.arange(3 * side) - 0.5 * (3 * side - 1)) / 3.0
        pixels = torch.arange(side) - 0.5 * side
    if last:
        members = members.to(memory_format=torch.channels_last)
    draw = s.compile(drawn_galaxies, dynamic=False) if compiled else drawn_galaxies
    networks = [s.compile(member, dynamic=False) if compiled else member for member in members]
    optimizer = torch.optim.AdamW(members.parameters(), lr=5e-4, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    rng, places, half = np.random.default_rng(7), pixels.cpu().numpy(), FP16 if s.cuda else BF16
    noted = torch.zeros((), device=s.device)

    def blurs() -> Tensor:
        known = [rng.uniform(low, high, exposures) for low, high in ((2.5, 4.0), (2.5, 4.5), (-0.05, 0.05), (-0.05, 0.05))]
        if on_gpu:
            return moffat_tensor(pixels, *torch.from_numpy(np.stack(known).astype(np.float32)).to(s.device))
        return torch.from_numpy(moffat(places, *known)).to(s.device)

    @torch.no_grad()
    def observed() -> tuple[Tensor, Tensor]:
        blur = blurs().repeat_interleave(count // exposures, 0)
        light, radius, index, noise = torch.rand(4, count, device=s.device)
        true = 0.05 * torch.randn(count, 2, device=s.device)
        own = 0.2 * torch.randn(count, 2, device=s.device)
        middle = torch.rand(count, 2, device=s.device) - 0.5
        shape = (own + true).clamp(-0.6, 0.6)
        fine = draw(grid, 200.0 + 2000.0 * light, 2.0 + 6.0 * radius, 0.7 + 3.0 * index, shape, middle)
        picture = smeared(9.0 * F.avg_pool2d(fine[:, None], 3)[:, 0], blur)
        picture = picture + (0.5 + noise[:, None, None]) * torch.randn_like(picture)
        return torch.stack([torch.asinh(picture), 30.0 * blur], 1), true

    def step() -> Tensor:
        x, true = observed()
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=not filled)
        loss = torch.zeros((), device=s.device)
        for network in networks:
            with torch.autocast(s.device.type, half):
                shear, doubt = network(x)
            doubt = doubt.float().clamp(-8.0, 8.0)
            loss = loss + 0.5 * (doubt + (shear.float() - 20.0 * true).pow(2) * torch.exp(-doubt)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(members.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        noted.lerp_(loss.detach() / many, 0.01)
        return loss.detach()

    return step


PROGRAM = written(
    "galaxy_shear",
    "Three networks on 256 galaxies drawn on the GPU, FP16 with a scaler, NCHW; NumPy smears; gradients filled with zeros.",
    "channels_last; torch.compile; fused AdamW; smeared on the GPU; set_to_none",
    galaxy_shear,
    {
        "memory-layout": {"last": True},
        "unfused-elementwise": {"compiled": True},
        "amp-scaler-sync": {"fused": True},
        "host-bound": {"on_gpu": True},
        "grad-zeroing": {"filled": False},
    },
    gpu_bound=True,
)
