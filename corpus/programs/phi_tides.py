"""Phi of transformers on patches of tides, tested under BF16 autocast on 16 x 7 series; DoRA's norms are made anew."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _casting, _precision, _public


def _cast(model: Any, dtype: torch.dtype | None) -> Any:
    """Buffers stay in FP32, as with from_pretrained: rotary frequencies need it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)
    return model


def _adapted(model: nn.Module, names: tuple[str, ...], make: Any) -> list[Any]:
    layers = []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, make(child).to(child.weight.device))
                layers.append(getattr(module, name))
    return layers


class _Decomposed(nn.Module):
    """DoRA as in peft: the length of each row of the adapted weight is taken anew in each call."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)
        self.magnitude = nn.Parameter(base.weight.detach().norm(dim=1) * 1.1)

    def lengths(self) -> Tensor:
        weight = self.base.weight
        own = self.up(self.down(torch.eye(weight.shape[1], device=weight.device, dtype=weight.dtype))).T
        return torch.linalg.vector_norm(weight + self.scale * own, dim=1).to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        out, bias = self.base(x), self.base.bias
        ratio = self.magnitude / self.lengths()
        return out + (ratio - 1) * (out - bias) + ratio * self.up(self.down(x)) * self.scale  # type: ignore[no-any-return]

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        weight = self.base.weight + self.scale * self.up.weight @ self.down.weight
        self.base.weight.copy_(weight * (self.magnitude / weight.norm(dim=1))[:, None])
        return self.base


class _Forecaster(nn.Module):
    """A language model's layers between patches of a series and its future, as in Time-LLM."""

    def __init__(self, model: nn.Module, width: int, patch: int, patches: int, ahead: int) -> None:
        super().__init__()
        self.model, self.patch = model, patch
        self.enter, self.leave = nn.Linear(patch, width), nn.Linear(width * patches, ahead)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        patches = ((x - mean) / std).unfold(1, self.patch, self.patch)
        out = self.model(inputs_embeds=self.enter(patches), use_cache=False).last_hidden_state
        return self.leave(out.flatten(1)).float() * std + mean  # type: ignore[no-any-return]


def phi_tides(s: Setup, *, merged: bool = False, halves: bool = False, kept: bool = False, fused: bool = False, attention: str = "eager", **how: Any) -> Step:
    """Phi with hand-written DoRA is tested on what tide gauges showed: errors of each gauge are read for each batch."""
    from transformers import PhiConfig, PhiModel

    way, gauges, batch = How(**{"autocast": BF16, **how}), s.size(7, 3), s.size(16, 2)
    past, ahead, patch, width = s.size(512, 32), s.size(96, 4), s.size(16, 8), s.size(2048, 32)
    config = PhiConfig(
        vocab_size=16, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=s.size(6, 2), num_attention_heads=s.size(32, 4),
        partial_rotary_factor=0.5, max_position_embeddings=2048, pad_token_id=None, bos_token_id=1, eos_token_id=2,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        inner = PhiModel(config)
        layers = _adapted(inner, ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"), lambda layer: _Decomposed(layer, 16, 32.0))
        model: Any = _Forecaster(inner, width, patch, past // patch, ahead)
    if merged:
        found = {id(layer): layer for layer in layers}
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if id(child) in found:
                    setattr(module, name, child.merged())
    model = _cast(model, BF16 if halves else None).eval()
    run = s.compile(model) if fused else model
    hours = np.arange(s.size(20_000, 200), dtype=np.float32)
    drawn = np.random.default_rng(0)
    waves = sum(
        drawn.uniform(0.1, 2.0, (1, gauges)) * np.sin(2 * math.pi * hours[:, None] / period + drawn.uniform(0, 6, (1, gauges)))
        for period in (12.42, 12.0, 23.93, 25.82)
    )
    levels = (waves + drawn.normal(0, 0.1, (len(hours), gauges))).astype(np.float32)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        at = 0
        while True:
            starts = (at + 24 * np.arange(batch)) % (len(levels) - past - ahead)
            windows = np.stack([levels[start : start + past + ahead].T for start in starts]).reshape(batch * gauges, -1)
            there = torch.from_numpy(windows).to(s.device)
            yield there[:, :past], there[:, past:]
            at += 24 * batch

    windows, seen = batches(), 0
    absolute, squared = ([0.0] * gauges for _ in range(2))
    sums = torch.zeros(2, gauges, device=s.device)

    @torch.no_grad()
    def step() -> Any:
        nonlocal seen
        _precision(way)
        x, y = next(windows)
        with _casting(s, way):
            error = (run(x) - y).view(batch, gauges, ahead)
        seen += 1
        if kept:
            sums.add_(torch.stack([error.abs().mean((0, 2)), error.square().mean((0, 2))]))
            return sums
        for gauge in range(gauges):
            absolute[gauge] += error[:, gauge].abs().mean().item()
            squared[gauge] += error[:, gauge].square().mean().item()
        return absolute, squared

    return step


PROGRAM = _public(
    "phi_tides",
    "Phi of transformers on patches of tides, tested under BF16 autocast on 16 x 7 series; DoRA's norms are made anew.",
    phi_tides,
    {},
    {
        "unmerged-adapters": {"merged": True},
        "dtype-casts": {"halves": True},
        "unfused-elementwise": {"fused": True},
        "sync-stall": {"kept": True},
        "unfused-attention": {"attention": SDPA},
        "precision/tf32": {"tf32": True},
    },
)
