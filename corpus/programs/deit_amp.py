"""DeiT tiny of timm, training in bf16 autocast on 128 pictures."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _images, _timm, _workload, training


def classifier_training(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    images = _images(s, how, batch, side, tiny, how.dtype)
    labels = torch.randint(1000, (len(images),), device=s.device)
    return training(s, how, make(s), lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def deit(s: Setup, how: How) -> Step:
    return classifier_training(lambda s: _timm("deit_tiny_patch16_224", depth=s.size(6, 1), img_size=s.size(224, 64)), 128, 224, 64, s, how)


PROGRAM = _workload(
    "deit_amp",
    "DeiT tiny of timm, training in bf16 autocast on 128 pictures.",
    deit,
    How(autocast=BF16),
    unfused_elementwise=How(autocast=BF16, compiled=COMPILED),
    optimizer_foreach=How(autocast=BF16, optimizer="fused"),
    dtype_casts=How(dtype=BF16),
)
