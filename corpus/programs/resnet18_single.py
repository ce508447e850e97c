"""ResNet-18 of torchvision on one image: launches are the bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from workloads.base import Setup, Step
from workloads.public import BF16, GRAPHS, How, _images, _vision, _workload, inference


def classifier_inference(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    return inference(s, how, make(s), (_images(s, how, batch, side, tiny, how.dtype),))


RESNET50, RESNET18, MOBILENET = (
    lambda s: _vision("resnet18" if s.tiny else "resnet50"),
    lambda _: _vision("resnet18"),
    lambda _: _vision("mobilenet_v3_small"),
)


PROGRAM = _workload(
    "resnet18_single",
    "ResNet-18 of torchvision on one image: launches are the bound.",
    partial(classifier_inference, RESNET18, 1, 224, 64),
    How(),
    launch_gap=How(compiled=GRAPHS),
    graph_candidate=How(graph=True),
    precision=How(autocast=BF16),
    memory_layout=How(channels_last=True),
)
