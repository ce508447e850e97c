"""Programs that cast the same tensors in each step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Setup, Step, Workload
from .models import Attention


def _serving(s: Setup, dtype: torch.dtype, rows: int, layers: int, dim: int) -> Step:
    model = nn.Sequential(*(nn.Linear(dim, dim) for _ in range(layers))).to(s.device, dtype).eval()
    x = torch.randn(rows, dim, device=s.device, dtype=dtype)

    @torch.inference_mode()
    def step() -> Tensor:
        with torch.autocast(s.device.type, torch.bfloat16, enabled=dtype == torch.float32):
            return model(x)

    return step


def serving_slow(s: Setup) -> Step:
    return _serving(s, torch.float32, s.size(64, 2), s.size(12, 2), s.size(8192, 16))


def serving_fixed(s: Setup) -> Step:
    return _serving(s, torch.bfloat16, s.size(64, 2), s.size(12, 2), s.size(8192, 16))


class Fp32LayerNorm(nn.LayerNorm):
    """As CLIP and many after it have it: the norm of a 16-bit model in FP32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class Block(nn.Module):
    """Pre-norm transformer block with norms of a given class."""

    def __init__(self, dim: int, heads: int, norm: type[nn.LayerNorm]) -> None:
        super().__init__()
        self.norm1, self.norm2 = (norm(dim) for _ in range(2))
        self.attention = Attention(dim, heads).to(torch.bfloat16)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _tower(s: Setup, norm: type[nn.LayerNorm], dtype: torch.dtype) -> Step:
    dim, heads = s.size(768, 16), s.size(12, 2)
    model = nn.Sequential(*(Block(dim, heads, norm) for _ in range(s.size(4, 1)))).to(s.device).eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.to(dtype)
    x = torch.randn(s.size(256, 2), s.size(256, 4), dim, device=s.device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(x)

    return step


def tower_slow(s: Setup) -> Step:
    return _tower(s, Fp32LayerNorm, torch.float32)


def tower_fixed(s: Setup) -> Step:
    return _tower(s, nn.LayerNorm, torch.bfloat16)


def large_batch_slow(s: Setup) -> Step:
    return _serving(s, torch.float32, s.size(32768, 4), s.size(6, 2), s.size(4096, 16))


def large_batch_fixed(s: Setup) -> Step:
    return _serving(s, torch.bfloat16, s.size(32768, 4), s.size(6, 2), s.size(4096, 16))


WORKLOADS = (
    Workload(
        name="autocast_serving", rule="dtype-casts", main=True, make_slow=serving_slow, make_fixed=serving_fixed,
        what="FP32 model served under bf16 autocast, 64 rows: each step casts every weight for one product.",
        fix="bf16 weights, no autocast",
        gpu_bound=True, with_stack=True,
    ),
    Workload(
        name="fp32_norms", rule="dtype-casts", make_slow=tower_slow, make_fixed=tower_fixed,
        what="CLIP-like vision tower in bf16 whose LayerNorms cast to FP32 and back.",
        fix="LayerNorm on bf16: it computes in FP32 inside",
        top=("dtype-casts", "unfused-elementwise"), gpu_bound=True,
    ),
    Workload(
        name="autocast_large_batch", rule="dtype-casts", trap=True, make_slow=large_batch_slow, make_fixed=large_batch_fixed,
        what="FP32 model under bf16 autocast on 32768 rows: weights are cast each step, but the products take all the time.",
        fix="bf16 weights: gains next to nothing",
        gpu_bound=True,
    ),
)  # fmt: skip
