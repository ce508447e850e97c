"""Kinds of devices, by the calls that drive them and by what their profilers write: how torch records each, and waits for it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from advisor.knowledge.expressions import expression
from advisor.knowledge.how_to_record import RECORD_BOTH


class Accelerator(msgspec.Struct, frozen=True):
    """name: as torch calls devices of the kind. record: how its work is recorded next to the host's. wait: the call that waits for it.
    of_cuda: whether CUDA's tools are its own, ROCm's under CUDA's names among them."""

    name: str
    record: str
    wait: str
    of_cuda: bool = False


def _by_activity(name: str, module: str) -> Accelerator:
    return Accelerator(name, f"profile(activities=[ProfilerActivity.CPU, ProfilerActivity.{name}])", f"torch.{module}.synchronize()")


CUDA = Accelerator("CUDA", RECORD_BOTH.text, "torch.cuda.synchronize()", of_cuda=True)
XPU = _by_activity("XPU", "xpu")
NPU = Accelerator("NPU", "MindStudio Insight or msprof-analyze, which read traces of NPUs", "torch.npu.synchronize()")
HPU = _by_activity("HPU", "hpu")
MTIA = _by_activity("MTIA", "mtia")
OTHER = _by_activity("PrivateUse1", "accelerator")
"""A device of a backend of its own: torch knows it by no name but this."""

_TOLD_BY: tuple[tuple[Accelerator, re.Pattern[str]], ...] = (
    (CUDA, expression(r"^(cuda|cu|hip)[A-Z]")),
    (XPU, expression(r"^(ur|pi|piext|ze|zes|cl|sycl)[A-Z]|(?i:\b(xpu|level.zero|sycl)\b)")),
    (NPU, expression(r"^(acl(rt|nn|op)?[A-Z]|AscendCL|Enqueue@|Dequeue@)|\b(Ascend|CANN|NPU)\b")),
    (HPU, expression(r"^syn[A-Z]|(?i:\b(hpu|habana|gaudi)\b)")),
    (MTIA, expression(r"(?i:\bmtia\b)|^runFunction - job_prep")),
)


def accelerator(names: Iterable[str]) -> Accelerator | None:
    """Which kind of device calls of these names drive, or spans of these names are of; None if none tells."""
    names = list(names)
    return next((kind for kind, pattern in _TOLD_BY if any(map(pattern.search, names))), None)
