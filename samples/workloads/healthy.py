"""Programs with nothing to find."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Make, Prefetcher, Setup, Step, Workload
from .models import Block, VisionTransformer


def vit_training(s: Setup) -> Step:
    classes, side, batch = s.size(1000, 10), s.size(224, 32), s.size(128, 2)
    with s.device:
        model = VisionTransformer(s.size(1024, 32), s.size(16, 2), s.size(8, 1), classes).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.rand(batch, 3, side, side, device=s.device, dtype=torch.bfloat16)
    labels = torch.randint(classes, (batch,), device=s.device)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels)

    compiled = s.compile(loss_of)

    def step() -> None:
        optimizer.zero_grad()
        compiled(images, labels).backward()
        optimizer.step()

    return step


def gemm_loop(s: Setup) -> Step:
    side = s.size(8192, 32)
    a, b = (torch.randn(side, side, device=s.device, dtype=torch.bfloat16) / side**0.5 for _ in range(2))
    out = torch.empty_like(a)

    def step() -> None:
        for _ in range(8):
            torch.mm(a, b, out=out)

    return step


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def conv_training(s: Setup) -> Step:
    width, side, batch, classes = s.size(128, 4), s.size(128, 16), s.size(128, 2), s.size(100, 10)
    stages = [Residual(width << i, width << (i + 1), stride=2) for i in range(3)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width * 8, classes))
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *stages, *head)
    model.to(s.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    images = torch.rand(batch, 3, side, side, device=s.device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=s.device)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(s.device.type, torch.bfloat16):
            return F.cross_entropy(model(images), labels)

    compiled = s.compile(loss_of)

    def step() -> None:
        optimizer.zero_grad()
        compiled(images, labels).backward()
        optimizer.step()

    return step


def prefill_graphs(s: Setup) -> Step:
    dim = s.size(2048, 32)
    with s.device:
        model = nn.Sequential(*(Block(dim, s.size(16, 2), causal=True) for _ in range(s.size(4, 1)))).to(torch.bfloat16).eval()
    x = torch.randn(s.size(8, 1), s.size(2048, 8), dim, device=s.device, dtype=torch.bfloat16)
    compiled = s.compile(model, mode="reduce-overhead")

    @torch.inference_mode()
    def step() -> Tensor:
        return compiled(x)

    return step


def overlapped_input(s: Setup) -> Step:
    features, hidden = s.size(1280, 16), s.size(5120, 32)
    hidden_layers = (nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    model = nn.Sequential(*hidden_layers, nn.Linear(hidden, features))
    model.to(s.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [(s.pin(torch.randn(s.size(32768, 8), features).bfloat16()),) for _ in range(3)]
    loader = Prefetcher(batches, s)

    def loss_of(frames: Tensor) -> Tensor:
        return F.mse_loss(model(frames), frames)

    compiled = s.compile(loss_of)

    def step() -> None:
        (frames,) = loader.next()
        optimizer.zero_grad()
        compiled(frames).backward()
        optimizer.step()

    return step


def _control(make: Make, what: str) -> Workload:
    return Workload(name=make.__name__, rule=None, what=what, fix="none: control", make_fixed=make, gpu_bound=True)


WORKLOADS = (
    _control(vit_training, "Compiled bf16 vision-transformer training step, batch 128, fused AdamW."),
    _control(gemm_loop, "A loop of 8192 x 8192 bf16 matrix products."),
    _control(conv_training, "Compiled residual convolution training under bf16 autocast, channels_last, fused SGD."),
    _control(prefill_graphs, "Compiled causal-attention prefill of 16,384 tokens under CUDA graphs."),
    _control(overlapped_input, "Compiled autoencoder training fed from pinned memory on a side stream, one batch ahead."),
)
