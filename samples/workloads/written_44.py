"""A sampler of wind ensembles for airports in its author's own code, by an author who serves what a paper trained.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Winds: a transformer trained by flow matching draws an ensemble of wind fields from what a station has measured.


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    freqs = torch.exp(-math.log(10000.0) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = 1000.0 * t[:, None] * freqs
    return torch.cat([args.cos(), args.sin()], -1)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.scale, self.sdpa = heads, (dim // heads) ** -0.5, sdpa
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            y = attn.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).flatten(2))


class WindBlock(nn.Module):
    def __init__(self, dim: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = SelfAttention(dim, heads, sdpa)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.adaln = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(c).chunk(6, -1)
        x = x + gate1[:, None] * self.attn(modulate(self.norm1(x), shift1, scale1))
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift2, scale2))


class WindTransformer(nn.Module):
    def __init__(self, variables: int, levels: int, hours: int, patch: int, observed: int, dim: int, depth: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.patch, self.dim, self.rows = patch, dim, levels // patch
        self.embed = nn.Conv2d(variables, dim, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, self.rows * (hours // patch), dim))
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.station = nn.Sequential(nn.Linear(observed, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.nothing = nn.Parameter(torch.zeros(observed))
        self.blocks = nn.ModuleList(WindBlock(dim, heads, sdpa) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, variables * patch * patch)

    def forward(self, x: Tensor, t: Tensor, observed: Tensor) -> Tensor:
        c = self.time(timestep_embedding(t, self.dim)) + self.station(observed)
        h = self.embed(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            h = block(h, c)
        h = self.head(self.norm(h)).unflatten(1, (self.rows, -1)).unflatten(-1, (-1, self.patch, self.patch))
        return h.permute(0, 3, 1, 4, 2, 5).reshape(x.shape)


def runway_winds(
    s: Setup,
    *,
    together: bool = False,
    batched: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    sdpa: bool = False,
    autocast: bool = False,
    late: bool = False,
    table: bool = False,
) -> Step:
    """Three airports are served one by one: 8 members each, 4 steps of Euler with guidance in two passes, FP32, the norm is read each step."""
    asked, members, steps, kept = 3, s.size(8, 2), s.size(4, 2), 12
    variables, levels, hours, seen = 5, s.size(32, 8), s.size(64, 8), s.size(48, 6)
    with s.device:
        model = WindTransformer(variables, levels, hours, 4, seen, s.size(384, 32), s.size(4, 2), s.size(6, 2), sdpa).eval()
        mean, std = torch.randn(variables, 1, 1), torch.rand(variables, 1, 1) + 0.5
        quantiles = torch.tensor([0.1, 0.5, 0.9])
        times = torch.linspace(0, 1, steps + 1)
    rng, turn = np.random.default_rng(77), counter()
    queue = [
        {"icao": f"X{n:03d}", "metar": rng.standard_normal(seen).astype(np.float32), "seed": n, "guidance": float(rng.uniform(1.5, 3.0))}
        for n in range(kept)
    ]
    answers: dict[str, Any] = {}

    def velocity(x: Tensor, t: Tensor, observed: Tensor, guidance: Tensor) -> Tensor:
        nothing = model.nothing.expand_as(observed)
        if together:
            with_it, without = model(torch.cat([x, x]), torch.cat([t, t]), torch.cat([observed, nothing])).chunk(2)
        else:
            with_it, without = model(x, t, observed), model(x, t, nothing)
        return without + guidance * (with_it - without)

    run = s.compile(velocity, mode="reduce-overhead", dynamic=False) if compiled else velocity
    if graphed:
        torch.set_float32_matmul_precision("highest")
        rows = members * asked if batched else members
        with s.device:
            held = (torch.randn(rows, variables, levels, hours), torch.zeros(rows), torch.zeros(rows, seen), torch.ones(rows, 1, 1, 1))
            out = torch.empty_like(held[0])
        with torch.no_grad():
            replay = capture(lambda: out.copy_(velocity(*held)), s)

    def flow(x: Tensor, t: Tensor, observed: Tensor, guidance: Tensor) -> Tensor:
        if graphed:
            for place, value in zip(held, (x, t, observed, guidance), strict=True):
                place.copy_(value)
            replay()
            return out
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return run(x, t, observed, guidance)

    def sample(requests: list[dict[str, Any]]) -> tuple[Tensor, list[Any]]:
        rows = members * len(requests)
        noise = []
        for request in requests:
            generator = torch.Generator(device=s.device).manual_seed(request["seed"])
            noise.append(torch.randn(members, variables, levels, hours, device=s.device, generator=generator))
        x = torch.cat(noise)
        observed = torch.from_numpy(np.stack([request["metar"] for request in requests])).to(s.device).repeat_interleave(members, 0)
        guidance = torch.tensor([request["guidance"] for request in requests]).to(s.device).repeat_interleave(members)[:, None, None, None]
        norms: list[Any] = []
        for i in range(steps):
            t = times[i].expand(rows) if table else torch.full((rows,), i / steps).to(s.device)
            x = x + flow(x, t, observed, guidance).float() / steps
            norm = x.view(len(requests), -1).pow(2).mean(1).sqrt()
            norms.append(norm if late else norm.tolist())
            if not late and not all(map(math.isfinite, norms[-1])):
                raise FloatingPointError(f"step {i}: the sample has left the road")
        return x, norms

    def forecast(x: Tensor) -> dict[str, Any]:
        wind = x * std + mean
        speed = torch.hypot(wind[:, 0], wind[:, 1])
        bands = torch.quantile(speed[:, 0], quantiles, dim=0)
        return {"bands": bands.cpu().numpy(), "gust": speed.amax((1, 2)).cpu().numpy(), "shear": (speed[:, 1] - speed[:, 0]).abs().mean(0).cpu().numpy()}

    @torch.no_grad()
    def step() -> dict[str, Any]:
        torch.set_float32_matmul_precision("highest")
        first = asked * next(turn)
        requests = [queue[(first + n) % kept] for n in range(asked)]
        for group in [requests] if batched else [[request] for request in requests]:
            x, norms = sample(group)
            if late:
                norms = torch.stack(norms).tolist()
                if not all(math.isfinite(norm) for each in norms for norm in each):
                    raise FloatingPointError("a sample has left the road")
            for request, fields, path in zip(group, x.split(members), zip(*norms, strict=True), strict=True):
                answers[request["icao"]] = {**forecast(fields), "norms": path}
        return answers

    return step


WORKLOADS = (
    written(
        "runway_winds",
        "A transformer of flow matching draws winds for three airports one by one: 4 steps, guidance in two passes, FP32, a read each step.",
        "both passes of guidance in one batch; the airports in one batch; the velocity compiled into CUDA graphs; CUDA graph of the velocity; "
        "scaled_dot_product_attention; bf16 autocast; norms read at the end; times in a table on the GPU",
        runway_winds,
        {
            "low-arithmetic-intensity": {"together": True}, "low-arithmetic-intensity/requests": {"batched": True},
            "launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "unfused-attention": {"sdpa": True},
            "precision": {"autocast": True}, "sync-stall": {"late": True}, "memcpy": {"table": True},
        },
    ),
)  # fmt: skip
