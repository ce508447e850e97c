"""An ensemble forecast of the monsoon by diffusion: twelve hours ahead per step, all members at once.

Each member's next state is drawn by the stochastic Heun sampler of EDM (Karras et al. 2022), as a residual to the state
before, given the last two states, fixed fields and the sun. The denoiser is a DiT from timm's blocks, in fp16.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.models.vision_transformer import Attention, Mlp, PatchEmbed
from torch import Tensor

from workloads.base import Setup, Step, advised

FIELDS = ("t2m", "u10", "v10", "msl", "tp", "q850", "t850", "u850", "v850", "z500", "u200", "v200")
RAIN = FIELDS.index("tp")
STATIC = 3  # height, land, latitude
SUN = 3  # zenith angle, season twice


@dataclass(frozen=True)
class Sampler:
    steps: int = 6
    sigma_min: float = 0.02
    sigma_max: float = 88.0
    rho: float = 7.0
    churn: float = 2.5
    noise: float = 1.05
    sigma_data: float = 1.0

    def sigmas(self, device: torch.device) -> Tensor:
        ramp = torch.linspace(0, 1, self.steps, dtype=torch.float64, device=device)
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        return torch.cat([(high + ramp * (low - high)) ** self.rho, torch.zeros(1, device=device)]).float()


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(dim, num_heads=heads, qkv_bias=True)
        self.mlp = Mlp(dim, 4 * dim, act_layer=lambda: nn.GELU(approximate="tanh"))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(c).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class Denoiser(nn.Module):
    """Noisy residual, two states, fixed fields and sun in; clean residual out."""

    def __init__(self, size: tuple[int, int], patch: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.size, self.patch, self.dim = size, patch, dim
        channels = 3 * len(FIELDS) + STATIC + SUN
        self.embed = PatchEmbed(size, patch, channels, dim)
        self.place = nn.Parameter(torch.randn(1, self.embed.num_patches, dim) * 0.02)
        self.level = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.out = nn.Linear(dim, patch * patch * len(FIELDS))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def level_features(self, noise: Tensor) -> Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(128, device=noise.device) / 128)
        angles = 1000 * noise[:, None] * rates
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def unpatchify(self, x: Tensor) -> Tensor:
        rows, columns = self.size[0] // self.patch, self.size[1] // self.patch
        x = x.reshape(len(x), rows, columns, self.patch, self.patch, len(FIELDS))
        return torch.einsum("nhwpqc->nchpwq", x).reshape(len(x), len(FIELDS), *self.size)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        c = self.level(self.level_features(noise).to(x.dtype))
        x = self.embed(x) + self.place
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada(c).chunk(2, dim=1)
        return self.unpatchify(self.out(modulate(self.norm(x), shift, scale)))


def denoise(net: Denoiser, x: Tensor, sigma: Tensor, given: Tensor, data: float) -> Tensor:
    """EDM's preconditioning around the network."""
    sigma = sigma.reshape(1, 1, 1, 1)
    skip = data**2 / (sigma**2 + data**2)
    out = sigma * data / (sigma**2 + data**2).sqrt()
    scaled = x / (sigma**2 + data**2).sqrt()
    inputs = torch.cat([scaled, given], dim=1).to(net.place.dtype)
    noise = (sigma.flatten().log() / 4).expand(len(x))
    return skip * x + out * net(inputs, noise).float()


def heun(net: Denoiser, x: Tensor, fresh: Tensor, now: Tensor, after: Tensor, given: Tensor, how: Sampler, last: bool) -> Tensor:
    """One step of the sampler, from the noise level now to the one after."""
    gamma = min(how.churn / how.steps, math.sqrt(2) - 1)
    raised = now + gamma * now
    x = x + (raised**2 - now**2).sqrt() * fresh
    slope = (x - denoise(net, x, raised, given, how.sigma_data)) / raised
    guess = x + (after - raised) * slope
    if not last:
        second = (guess - denoise(net, guess, after, given, how.sigma_data)) / after
        guess = x + (after - raised) * 0.5 * (slope + second)
    return guess


def sample(net: Denoiser, given: Tensor, how: Sampler, generator: torch.Generator, heun: Callable[..., Tensor] = heun) -> Tensor:
    sigmas = how.sigmas(given.device)
    shape = (len(given), len(FIELDS), *given.shape[2:])
    x = torch.randn(shape, device=given.device, generator=generator) * sigmas[0]
    for i, (now, after) in enumerate(itertools.pairwise(sigmas)):
        fresh = torch.randn(shape, device=x.device, generator=generator) * how.noise
        x = heun(net, x, fresh, now, after, given, how, i == how.steps - 1)
    return x


def smooth_fields(count: int, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Random fields of unit variance with a weather-like spectrum."""
    waves = np.hypot(np.fft.fftfreq(size[0])[:, None] * size[0], np.fft.rfftfreq(size[1])[None] * size[1])
    spectrum = np.fft.rfft2(rng.normal(size=(count, *size))) / (2 + waves) ** 1.6
    fields = np.fft.irfft2(spectrum, s=size)
    return (fields / fields.std(axis=(1, 2), keepdims=True)).astype(np.float32)


def sunlight(hour: float, latitudes: np.ndarray, longitudes: np.ndarray) -> np.ndarray:
    """Cosine of the zenith angle on the grid, and the season's sine and cosine."""
    season = 2 * np.pi * (hour / 24 % 365.25) / 365.25
    tilt = np.deg2rad(-23.44) * np.cos(season + 2 * np.pi * 10 / 365.25)
    local = np.deg2rad(15 * (hour % 24 - 12) + longitudes)
    lat = np.deg2rad(latitudes)[:, None]
    zenith = np.sin(lat) * np.sin(tilt) + np.cos(lat) * np.cos(tilt) * np.cos(local)[None]
    ones = np.ones_like(zenith)
    return np.stack([zenith.clip(0), np.sin(season) * ones, np.cos(season) * ones]).astype(np.float32)


def crps(members: Tensor, truth: Tensor) -> Tensor:
    """The fair continuous ranked probability score of each field, averaged over the grid."""
    n = len(members)
    error = (members - truth).abs().mean(dim=0)
    pairs = (members[:, None] - members[None]).abs().sum(dim=(0, 1)) / (2 * n * (n - 1))
    return (error - pairs).mean(dim=(1, 2))


def monsoon_ensemble(s: Setup, *, fused: bool = False, late: bool = False) -> Step:
    size, patch = (s.size(96, 8), s.size(192, 16)), 4
    members, leads = s.size(8, 3), 30
    how = Sampler(steps=s.size(6, 3))
    net = Denoiser(size, patch, s.size(1024, 48), s.size(6, 2), s.size(16, 2)).to(s.device).eval()
    if s.cuda:
        net.half()

    rng = np.random.default_rng(4)
    analyses = smooth_fields((leads + 2) * len(FIELDS), size, rng).reshape(leads + 2, len(FIELDS), *size)
    latitudes, longitudes = np.linspace(42, -5.5, size[0]), np.linspace(40, 135.5, size[1])
    height, land = smooth_fields(2, size, rng)
    lat_field = np.broadcast_to(np.sin(np.deg2rad(latitudes))[:, None], size)
    static = np.stack([height, land > 0, lat_field]).astype(np.float32)
    static = torch.from_numpy(static).to(s.device).expand(members, -1, -1, -1)
    change = torch.linspace(0.02, 0.12, len(FIELDS), device=s.device).reshape(1, -1, 1, 1)
    generator = torch.Generator(s.device).manual_seed(11)
    limits = torch.tensor([0.5, 1.0, 2.0], device=s.device)
    forecast: dict[str, object] = {"lead": leads}
    solve = s.compile(heun) if fused else heun
    pending: list[tuple[dict[str, Tensor], torch.cuda.Event | None]] = []

    def upload(array: np.ndarray) -> Tensor:
        if late:
            return s.pin(torch.from_numpy(array)).to(s.device, non_blocking=True)
        return torch.from_numpy(array).to(s.device)

    def a_step_later(results: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """Starts the copies of these results and returns those of the step before; nothing the first time."""
        host = {name: torch.empty(value.shape, dtype=value.dtype, pin_memory=s.cuda) for name, value in results.items()}
        for name, value in results.items():
            host[name].copy_(value, non_blocking=True)
        pending.append((host, torch.cuda.current_stream().record_event() if s.cuda else None))
        if len(pending) == 1:
            return {}
        earlier, copied = pending.pop(0)
        if copied is not None:
            copied.synchronize()
        return {name: value.numpy() for name, value in earlier.items()}

    def begin() -> None:
        """A new run starts from the last two analyses, slightly disturbed for each member."""
        for name, analysis in (("before", analyses[0]), ("now", analyses[1])):
            state = upload(analysis).expand(members, -1, -1, -1)
            forecast[name] = state + 0.02 * torch.randn(state.shape, device=s.device, generator=generator)
        forecast["lead"] = 0

    @torch.inference_mode()
    def step() -> dict[str, np.ndarray]:
        if forecast["lead"] == leads:
            begin()
        lead, before, now = forecast["lead"], forecast["before"], forecast["now"]
        sun = sunlight(24 * 160 + 12 * (lead + 1), latitudes, longitudes)
        sun = upload(sun).expand(members, -1, -1, -1)
        given = torch.cat([now, before, static, sun], dim=1)

        state = now + change * sample(net, given, how, generator, solve)
        state = state.clamp(-6, 6)
        forecast.update(before=now, now=state, lead=lead + 1)

        truth = upload(analyses[lead + 2])
        rain = F.avg_pool2d(state[:, RAIN], 2)
        heavy = (rain[None] > limits[:, None, None, None]).float().mean(dim=1)
        if late:
            return a_step_later({"mean": state.mean(dim=0), "spread": state.std(dim=0), "heavy_rain": heavy, "crps": crps(state, truth)})
        return {
            "mean": state.mean(dim=0).cpu().numpy(),
            "spread": state.std(dim=0).cpu().numpy(),
            "heavy_rain": heavy.cpu().numpy(),
            "crps": crps(state, truth).cpu().numpy(),
        }

    return step


PROGRAM = advised(
    "monsoon_ensemble",
    "Six Heun steps of EDM draw twelve hours for 8 members of 96 x 192, a DiT of timm's blocks in fp16; four reads.",
    monsoon_ensemble,
    {"unfused-elementwise": {"fused": True}, "sync-stall": {"late": True}},
)
