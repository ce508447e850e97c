"""Convolution programs whose tensors change layout in each step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in ((inputs, outputs), (outputs, outputs)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Two levels down, two up, skips by concatenation."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second, self.bottom = _double(3, width), _double(width, 2 * width), _double(2 * width, 4 * width)
        self.up2, self.up1 = (nn.ConvTranspose2d(n, n // 2, 2, stride=2) for n in (4 * width, 2 * width))
        self.third, self.fourth = _double(4 * width, 2 * width), _double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        y = self.up2(self.bottom(F.max_pool2d(b, 2)))
        y = self.third(torch.cat([b, y], 1))
        return self.head(self.fourth(torch.cat([a, self.up1(y)], 1)))


def _segmentation(s: Setup, layout: torch.memory_format) -> Step:
    side, batch, classes = s.size(256, 16), s.size(32, 2), s.size(21, 3)
    model = UNet(s.size(64, 4), classes).to(s.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.rand(batch, 3, side, side, device=s.device).contiguous(memory_format=layout)
    labels = torch.randint(classes, (batch, side, side), device=s.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(s.device.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def segmentation_slow(s: Setup) -> Step:
    return _segmentation(s, torch.contiguous_format)


def segmentation_fixed(s: Setup) -> Step:
    return _segmentation(s, torch.channels_last)


class PermutingBlock(nn.Module):
    """ConvNeXt block whose norm and MLP want the channels last, as many repositories write it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(dim, dim, 3, padding=1, groups=dim // 32 or 1)
        self.norm, self.mlp = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x).permute(0, 2, 3, 1).contiguous()
        return x + self.mlp(self.norm(y)).permute(0, 3, 1, 2).contiguous()


class Block(PermutingBlock):
    """The same on channels_last tensors: a permute only renames axes."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x).permute(0, 2, 3, 1)
        return x + self.mlp(self.norm(y)).permute(0, 3, 1, 2)


def _backbone(s: Setup, block: type[PermutingBlock], layout: torch.memory_format) -> Step:
    dim, side = s.size(256, 8), s.size(56, 4)
    model = nn.Sequential(*(block(dim) for _ in range(s.size(6, 2)))).to(s.device, torch.bfloat16, memory_format=layout).eval()
    x = torch.rand(s.size(64, 2), dim, side, side, device=s.device, dtype=torch.bfloat16).contiguous(memory_format=layout)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(x)

    return step


def backbone_slow(s: Setup) -> Step:
    return _backbone(s, PermutingBlock, torch.contiguous_format)


def backbone_fixed(s: Setup) -> Step:
    return _backbone(s, Block, torch.channels_last)


WORKLOADS = (
    Workload(
        name="unet_training", rule="memory-layout", main=True, make_slow=segmentation_slow, make_fixed=segmentation_fixed,
        what="U-Net segmentation training in NCHW under bf16 autocast: cuDNN turns every tensor before and after each convolution.",
        fix="channels_last for model and input",
        gpu_bound=True,
    ),
    Workload(
        name="permuted_backbone", rule="memory-layout", make_slow=backbone_slow, make_fixed=backbone_fixed,
        what="ConvNeXt-like blocks in NCHW that permute to channels last and back, with .contiguous(), around norm and MLP.",
        fix="channels_last: the permutes are free, the convolutions convert nothing",
        top=("memory-layout", "unfused-elementwise"), gpu_bound=True,
    ),
)  # fmt: skip
