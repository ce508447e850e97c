"""Six exact Gaussian processes of 1200 probes in training, in doubles: one by one, checked and read, empty_cache() after each step."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from workloads.base import Setup, Step, written


def matern(x: Tensor, length: Tensor, scale: Tensor) -> Tensor:
    """Matern's covariance with 5/2, a length for each feature; x is (..., points, features)."""
    apart = (x.unsqueeze(-2) - x.unsqueeze(-3)) / length[..., None, None, :]
    r = math.sqrt(5.0) * (apart.pow(2).sum(-1) + 1e-10).sqrt()
    return scale[..., None, None] * (1 + r + r**2 / 3) * torch.exp(-r)


class Soils(nn.Module):
    """Lengths, scales, noise and means of all fields."""

    def __init__(self, fields: int, features: int) -> None:
        super().__init__()
        self.length, self.scale = nn.Parameter(torch.zeros(fields, features)), nn.Parameter(torch.zeros(fields))
        self.noise, self.mean = nn.Parameter(torch.full((fields,), -1.0)), nn.Parameter(torch.zeros(fields))


def soil_kriging(
    s: Setup,
    *,
    together: bool = False,
    single: bool = False,
    compiled: bool = False,
    asked: bool = True,
    emptied: bool = True,
    fused: bool = False,
    pinned: bool = False,
) -> Step:
    """Hyperparameters of six exact Gaussian processes of 1200 probes, in doubles: field by field, each checked and read, memory given back after."""
    fields, probes, features = s.size(6, 2), s.size(1200, 20), s.size(6, 3)
    rng = np.random.default_rng(352)
    where = rng.random((fields, probes, features)) * 3
    moist = np.sin(where @ rng.standard_normal((features, 1)))[..., 0] + 0.3 * rng.standard_normal((fields, probes))
    dtype = torch.float32 if single else torch.float64
    places, values = torch.from_numpy(where).to(dtype), torch.from_numpy(moist).to(dtype)
    if pinned:
        places, values = s.pin(places), s.pin(values)
    model = Soils(fields, features).to(s.device, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused or None)
    covariance = s.compile(matern, dynamic=False) if compiled else matern
    eye = torch.eye(probes, device=s.device, dtype=dtype)
    total = torch.zeros((), device=s.device, dtype=dtype)
    history: list[float] = []

    def unlikely(x: Tensor, y: Tensor, chosen: int | slice) -> Tensor:
        length, scale = F.softplus(model.length[chosen]), F.softplus(model.scale[chosen])
        noise = F.softplus(model.noise[chosen]) + 0.01
        k = covariance(x, length, scale) + noise[..., None, None] * eye
        root = torch.linalg.cholesky(k) if asked else torch.linalg.cholesky_ex(k)[0]
        mean = model.mean[chosen].unsqueeze(-1).expand_as(y)
        return -MultivariateNormal(mean, scale_tril=root, validate_args=None if asked else False).log_prob(y).sum() / probes

    def note(loss: Tensor) -> None:
        if asked:
            history.append(loss.item())
        else:
            total.add_(loss.detach())

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        history.clear()
        optimizer.zero_grad()
        if together:
            loss = unlikely(places.to(s.device, non_blocking=pinned), values.to(s.device, non_blocking=pinned), slice(None))
            loss.backward()
            note(loss)
        else:
            for field in range(fields):
                loss = unlikely(places[field].to(s.device, non_blocking=pinned), values[field].to(s.device, non_blocking=pinned), field)
                loss.backward()
                note(loss)
        optimizer.step()
        if emptied and s.cuda:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


PROGRAM = written(
    "soil_kriging",
    "Six exact Gaussian processes of 1200 probes in training, in doubles: one by one, checked and read, empty_cache() after each step.",
    "all fields in one batched call; FP32; torch.compile of the covariance; no checks or reads; no empty_cache(); fused Adam; pinned probes",
    soil_kriging,
    {
        "launch-gap": {"together": True},
        "precision": {"single": True},
        "unfused-elementwise": {"compiled": True},
        "sync-stall": {"asked": False},
        "allocator": {"emptied": False},
        "optimizer-foreach": {"fused": True},
        "memcpy": {"pinned": True},
    },
)
