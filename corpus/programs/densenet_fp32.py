"""DenseNet-121 of torchvision, training in FP32 on 32 pictures, NCHW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _images, _vision, _workload, training


def classifier_training(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    images = _images(s, how, batch, side, tiny, how.dtype)
    labels = torch.randint(1000, (len(images),), device=s.device)
    return training(s, how, make(s), lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def _named(name: str) -> Callable[[Setup], Any]:
    return lambda _: _vision(name)


PROGRAM = _workload(
    "densenet_fp32",
    "DenseNet-121 of torchvision, training in FP32 on 32 pictures, NCHW.",
    partial(classifier_training, _named("densenet121"), 32, 224, 64),
    How(),
    precision=How(autocast=BF16),
    precision__tf32=How(tf32=True),
    memory_layout=How(channels_last=True),
    optimizer_foreach=How(optimizer="fused"),
)
