"""PyTorch's example fast_neural_style with VGG-16, FP32, NCHW: both losses are read in each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _images, _precision, _public, _vision


class Padded(nn.Module):
    """A convolution of fast_neural_style: reflected edges, perhaps an enlargement before, perhaps a norm after."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, *, larger: bool = False, norm: bool = True, relu: bool = True) -> None:
        super().__init__()
        self.larger, self.relu = larger, relu
        self.pad, self.conv = nn.ReflectionPad2d(size // 2), nn.Conv2d(inputs, outputs, size, stride)
        self.norm = nn.InstanceNorm2d(outputs, affine=True) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, mode="nearest", scale_factor=2) if self.larger else x
        x = self.norm(self.conv(self.pad(x)))
        return F.relu(x) if self.relu else x


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = Padded(channels, channels, 3), Padded(channels, channels, 3, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + x  # type: ignore[no-any-return]


def _gram(x: Tensor) -> Tensor:
    rows = x.flatten(2)
    return rows.bmm(rows.transpose(1, 2)) / (rows.shape[1] * rows.shape[2])


def style_transfer(s: Setup, *, read: bool = True, **how: Any) -> Step:
    """PyTorch's example fast_neural_style: VGG-16 compares the picture made with the picture and with the style."""
    way, count = How(**how), s.size(4, 1)
    model: nn.Module = nn.Sequential(
        Padded(3, 32, 9), Padded(32, 64, 3, 2), Padded(64, 128, 3, 2), *(Residual(128) for _ in range(s.size(5, 1))),
        Padded(128, 64, 3, larger=True), Padded(64, 32, 3, larger=True), Padded(32, 3, 9, norm=False, relu=False),
    ).to(s.device)  # fmt: skip
    features: Any = _vision("vgg16", init_weights=False).features[:23].to(s.device).requires_grad_(False)  # type: ignore[index]
    if way.channels_last:
        model, features = model.to(memory_format=torch.channels_last), features.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images, style = 255 * _images(s, way, 4, 256, 32)[:count], 255 * _images(s, way, 4, 256, 32)[:1]
    sums = {"content": 0.0, "style": 0.0}

    def looked_at(x: Tensor) -> list[Tensor]:
        mean, std = x.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1), x.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
        x, seen = (x.div(255.0) - mean) / std, []
        for number, layer in enumerate(features):
            x = layer(x)
            if number in (3, 8, 15, 22):
                seen.append(x)
        return seen

    with torch.no_grad():
        wanted = [_gram(x) for x in looked_at(style)]

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way):
            made, true = looked_at(model(images)), looked_at(images)
            content = 1e5 * F.mse_loss(made[1], true[1])
            styled = 1e10 * torch.stack([F.mse_loss(_gram(x), gram.expand(count, -1, -1)) for x, gram in zip(made, wanted, strict=True)]).sum()
        (content + styled).backward()
        optimizer.step()
        if read:
            sums["content"] += content.item()
            sums["style"] += styled.item()

    return step


PROGRAM = _public(
    "style_transfer",
    "PyTorch's example fast_neural_style with VGG-16, FP32, NCHW: both losses are read in each step.",
    style_transfer,
    {},
    {"precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "sync-stall": {"read": False}},
)
