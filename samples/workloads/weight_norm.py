"""Vocoders and codecs of sound that norm their weights in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from .base import Make, Setup, Step, Workload
from .public import How, inference


def fold(model: nn.Module) -> None:
    """Every normed weight of the model as it is now, computed once."""
    for layer in model.modules():
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight")


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


def encodec(s: Setup, *, batch: int = 1, plain_weights: bool = False, sizes_on_host: bool = False, **how: Any) -> Step:
    """A second of sound to codes and back. Weights are normed in each call; sizes of the padding are buffers of the model."""
    from torch.nn.utils import parametrize
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(EncodecConfig(num_filters=s.size(32, 4), hidden_size=s.size(128, 32), codebook_dim=s.size(128, 32), codebook_size=s.size(1024, 16)))
    sound = torch.randn(s.size(batch, 1), 1, s.size(24_000, 1600), device=s.device)
    for name, buffer in model.named_buffers():
        if name.endswith("codebook.embed"):
            buffer.normal_()
    for module in model.modules():
        if plain_weights and parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    step = inference(s, How(**how), model, {"input_values": sound, "bandwidth": 6.0})  # type: ignore[dict-item]
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if sizes_on_host and name in ("stride", "kernel_size", "padding_total"):
                setattr(module, name, buffer.cpu())
    return step


class Gate(nn.Module):
    """One dilated layer of a WaveNet that hears the bands too."""

    def __init__(self, width: int, bands: int, dilation: int) -> None:
        super().__init__()
        self.hear = weight_norm(nn.Conv1d(width, 2 * width, 3, dilation=dilation, padding=dilation))
        self.bands = weight_norm(nn.Conv1d(bands, 2 * width, 1))
        self.leave = weight_norm(nn.Conv1d(width, 2 * width, 1))

    def forward(self, x: Tensor, bands: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = (self.hear(x) + self.bands(bands)).chunk(2, 1)
        stay, skip = self.leave(torch.tanh(value) * torch.sigmoid(gate)).chunk(2, 1)
        return x + stay, skip


class WaveNet(nn.Module):
    """A parallel vocoder: noise becomes sound, as the bands say."""

    def __init__(self, width: int, bands: int, layers: int) -> None:
        super().__init__()
        self.enter = weight_norm(nn.Conv1d(1, width, 1))
        self.gates = nn.ModuleList(Gate(width, bands, 2 ** (layer % 10)) for layer in range(layers))
        self.last = nn.Sequential(nn.ReLU(), weight_norm(nn.Conv1d(width, width, 1)), nn.ReLU(), weight_norm(nn.Conv1d(width, 1, 1)))

    def forward(self, noise: Tensor, bands: Tensor) -> Tensor:
        x, skips = self.enter(noise), 0.0
        for gate in self.gates:
            x, skip = gate(x, bands)
            skips = skips + skip
        return self.last(skips)


def _spoken(make: Callable[[Setup], tuple[nn.Module, tuple[Tensor, ...]]], folded: bool) -> Make:
    def of(s: Setup) -> Step:
        model, inputs = make(s)
        model.to(s.device).eval()
        if folded:
            fold(model)
        here = [tensor.to(s.device) for tensor in inputs]

        @torch.inference_mode()
        def step() -> Any:
            torch.set_float32_matmul_precision("high")
            return model(*here)

        return step

    return of


def _phrase(s: Setup) -> tuple[nn.Module, tuple[Tensor, ...]]:
    samples, bands = s.size(12_000, 64), s.size(80, 8)
    at_rate = F.interpolate(torch.randn(1, bands, samples // 8), size=samples)
    return WaveNet(s.size(64, 8), bands, s.size(30, 2)), (torch.randn(1, 1, samples), at_rate)


def _sentences(s: Setup) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Voice(s.size(512, 16), (8, 8, 2, 2) if not s.tiny else (2, 2)), (torch.randn(s.size(24, 1), 80, s.size(256, 4)),)


WORKLOADS = (
    Workload(
        name="wavenet_norms", rule="weight-norm", main=True, severity="low", top=("launch-gap", "graph-candidate"),
        make_slow=_spoken(_phrase, False), make_fixed=_spoken(_phrase, True),
        what="A WaveNet vocoder of 30 layers makes half a second of sound; 93 weights are normed in each call.",
        fix="remove_parametrizations(layer, 'weight') once",
    ),
    Workload(
        name="encodec_norms", rule="weight-norm", severity="low", top=("launch-gap", "graph-candidate", "sync-stall"),
        make_slow=encodec, make_fixed=lambda s: encodec(s, plain_weights=True),
        what="EnCodec of transformers, FP32, one second of sound to codes and back; 36 weights are normed in each call.",
        fix="remove_parametrizations(layer, 'weight') once",
    ),
    Workload(
        name="norms_behind_gpu", rule="weight-norm", trap=True, make_slow=_spoken(_sentences, False), make_fixed=_spoken(_sentences, True),
        what="HiFi-GAN's generator on 24 sentences at once, which the GPU bounds; 78 weights are normed in each call.",
        fix="none worth making: the GPU is never waited for",
        gpu_bound=True,
    ),
)  # fmt: skip
