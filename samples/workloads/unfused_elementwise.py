"""Programs that write big intermediate tensors to memory between pointwise operations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Setup, Step, Workload


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class LlamaPieces(nn.Module):
    """The pointwise parts of a Llama block, written out: RMSNorm, rotary embedding, SwiGLU, scaled residual."""

    def __init__(self, dim: int, hidden: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)
        half = dim // heads // 2
        angles = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cos", angles.cos()[:, None])
        self.register_buffer("sin", angles.sin()[:, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        query = self.query(_rms_norm(x, self.norm1)).view(batch, length, self.heads, dim // self.heads)
        x = x + 0.5 * self.out(_rotate(query, self.cos, self.sin).reshape(x.shape))
        y = _rms_norm(x, self.norm2)
        gate = self.gate(y)
        return x + 0.5 * self.down(gate * torch.sigmoid(gate) * self.up(y))


def _llama(s: Setup) -> tuple[nn.Module, Tensor]:
    dim, length = s.size(2048, 32), s.size(4096, 8)
    model = LlamaPieces(dim, s.size(5632, 64), s.size(16, 2), length).to(s.device, torch.bfloat16).eval()
    return model, torch.randn(s.size(8, 1), length, dim, device=s.device, dtype=torch.bfloat16)


def llama_slow(s: Setup) -> Step:
    model, x = _llama(s)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(x)

    return step


def llama_fixed(s: Setup) -> Step:
    model, x = _llama(s)
    compiled = s.compile(model)

    @torch.inference_mode()
    def step() -> Tensor:
        return compiled(x)

    return step


def focal_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Sigmoid focal loss with a smoothed target, as written down from the paper."""
    target = 0.9 * target + 0.05
    probability = torch.sigmoid(logits)
    entropy = -(target * torch.log(probability + 1e-6) + (1 - target) * torch.log(1 - probability + 1e-6))
    correct = probability * target + (1 - probability) * (1 - target)
    weight = 0.25 * target + 0.75 * (1 - target)
    return (weight * (1 - correct) ** 2 * entropy).mean()


def _segmentation(s: Setup) -> tuple[Tensor, Tensor]:
    shape = (s.size(8, 1), s.size(21, 3), s.size(512, 16), s.size(512, 16))
    return torch.randn(shape, device=s.device, requires_grad=True), (torch.rand(shape, device=s.device) > 0.9).float()


def focal_slow(s: Setup) -> Step:
    logits, target = _segmentation(s)

    def step() -> None:
        logits.grad = None
        focal_loss(logits, target).backward()

    return step


def focal_fixed(s: Setup) -> Step:
    logits, target = _segmentation(s)
    compiled = s.compile(focal_loss)

    def step() -> None:
        logits.grad = None
        compiled(logits, target).backward()

    return step


WORKLOADS = (
    Workload(
        name="llama_pieces", rule="unfused-elementwise", main=True, make_slow=llama_slow, make_fixed=llama_fixed,
        what="Prefill of a Llama-like block: RMSNorm, rotary embedding, SwiGLU and scaled residuals written out beside GEMMs.",
        fix="torch.compile",
        top=("unfused-elementwise", "unfused-norm"), gpu_bound=True,
    ),
    Workload(
        name="focal_loss", rule="unfused-elementwise", make_slow=focal_slow, make_fixed=focal_fixed,
        what="Forward and backward of a hand-written focal loss on 44 million logits.",
        fix="torch.compile the loss",
        gpu_bound=False,
    ),
)  # fmt: skip
