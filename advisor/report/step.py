"""What the report says of a step: the ops and parts it is made of, its critical path, its rates, its work."""

from __future__ import annotations

from typing import Literal

import msgspec


class CategoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A TPU's HLO ops of a category, per step and core, times in µs. Rows sum to the core's work."""

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
    """Framework ops of the same name in the window, times in µs. `self` is without nested ops, `total` with them.

    Rates are of the kernels with known work, 0 without any.
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
"""Links of a critical path: a GPU op; launch latency from the call to the op's start on an idle stream; from an op's end to its dependent's start; from an
op's end to the return of the call that waited for it; host time of allocation, waiting for a batch, launching ops, or other CPU code.
"""
HOST_LINKS: frozenset[Link] = frozenset(("launch-delay", "return", "allocation", "data-loading", "dispatch", "host"))
"""Links that a faster GPU leaves as long as they are."""


class PathPart(msgspec.Struct, frozen=True):
    """All links of one kind on the critical path of the window. The parts sum to the path."""

    link: str
    total_us: float
    share: float
    count: int


class Rates(msgspec.Struct, frozen=True):
    """Hardware use, 0 to 1: of the peaks while the GPU works and over the step, and of the possible active warps. `known` is the share of the kernels' time
    with known work; None if a rate is unknown.
    """

    known: float
    flops_busy: float | None
    flops_step: float | None
    bytes_busy: float | None
    bytes_step: float | None
    active_warps: float | None
    basis: Literal["estimated", "measured"]


PartKind = Literal["compute", "communication", "copy", "memset", "idle"]


class Part(msgspec.Struct, frozen=True):
    """A distinct part of a step: a kernel of an op and a module, or idle time of a cause. Parts sum to the step."""

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
    """Work of a step on all devices, overlaps counted twice. Programs with different work are not the same."""

    kernels: float = 0.0
    kernel_us: float = 0.0
    copied_bytes: float = 0.0
    flops: float = 0.0
    """Of products and convolutions whose shapes were recorded, attention left out."""
    samples: float = 0.0
    """Samples or requests of a step, 0 if neither marks nor shapes say."""
    samples_from: str = ""
    """What said so."""
