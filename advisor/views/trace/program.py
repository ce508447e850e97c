"""What kind of program was traced, as its ops, ranges and kernels tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from advisor.timeline import Timeline
from advisor.views.trace.ops import Ops

_BACKWARD = re.compile(r"autograd::engine|Backward\d*$|Optimizer\.")
# Where neither ops nor optimizer ranges were recorded, kernels tell.
_TRAINING_KERNEL = re.compile(r"[Bb]ackward|_bwd|wgrad|dgrad|multi_tensor_apply|[Aa]dam")
_COMPILED = re.compile(r"CompiledFxGraph|Torch-Compiled")
_JAX = re.compile(r"PjitFunction\(|PjRt\w*Executable::|GpuExecutable::ExecuteThunks|XlaModule:")


@dataclass(frozen=True)
class Program:
    """training: it computes gradients or updates parameters. compiled: torch.compile made parts of it. framework: whose functions
    launch its work, and so in whose terms fixes are said."""

    training: bool
    compiled: bool
    framework: Literal["torch", "jax"] = "torch"

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops) -> Program:
        ranges = timeline.annotations["name"].cat.categories
        return cls(
            training=any(_BACKWARD.search(name) for name in (*ops.categories, *ranges))
            or any(_TRAINING_KERNEL.search(name) for name in timeline.gpu_ops["name"].cat.categories),
            compiled=any(_COMPILED.search(name) for name in ranges),
            framework="jax" if any(_JAX.match(name) for name in (*ops.categories, *ranges)) else "torch",
        )
