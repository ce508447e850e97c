"""Programs that write norms and softmaxes out where PyTorch has one op."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload

EPS = 1e-6


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As many model files have it: in FP32, back to the input's type, scaled."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


def _rms_norm_op(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


class GatedMlp(nn.Module):
    """Pre-norm MLP; the norm is handed in."""

    def __init__(self, dim: int, norm: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.normalize = nn.Parameter(torch.ones(dim)), norm
        self.up, self.down = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.up(self.normalize(x, self.weight))))


def _training(s: Setup, norm: Callable[[Tensor, Tensor], Tensor]) -> Step:
    dim = s.size(2048, 32)
    model = nn.Sequential(*(GatedMlp(dim, norm) for _ in range(s.size(6, 2)))).to(s.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(s.size(16, 2), s.size(1024, 8), dim, device=s.device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()

    return step


def rms_training_slow(s: Setup) -> Step:
    return _training(s, _rms_norm)


def rms_training_fixed(s: Setup) -> Step:
    return _training(s, _rms_norm_op)


class LayerNorm(nn.Module):
    """The norm of the Annotated Transformer, with the variance under the root."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.scale * (x - mean) / torch.sqrt(variance + EPS) + self.shift


def _softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _tagger(s: Setup, norm: type[nn.Module], softmax: Callable[[Tensor], Tensor]) -> Step:
    dim, tags = s.size(1024, 32), s.size(8192, 64)
    layers: list[nn.Module] = []
    for _ in range(s.size(4, 1)):
        layers += [norm(dim), nn.Linear(dim, dim), nn.GELU()]
    model = nn.Sequential(*layers, norm(dim), nn.Linear(dim, tags)).to(s.device, torch.float16).eval()
    x = torch.randn(s.size(64, 2), s.size(512, 8), dim, device=s.device, dtype=torch.float16)

    @torch.inference_mode()
    def step() -> Tensor:
        return softmax(model(x))

    return step


def tagger_slow(s: Setup) -> Step:
    return _tagger(s, LayerNorm, _softmax)


def tagger_fixed(s: Setup) -> Step:
    return _tagger(s, nn.LayerNorm, lambda x: torch.softmax(x, -1))


def _one_type(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), EPS)


def _mixed(s: Setup, norm: Callable[[Tensor, Tensor], Tensor]) -> Step:
    """Weights stay in FP32, as autocast leaves them; what lies between the layers is bf16."""
    dim = s.size(2048, 32)
    model = nn.Sequential(*(GatedMlp(dim, norm) for _ in range(s.size(6, 2)))).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(s.size(16, 2), s.size(1024, 8), dim, device=s.device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.bfloat16):
            loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()

    return step


def rms_types_slow(s: Setup) -> Step:
    return _mixed(s, _rms_norm_op)


def rms_types_fixed(s: Setup) -> Step:
    return _mixed(s, _one_type)


WORKLOADS = (
    Workload(
        name="rmsnorm_training", rule="unfused-norm", main=True, make_slow=rms_training_slow, make_fixed=rms_training_fixed,
        what="Training of gated MLPs in bf16 whose RMSNorm is written out in FP32, forward and backward.",
        fix="torch.nn.functional.rms_norm",
        top=("unfused-norm", "unfused-elementwise"), gpu_bound=True,
    ),
    Workload(
        name="tagger_infer", rule="unfused-norm", make_slow=tagger_slow, make_fixed=tagger_fixed,
        what="fp16 tagger over 32,768 tokens: LayerNorm as the Annotated Transformer writes it, softmax over 8192 tags by hand.",
        fix="nn.LayerNorm, torch.softmax",
        top=("unfused-norm", "unfused-elementwise"), gpu_bound=True,
    ),
    Workload(
        name="rms_types", rule="unfused-norm", make_slow=rms_types_slow, make_fixed=rms_types_fixed,
        what="Training of gated MLPs in bf16 autocast: F.rms_norm has weights in FP32, and runs as eight kernels.",
        fix="torch.nn.functional.rms_norm with weight.to(x.dtype)",
        top=("unfused-norm", "unfused-elementwise", "dtype-casts"), gpu_bound=True,
    ),
)  # fmt: skip
