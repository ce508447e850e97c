"""What the report says of a step: the ops and parts it is made of, its critical path, its rates, its work."""

from __future__ import annotations

from typing import Literal

import msgspec


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A TPU's HLO ops of one category, a step of one core, times in µs. Rows sum to what a core works."""

    name: str
    kind: Literal["compute", "communication", "copy"]
    calls: float
    us: float
    """Its own, without the ops inside of it."""
    share: float
    """Of the step."""
    beside_us: float = 0.0
    """Of asynchronous ops, from start to end, whether or not the core waited."""
    gbps: float = 0.0
    tflops: float = 0.0


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """Framework ops of one name in the window, times in µs. `self` is without the ops inside of it, `total` with them.

    Rates are of the kernels whose work is known, 0 if none is.
    """

    name: str
    calls: int
    kernels: int = 0
    """GPU ops that it launched itself."""
    gpu_self_us: float = 0.0
    gpu_total_us: float = 0.0
    host_self_us: float = 0.0
    host_total_us: float = 0.0
    allocated_bytes: int = 0
    """Device memory that it asked for itself, where memory was recorded."""
    share: float = 0.0
    """Of the GPU's busy time, of what it launched itself."""
    gbps: float = 0.0
    tflops: float = 0.0


Link = Literal["kernel", "copy", "launch-delay", "kernel-to-kernel", "return", "allocation", "data-loading", "dispatch", "host"]
"""What a critical path is made of: a GPU op; from the launching call to the op's start on an idle stream; from the op it waited for to
its start; from the end of an op to the return of the call that waited for it; the host allocating, waiting for a batch, issuing ops, or at
work of its own."""
HOST_LINKS: frozenset[Link] = frozenset(("launch-delay", "return", "allocation", "data-loading", "dispatch", "host"))
"""Links that a faster GPU leaves as long as they are."""


class PathPart(msgspec.Struct, frozen=True):
    """All links of one kind on the critical path of the window. The parts sum to the path."""

    link: str
    total_us: float
    share: float
    count: int


class Rates(msgspec.Struct, frozen=True):
    """Use of the hardware, 0 to 1: of the peaks while the GPU works and over the step, and of the warps that could be active.
    `known` is the share of the kernels' time whose work is known; None if a rate is not."""

    known: float
    flops_busy: float | None
    flops_step: float | None
    bytes_busy: float | None
    bytes_step: float | None
    active_warps: float | None
    basis: Literal["estimated", "measured"]


PartKind = Literal["compute", "communication", "copy", "memset", "idle"]


class Part(msgspec.Struct, frozen=True):
    """A part of one step that no other part holds: a kernel of an op and a module, or idleness of one cause. Parts sum to the step."""

    kind: PartKind
    name: str
    """The kernel, or the cause of idleness."""
    family: str = ""
    op: str = ""
    module: str = ""
    shapes: str = ""
    """Of the first call, as recorded."""
    calls: float = 0.0
    us: float = 0.0


class Work(msgspec.Struct, frozen=True):
    """What one step does, on all devices, overlaps counted twice. Two programs that differ in it are not the same work."""

    kernels: float = 0.0
    kernel_us: float = 0.0
    copied_bytes: float = 0.0
    flops: float = 0.0
    """Of products and convolutions whose shapes were recorded, attention left out."""
    samples: float = 0.0
    """Samples or requests of a step, 0 if neither marks nor shapes say."""
    samples_from: str = ""
    """What said so."""
