"""How PyTorch spells its ops: `aten::add`, and `aten::add.Tensor` where the profiler is asked for overloads."""

from __future__ import annotations

import re

_OVERLOADED = re.compile(r"(?P<op>(?:[\w.]+::)+\w+)\.(?P<overload>\w+)")
"""A name in a namespace and what stands behind its last dot (torch/csrc/profiler/collection.cpp). Ranges like `Optimizer.step#SGD.step` have no namespace,
and that of DistributedDataParallel's `torch.distributed.ddp.reducer::` has dots of its own."""


def split_overload(name: str) -> tuple[str, str]:
    """The op by its normal name, and its overload, "" where none was recorded: one op, whatever the profiler was asked for."""
    found = _OVERLOADED.fullmatch(name)
    return (found["op"], found["overload"]) if found else (name, "")
