"""Programs that multiply in FP32 where 16 bits would do."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload
from .models import Block


def _language_model(s: Setup, half: bool) -> Step:
    dim, words, batch, length = s.size(1024, 32), s.size(16384, 64), s.size(8, 2), s.size(1024, 8)
    with s.device:
        blocks = nn.Sequential(*(Block(dim, s.size(16, 2), causal=True) for _ in range(s.size(4, 1))))
        model = nn.Sequential(nn.Embedding(words, dim), blocks, nn.Linear(dim, words))
        tokens = torch.randint(words, (batch, length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def context() -> AbstractContextManager[object]:
        return torch.autocast(s.device.type, torch.bfloat16) if half else nullcontext()

    def step() -> None:
        optimizer.zero_grad()
        with context():
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


def language_model_slow(s: Setup) -> Step:
    return _language_model(s, half=False)


def language_model_fixed(s: Setup) -> Step:
    return _language_model(s, half=True)


class SuperResolution(nn.Module):
    """Convolutions of one width, a pixel shuffle at the end."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def _super_resolution(s: Setup, dtype: torch.dtype) -> Step:
    torch.backends.cudnn.allow_tf32 = False  # as torch.backends.fp32_precision = "ieee" and older model code have it
    width, side = s.size(128, 8), s.size(256, 16)
    model = SuperResolution(width, s.size(8, 2)).to(s.device, dtype, memory_format=torch.channels_last).eval()
    images = torch.rand(s.size(8, 1), 3, side, side, device=s.device, dtype=dtype).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(images)

    return step


def super_resolution_slow(s: Setup) -> Step:
    return _super_resolution(s, torch.float32)


def super_resolution_fixed(s: Setup) -> Step:
    return _super_resolution(s, torch.bfloat16)


WORKLOADS = (
    Workload(
        name="language_model_fp32", rule="precision", main=True, make_slow=language_model_slow, make_fixed=language_model_fixed,
        what="GPT training step in FP32 with TF32 off, the default for matrix products.",
        fix="torch.autocast(bfloat16)",
        gpu_bound=True,
    ),
    Workload(
        name="super_resolution_fp32", rule="precision", make_slow=super_resolution_slow, make_fixed=super_resolution_fixed,
        what="Image super-resolution inference: 3 x 3 convolutions in FP32 without TF32, channels_last.",
        fix="bf16 weights and input",
        gpu_bound=True,
    ),
)  # fmt: skip
