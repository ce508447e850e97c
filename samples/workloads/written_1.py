"""Programs written to test predictions, set A: scripts as a student or an engineer writes them, none known to the rules' authors.

Each has one change between its sides; further changes are timed alone. A program that reads a global switch sets it in its step,
since every workload runs in one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, Workload, capture

BF16, FP16 = torch.bfloat16, torch.float16


# Sampling an image by DDIM, one image at a time.


class ResidualConv(nn.Module):
    def __init__(self, width: int, embedded: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.shift = nn.Linear(embedded, width)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.shift(F.silu(t))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualConv(width, width) for _ in range(depth))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.width // 2, device=x.device) * (-math.log(10000.0) / (self.width // 2)))
        angles = t[:, None] * rates
        t = self.embed(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x = self.first(x)
        for block in self.blocks:
            x = block(x, t)
        return self.last(x)


def ddim_sampler(s: Setup, *, compiled: bool = False, on_host: bool = False) -> Step:
    model = Denoiser(s.size(192, 16), s.size(5, 1)).to(s.device, FP16 if s.cuda else None).eval()
    denoise = s.compile(model, mode="reduce-overhead") if compiled else model
    dtype = next(model.parameters()).dtype
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=s.device), 0)
    known = alphas.tolist()
    noise = torch.randn(1, 4, s.size(32, 8), s.size(32, 8), device=s.device, dtype=dtype)
    times = list(range(980, -1, -s.size(70, 490)))

    @torch.no_grad()
    def step() -> Tensor:
        x = noise.clone()
        for t, earlier in zip(times, [*times[1:], 0], strict=True):
            predicted = denoise(x, torch.full((1,), float(t), device=s.device))
            a = known[t] if on_host else alphas[t].item()
            b = known[earlier] if on_host else alphas[earlier].item()
            clean = ((x - (1 - a) ** 0.5 * predicted) / a**0.5).clamp(-3, 3)
            x = b**0.5 * clean + (1 - b) ** 0.5 * predicted
        return x

    return step


# Actor-critic: environments in numpy, the policy on the GPU.


class Pendulums:
    """Torque-driven pendulums, all advanced together."""

    def __init__(self, many: int) -> None:
        self.random = np.random.default_rng(0)
        self.angle, self.speed = self.random.uniform(-3, 3, many), np.zeros(many)

    def observe(self) -> NDArray[np.float32]:
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], 1).astype(np.float32)

    def act(self, action: NDArray[np.int64]) -> NDArray[np.float32]:
        torque = action.astype(np.float64) - 2.0
        self.speed = np.clip(self.speed + 0.05 * (15 * np.sin(self.angle) + 3 * torque), -8, 8)
        self.angle = (self.angle + 0.05 * self.speed + math.pi) % (2 * math.pi) - math.pi
        return -(self.angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2).astype(np.float32)


class ActorCritic(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 5), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.actor(x), self.critic(x)


def rollout(s: Setup, *, compiled: bool = False, validate: bool | None = None, pinned: bool = False) -> Step:
    many, length = s.size(128, 4), s.size(48, 3)
    world, model = Pendulums(many), ActorCritic(s.size(256, 16)).to(s.device)
    policy = s.compile(model, mode="reduce-overhead") if compiled else model
    values, logged, rewards = (torch.zeros(length, many, device=s.device) for _ in range(3))
    staging = s.pin(torch.zeros(many, 3))

    @torch.no_grad()
    def step() -> Tensor:
        for t in range(length):
            if pinned:
                staging.copy_(torch.from_numpy(world.observe()))
                seen = staging.to(s.device, non_blocking=True)
            else:
                seen = torch.from_numpy(world.observe()).to(s.device)
            logits, value = policy(seen)
            choice = torch.distributions.Categorical(logits=logits, validate_args=validate)
            action = choice.sample()
            logged[t] = choice.log_prob(action)
            values[t] = value.flatten()
            rewards[t] = torch.from_numpy(world.act(action.cpu().numpy())).to(s.device)
        return (rewards - values).mean()

    return step


# Gravity between all pairs of bodies.


def accelerations(x: Tensor, mass: Tensor) -> Tensor:
    apart = x[None, :, :] - x[:, None, :]
    squared = (apart**2).sum(-1) + 1e-3
    pull = mass[None, :] * squared.pow(-1.5)
    return (apart * pull[:, :, None]).sum(1)


def gravity(s: Setup, *, compiled: bool = False) -> Step:
    many = s.size(6144, 32)
    x, v = torch.randn(many, 3, device=s.device), torch.zeros(many, 3, device=s.device)
    mass = torch.rand(many, device=s.device) / many
    pull = s.compile(accelerations) if compiled else accelerations

    def step() -> Tensor:
        dt = 1e-3
        for _ in range(2):
            v.add_(0.5 * dt * pull(x, mass))
            x.add_(dt * v)
            v.add_(0.5 * dt * pull(x, mass))
        return x

    return step


# Frames of a film, from limited-range YUV to normalised linear RGB.


def linear_rgb(frames: Tensor) -> Tensor:
    yuv = frames.float()
    y = (yuv[:, 0] - 16.0) / 219.0
    u = (yuv[:, 1] - 128.0) / 224.0
    v = (yuv[:, 2] - 128.0) / 224.0
    r = y + 1.5748 * v
    g = y - 0.1873 * u - 0.4681 * v
    b = y + 1.8556 * u
    rgb = torch.stack([r, g, b], 1).clamp(0.0, 1.0)
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    mean = torch.tensor([0.485, 0.456, 0.406], device=frames.device).view(1, 3, 1, 1)
    spread = torch.tensor([0.229, 0.224, 0.225], device=frames.device).view(1, 3, 1, 1)
    return ((linear - mean) / spread).half()


def film_frames(s: Setup, *, compiled: bool = False) -> Step:
    frames = torch.randint(16, 236, (s.size(12, 1), 3, s.size(1080, 16), s.size(1920, 16)), dtype=torch.uint8, device=s.device)
    stem = nn.Conv2d(3, 16, 8, stride=8).to(s.device, FP16 if s.cuda else None)
    convert = s.compile(linear_rgb) if compiled else linear_rgb

    @torch.no_grad()
    def step() -> Tensor:
        return stem(convert(frames).to(stem.weight.dtype))

    return step


# Prefill with grouped queries and ALiBi.


class AlibiAttention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.fused = heads, kv_heads, fused
        self.q, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim // heads * kv_heads, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        b, n, dim = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = (part.view(b, n, self.kv_heads, -1).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
        k = k.repeat_interleave(self.heads // self.kv_heads, 1)
        v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
            y = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, dim))


def alibi_prefill(s: Setup, *, fused: bool = False) -> Step:
    dim, heads, length = s.size(2048, 32), s.size(32, 4), s.size(2048, 8)
    layers = nn.ModuleList(AlibiAttention(dim, heads, heads // 4, fused) for _ in range(2)).to(s.device, BF16)
    feeds = nn.ModuleList(nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(2)).to(s.device, BF16)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=s.device) / heads)
    distance = torch.arange(length, device=s.device)[None, :] - torch.arange(length, device=s.device)[:, None]
    bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, float("-inf"))[None].to(BF16)
    x = torch.randn(s.size(4, 1), length, dim, device=s.device, dtype=BF16)

    @torch.inference_mode()
    def step() -> Tensor:
        h = x
        for attention, feed in zip(layers, feeds, strict=True):
            h = h + attention(F.layer_norm(h, h.shape[-1:]), bias)
            h = h + feed(F.layer_norm(h, h.shape[-1:]))
        return h

    return step


# Regression with a Gaussian kernel.


def gaussian_kernel(x: Tensor, known: Tensor) -> Tensor:
    squared = (x**2).sum(1)[:, None] + (known**2).sum(1)[None, :] - 2 * (x @ known.T)
    return torch.exp(-0.5 * squared.clamp(min=0) / 400.0)


def kernel_regression(s: Setup, *, tf32: bool = False, autocast: bool = False, compiled: bool = False) -> Step:
    dim = s.size(512, 8)
    known, x = (torch.randn(s.size(16384, 16), dim, device=s.device) for _ in range(2))
    dual = torch.randn(len(known), s.size(256, 4), device=s.device)
    kernel = s.compile(gaussian_kernel) if compiled else gaussian_kernel

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            predicted = kernel(x, known) @ dual
        torch.set_float32_matmul_precision("high")
        return predicted

    return step


# A convolutional decoder with its own group norm.


class OwnGroupNorm(nn.Module):
    def __init__(self, groups: int, width: int, fused: bool) -> None:
        super().__init__()
        self.groups, self.fused = groups, fused
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.group_norm(x, self.groups, self.gain, self.shift, 1e-6)
        n, c, h, w = x.shape
        x = x.view(n, self.groups, c // self.groups, h, w)
        mean = x.mean(dim=(2, 3, 4), keepdim=True)
        var = x.var(dim=(2, 3, 4), keepdim=True, unbiased=False)
        x = (x - mean) / torch.sqrt(var + 1e-6)
        return x.view(n, c, h, w) * self.gain.view(1, c, 1, 1) + self.shift.view(1, c, 1, 1)


def image_decoder(s: Setup, *, fused: bool = False, compiled: bool = False) -> Step:
    width, side = s.size(256, 8), s.size(96, 8)
    layers: list[nn.Module] = []
    for _ in range(s.size(5, 1)):
        layers += [OwnGroupNorm(s.size(32, 2), width, fused), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)]
    model = nn.Sequential(*layers).to(s.device, BF16).eval()
    decode = s.compile(model) if compiled else model
    x = torch.randn(s.size(16, 1), width, side, side, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return decode(x)

    return step


# Self-distillation: the teacher is a running mean of the student.


def _encoder(dim: int, heads: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.LayerNorm(dim), nn.Linear(dim, 4 * dim))


def running_teacher(s: Setup, *, foreach: bool = False) -> Step:
    dim = s.size(384, 16)
    student, teacher = (_encoder(dim, s.size(6, 2), s.size(12, 1)).to(s.device) for _ in range(2))
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, fused=True)
    views = [torch.randn(s.size(16, 2), s.size(196, 4), dim, device=s.device) for _ in range(2)]

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16):
            with torch.no_grad():
                target = F.softmax(teacher(views[0]).mean(1).float() / 0.04, -1)
            loss = -(target * F.log_softmax(student(views[1]).mean(1).float() / 0.1, -1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.004)
            else:
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.data.mul_(0.996).add_(fast.data, alpha=0.004)

    return step


# Clipping each gradient by its own norm.


def clip_each(s: Setup, *, how: str = "if") -> Step:
    dim = s.size(1024, 16)
    layers: list[nn.Module] = []
    for _ in range(s.size(40, 2)):
        layers += [nn.Linear(dim, dim), nn.ReLU()]
    model = nn.Sequential(*layers).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    x = torch.randn(s.size(4096, 4), dim, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if how == "foreach":
            scales = torch._foreach_norm(grads)
            torch._foreach_add_(scales, 1e-6)
            torch._foreach_reciprocal_(scales)
            torch._foreach_clamp_max_(scales, 1.0)
            torch._foreach_mul_(grads, scales)
        for grad in grads if how != "foreach" else []:
            norm = grad.norm()
            if how == "clamp":
                grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
            elif norm > 1.0:
                grad.mul_(1.0 / (norm + 1e-6))
        optimizer.step()

    return step


# Llama's feed-forward layer at the width the paper's formula gives.


class GatedFeed(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def gated_width(s: Setup, *, multiple: int = 1) -> Step:
    dim = s.size(2048, 24)
    hidden = -(-(8 * dim // 3) // multiple) * multiple
    model = nn.Sequential(*(GatedFeed(dim, hidden) for _ in range(s.size(3, 1)))).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(s.size(8192, 4), dim, device=s.device, dtype=BF16)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    return step


# Clips from pinned memory, copied when they are needed.


def video_clips(s: Setup, *, ahead: bool = False) -> Step:
    dim = s.size(1536, 24)
    clips = [s.pin(torch.randn(s.size(64, 2), s.size(392, 4), dim)) for _ in range(2)]
    model = nn.Sequential(*(m for _ in range(s.size(6, 1)) for m in (nn.Linear(dim, dim), nn.GELU()))).to(s.device, BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    loader, turns = (Prefetcher([(clip,) for clip in clips], s) if ahead else None), count()

    def step() -> None:
        x = loader.next()[0] if loader else clips[next(turns) % 2].to(s.device, non_blocking=True)
        x = x.to(BF16)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()

    return step


# Fixes that gain nothing.


def small_tabular(s: Setup, *, autocast: bool = False) -> Step:
    width = s.size(192, 16)
    layers: list[nn.Module] = [nn.Linear(40, width), nn.SELU()]
    for _ in range(s.size(10, 1)):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.SELU()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    rows, target = torch.randn(s.size(1024, 8), 40, device=s.device), torch.randn(s.size(1024, 8), 1, device=s.device)

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            loss = F.smooth_l1_loss(model(rows), target)
        loss.backward()
        optimizer.step()
        torch.set_float32_matmul_precision("high")

    return step


def wide_feed(s: Setup, *, compiled: bool = False) -> Step:
    dim = s.size(6144, 16)
    model = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim)).to(s.device, BF16)
    run = s.compile(model) if compiled else model
    x = torch.randn(s.size(16384, 4), dim, device=s.device, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return run(x)

    return step


# Speech commands, augmented in numpy where the batch is put together.


class Commands(torch.utils.data.Dataset[tuple[NDArray[np.float32], int]]):
    def __init__(self, many: int, length: int) -> None:
        self.waves = np.random.default_rng(0).standard_normal((32, length)).astype(np.float32)
        self.many = many

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, at: int) -> tuple[NDArray[np.float32], int]:
        random = np.random.default_rng(at)
        wave = np.roll(self.waves[at % len(self.waves)], int(random.integers(1600))) + 0.01 * random.standard_normal(self.waves.shape[1])
        frames = np.lib.stride_tricks.sliding_window_view(wave, 400)[::160] * np.hanning(400)
        spectrum = np.log(np.abs(np.fft.rfft(frames, 512)) ** 2 + 1e-6)[:, :128]
        cut = int(random.integers(spectrum.shape[0] // 2))
        return spectrum[cut // 4 :].astype(np.float32), at % 35


def pad_together(items: list[tuple[NDArray[np.float32], int]]) -> tuple[Tensor, Tensor]:
    longest = max(len(spectrum) for spectrum, _ in items)
    batch = torch.zeros(len(items), longest, 128)
    for row, (spectrum, _) in zip(batch, items, strict=True):
        row[: len(spectrum)] = torch.from_numpy(spectrum)
    return batch, torch.tensor([label for _, label in items])


def speech_commands(s: Setup, *, workers: int = 0) -> Step:
    workers = workers if s.cuda else 0
    data = Commands(1 << 16, s.size(16000, 4000))
    loader = torch.utils.data.DataLoader(
        data, s.size(32, 2), collate_fn=pad_together, num_workers=workers, pin_memory=s.cuda, persistent_workers=workers > 0,
    )  # fmt: skip
    width = s.size(512, 16)
    model = nn.ModuleDict({"rnn": nn.GRU(128, width, 2, batch_first=True), "head": nn.Linear(width, 35)}).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = iter(loader)

    def step() -> None:
        spectra, labels = (part.to(s.device, non_blocking=True) for part in next(batches))
        optimizer.zero_grad()
        loss = F.cross_entropy(model["head"](model["rnn"](spectra)[0].mean(1)), labels)
        loss.backward()
        optimizer.step()

    return step


# A control.


def graphed_convolutions(s: Setup) -> Step:
    width, side = s.size(256, 8), s.size(56, 8)
    model = nn.Sequential(*(m for _ in range(s.size(8, 1)) for m in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))))
    model = model.to(s.device, FP16 if s.cuda else None).to(memory_format=torch.channels_last).eval().requires_grad_(False)
    x = torch.randn(s.size(64, 1), width, side, side, device=s.device).to(next(model.parameters()).dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    return capture(lambda: model(x), s)


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


WORKLOADS = (
    _written(
        "ddim_sampler", "launch-gap", "DDIM sampling of one latent in 15 steps; each step reads two coefficients with .item().",
        "torch.compile(mode='reduce-overhead') of the denoiser", ddim_sampler, partial(ddim_sampler, compiled=True),
        alone={"sync-stall": partial(ddim_sampler, on_host=True)}, top=("launch-gap", "graph-candidate", "sync-stall"), fixed_quiet=False,
    ),
    _written(
        "actor_critic_rollout", "launch-gap", "Rollout of 48 steps: environments in numpy, a small policy on the GPU, Categorical with its checks.",
        "torch.compile(mode='reduce-overhead') of the policy", rollout, partial(rollout, compiled=True),
        alone={"sync-stall": partial(rollout, validate=False), "memcpy": partial(rollout, pinned=True)},
        top=("launch-gap", "graph-candidate", "sync-stall", "host-bound"), fixed_quiet=False,
    ),
    _written(
        "gravity_all_pairs", "unfused-elementwise", "Leapfrog of 6144 bodies that attract each other, all pairs written out.",
        "torch.compile of the force", gravity, partial(gravity, compiled=True), gpu_bound=True,
    ),
    _written(
        "film_frames", "unfused-elementwise", "Twelve frames of 1080 x 1920 from YUV bytes to normalised linear RGB in fp16, then one convolution.",
        "torch.compile of the conversion", film_frames, partial(film_frames, compiled=True), gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "alibi_prefill", "unfused-attention", "Prefill of two layers in bf16: grouped queries, ALiBi bias, softmax in FP32.",
        "F.scaled_dot_product_attention with the bias as its mask", alibi_prefill, partial(alibi_prefill, fused=True), gpu_bound=True,
    ),
    _written(
        "kernel_regression", None, "Regression with a Gaussian kernel in FP32 without TF32: 16384 points against 16384.",
        "each alone", kernel_regression, None, gpu_bound=True,
        alone={
            "precision": partial(kernel_regression, autocast=True), "precision/tf32": partial(kernel_regression, tf32=True),
            "unfused-elementwise": partial(kernel_regression, compiled=True),
        },
    ),
    _written(
        "own_group_norm", "unfused-norm", "Image decoder in bf16 whose GroupNorm is written out.",
        "F.group_norm", image_decoder, partial(image_decoder, fused=True), alone={"unfused-elementwise": partial(image_decoder, compiled=True)},
        gpu_bound=True, fixed_quiet=False,
    ),
    _written(
        "running_teacher", "optimizer-foreach", "Self-distillation of a small ViT; the teacher follows the student parameter by parameter.",
        "torch._foreach_lerp_", running_teacher, partial(running_teacher, foreach=True),
        top=("optimizer-foreach", "launch-gap", "graph-candidate", "host-bound"), fixed_quiet=False,
    ),
    _written(
        "clip_each_tensor", "sync-stall", "Each of 80 gradients is clipped by its own norm: `if norm > 1` waits for the GPU.",
        "scale by a clamped factor, without `if`", clip_each, partial(clip_each, how="clamp"), with_stack=True,
        alone={"optimizer-foreach": partial(clip_each, how="foreach")}, top=("sync-stall", "optimizer-foreach", "launch-gap"), fixed_quiet=False,
    ),
    _written(
        "gated_width_5461", "gemm-alignment", "SwiGLU training in bf16 whose hidden width is 8/3 of 2048, 5461.",
        "a width of 5504", gated_width, partial(gated_width, multiple=128), gpu_bound=True,
    ),
    _written(
        "video_clips", "memcpy", "Pinned clips of 154 MB are copied on the stream that computes.",
        "copy the next clip on a stream of its own", video_clips, partial(video_clips, ahead=True), gpu_bound=True,
        top=("memcpy", "missed-overlap"), fixed_quiet=False,
    ),
    _written(
        "tabular_autocast", "precision", "Small tabular network in FP32 without TF32: launches are the bound, and autocast adds to them.",
        "none: bf16 autocast gains nothing", small_tabular, partial(small_tabular, autocast=True), trap=True, fixed_quiet=False,
    ),
    _written(
        "wide_feed", "unfused-elementwise", "A feed-forward layer of 6144 x 24576 in bf16: one GELU between two large products.",
        "none: torch.compile gains nothing", wide_feed, partial(wide_feed, compiled=True), trap=True, gpu_bound=True,
    ),
    _written(
        "speech_commands", "data-loading", "A GRU on spectrograms that numpy computes, cuts and pads in the training process.",
        "num_workers=8", speech_commands, partial(speech_commands, workers=8), fixed_quiet=False,
    ),
    _written(
        "graphed_convolutions", None, "Convolutions in fp16, channels_last, under a CUDA graph.", "none: control", None, graphed_convolutions, gpu_bound=True,
    ),
)  # fmt: skip
