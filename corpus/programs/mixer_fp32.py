"""MLP-Mixer-S of timm, training in FP32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _images, _timm, _workload, training


def classifier_training(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    images = _images(s, how, batch, side, tiny, how.dtype)
    labels = torch.randint(1000, (len(images),), device=s.device)
    return training(s, how, make(s), lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


MIXER = partial(classifier_training, lambda _: _timm("mixer_s16_224"), 64, 224, 224)


PROGRAM = _workload(
    "mixer_fp32",
    "MLP-Mixer-S of timm, training in FP32.",
    MIXER,
    How(),
    precision=How(autocast=BF16),
    precision__tf32=How(tf32=True),
    unfused_elementwise=How(compiled=COMPILED),
    optimizer_foreach=How(optimizer="fused"),
)
