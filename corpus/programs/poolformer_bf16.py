"""PoolFormer-S12 of timm, bf16: group norms, which take NCHW alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _images, _timm, _vision, _workload, inference


def classifier_inference(make: Callable[[Setup], nn.Module], batch: int, side: int, tiny: int, s: Setup, how: How) -> Step:
    return inference(s, how, make(s), (_images(s, how, batch, side, tiny, how.dtype),))


def _infer(batch: int, name: str, timm: bool = False) -> Any:
    return partial(classifier_inference, lambda _: (_timm if timm else _vision)(name), batch, 224, 64)


PROGRAM = _workload(
    "poolformer_bf16",
    "PoolFormer-S12 of timm, bf16: group norms, which take NCHW alone.",
    _infer(64, "poolformer_s12", True),
    How(dtype=BF16),
    unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
    memory_layout=How(dtype=BF16, channels_last=True),
)
