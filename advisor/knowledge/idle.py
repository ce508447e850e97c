"""Why a device idles: the causes that idle time is divided by, and what each is called."""

from __future__ import annotations

import msgspec


class IdleCause(msgspec.Struct, frozen=True):
    """name: the field of `report.recording.Idle`. title: for tables and charts. bound: the bottleneck's name if this cause is the largest. why: the end of
    "the device is idle ...". compared: the text in comparisons.
    """

    name: str
    title: str
    bound: str
    why: str
    compared: str


IDLE_CAUSES = (
    IdleCause("sync", "sync waits", "sync-bound", "after the host waited for it and had nothing queued", "the host waits for the GPU"),
    IdleCause("data_loading", "data loading", "data-bound", "waiting for the next batch", "waiting for a batch"),
    IdleCause("launch", "launch", "launch-bound", "waiting for the host to launch kernels", "waiting for launches"),
    IdleCause("allocator", "allocator", "allocator-bound", "while the host allocates or frees device memory", "allocating memory"),
    IdleCause("host", "CPU code", "host-bound", "while the CPU runs other code than kernel launches", "other CPU code"),
    IdleCause("dependency", "between queued ops", "dependency-bound", "between kernels that were already queued", "between queued ops"),
    IdleCause("profiler", "profiler", "profiler-bound", "while the profiler writes its own buffers", "profiler overhead"),
    IdleCause("unknown", "unknown cause", "idle", "for reasons the trace does not show", "cause not recorded"),
)
CAUSES = tuple(cause.name for cause in IDLE_CAUSES)
BY_NAME = {cause.name: cause for cause in IDLE_CAUSES}
