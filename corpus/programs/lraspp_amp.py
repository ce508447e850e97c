"""LR-ASPP of torchvision on MobileNetV3, training in bf16 autocast on 16 pictures of 320, NCHW."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, How, _images, _Output, _vision, _workload, training


def lraspp(s: Setup, how: How) -> Step:
    model = _Output(_vision("lraspp_mobilenet_v3_large", weights_backbone=None))
    images = _images(s, how, 16, 320, dtype=how.dtype)
    labels = torch.randint(21, (images.shape[0], *images.shape[2:]), device=s.device)
    return training(s, how, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


PROGRAM = _workload(
    "lraspp_amp",
    "LR-ASPP of torchvision on MobileNetV3, training in bf16 autocast on 16 pictures of 320, NCHW.",
    lraspp,
    How(autocast=BF16),
    memory_layout=How(autocast=BF16, channels_last=True),
    optimizer_foreach=How(autocast=BF16, optimizer="fused"),
    dtype_casts=How(dtype=BF16),
)
