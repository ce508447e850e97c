"""Programs whose matrix products read every weight for a row or two of input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload

DECODE_BATCH = 16
SERVE_BATCH = 256


class DecoderLinears(nn.Module):
    """The linear layers of one decoder block in the shapes of a 70B model (grouped keys and values left out)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.query(x))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def _infer(model: nn.Module, x: Tensor) -> Step:
    @torch.inference_mode()
    def step() -> Tensor:
        return model(x)

    return step


def _decode(s: Setup, batch: int) -> Step:
    dim, hidden = s.size(8192, 32), s.size(28672, 64)
    with s.device:
        model = nn.Sequential(*(DecoderLinears(dim, hidden) for _ in range(s.size(4, 1)))).to(torch.bfloat16).eval()
        return _infer(model, torch.randn(batch, dim, dtype=torch.bfloat16))


def decode_slow(s: Setup) -> Step:
    return _decode(s, batch=1)


def decode_fixed(s: Setup) -> Step:
    return _decode(s, batch=DECODE_BATCH)


def _serve(s: Setup, batch: int) -> Step:
    width = s.size(12288, 32)
    layers = [m for _ in range(s.size(6, 2)) for m in (nn.Linear(width, width, device=s.device, dtype=torch.float16), nn.ReLU())]
    return _infer(nn.Sequential(*layers).eval(), torch.randn(batch, width, device=s.device, dtype=torch.float16))


def serve_slow(s: Setup) -> Step:
    return _serve(s, batch=2)


def serve_fixed(s: Setup) -> Step:
    return _serve(s, batch=SERVE_BATCH)


WORKLOADS = (
    Workload(
        name="decode_batch1", rule="low-arithmetic-intensity", main=True, make_slow=decode_slow, make_fixed=decode_fixed,
        what="LLM decoding at batch 1: the bf16 linear layers of four 70B-sized blocks. fixed_ms is per request (step / 16).",
        fix="continuous batching: decode 16 requests together",
        requests=DECODE_BATCH,
        fixed_quiet=False,  # 16 rows reuse a weight 16 times; the ridge of an H200 lies near 200
    ),
    Workload(
        name="mlp_batch2", rule="low-arithmetic-intensity", make_slow=serve_slow, make_fixed=serve_fixed,
        what="fp16 MLP served at batch 2. fixed_ms is for two samples (step / 128).",
        fix="dynamic batching: collect 256 samples",
        requests=SERVE_BATCH / 2,
    ),
)  # fmt: skip
