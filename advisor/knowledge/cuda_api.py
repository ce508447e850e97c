"""What runtime and driver calls do, by name: the one home of those names. Those of CUDA and HIP; of others what launches."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from advisor.knowledge.expressions import expression


class ApiRole(str, Enum):
    """What a call means for a timeline."""

    LAUNCH = "launch"
    GRAPH_LAUNCH = "graph launch"
    COPY = "copy"
    MEMSET = "memset"
    SYNC = "sync"
    """Blocks the host until GPU work is done."""
    ALLOCATION = "allocation"
    EVENT = "event"
    OTHER = "other"


# nsys writes cudaLaunchKernel_v7000; per-thread default streams add _ptsz or _ptds.
_SUFFIX_LENGTH = 32
_SUFFIX = expression(r"(_v\d{1,9}|_ptsz|_ptds|_spt){1,4}$")
_PATTERNS: tuple[tuple[ApiRole, re.Pattern[str]], ...] = tuple(
    (role, expression(pattern))
    for role, pattern in (
        (ApiRole.GRAPH_LAUNCH, r"(cuda|cu|hip)GraphLaunch$"),
        (ApiRole.LAUNCH, r"(cuda|cu|hip)(Ext|Module|Cooperative|Hcc)*Launch(Cooperative|Multi)?(Kernel|Grid|HostFunc|ByPtr|$)"),
        (ApiRole.SYNC, r"(cuda|cu|hip)(Device|Stream|Event|Ctx|Context)Synchronize$"),
        # SYCL's (Unified Runtime, its plugins before) and Level Zero beneath it, OpenCL.
        (ApiRole.GRAPH_LAUNCH, r"ur(EnqueueCommandBuffer|CommandBufferEnqueue)(Exp)?$"),
        (ApiRole.LAUNCH, r"(ur|pi|piext)Enqueue(Cooperative)?KernelLaunch|zeCommandListAppendLaunch|clEnqueue(NDRangeKernel|Task)$"),
        # CANN, and what is modelled on CUDA's: musaLaunchKernel, cnrtLaunchKernel, mcLaunchKernel.
        (ApiRole.LAUNCH, r"acl(rt)?LaunchKernel|aclopExecute|aclnn[A-Z]\w*$|(musa|mu|mc|cnrt|cn)(Module|Invoke|Ext)*(Launch)?Kernel"),
        # MTIA's runtime.
        (ApiRole.LAUNCH, r"runFunction - job_prep_and_submit_for_execution$"),
        (ApiRole.SYNC, r"synchronizeStream$"),
        (ApiRole.COPY, r"enqueueCommand memcpy"),
        (ApiRole.EVENT, r"recordEvent$|enqueueCommand waitOnEvent$"),
        # What stops the host in a program of JAX, whose runtime polls instead of calling the driver.
        (ApiRole.SYNC, r"np\.asarray\(jax\.Array\)$|jax\.Array\."),
        (ApiRole.COPY, r"(cuda|cu|hip)Memcpy(?!.*(Prefetch|Advise))"),
        (ApiRole.MEMSET, r"(cuda|cu|hip)Memset"),
        (
            ApiRole.ALLOCATION,
            r"(cuda|cu|hip)(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister|MemAlloc|MemFree|MemCreate"
            r"|MemMap|MemUnmap|MemRelease|MemSetAccess|MemAddressReserve|MemAddressFree|MemHostAlloc|MemFreeHost|FreeHost"
            r"|MallocHost|ExtMallocWithFlags)",
        ),
        (ApiRole.EVENT, r"(cuda|cu|hip)(Event|StreamWaitEvent)"),
    )
)


WAITS_IN_THE_RUNTIME = expression(r"^[a-z]+[A-Z]\w*Synchronize|synchronizeStream$")
"""Calls that return as soon as the device has finished. Unlike a range of JAX they include no code of the program."""

FREES = expression(r"^(cudaFree|hipFree|cuMemFree)(_v\d+|_ptsz|_ptds)*$")
"""Calls that give memory back at once, for which the device must be idle: they wait for it."""

BEGINS_CAPTURE, ENDS_CAPTURE = (expression(rf"^(cuda|cu|hip)Stream{side}Capture") for side in ("Begin", "End"))
"""Between them, launches add nodes to a graph and run nothing."""

HOST_NODE = expression(r"LaunchHostFunc")
"""A launch of the host's own code, which no device runs."""

ASYNCHRONOUS = expression(r"Async\b|Async_")
"""Calls that queue a copy and return, where the device reaches both ends of it: of pageable memory they copy on the host."""

RETURNS = expression(r"Free|Release|Unmap")
"""Calls that give memory back, of whichever kind."""


def plain(name: str) -> str:
    """A call's name without the version and the per-thread suffixes that nsys keeps."""
    # Of the end alone: over a long name of nothing but suffixes the pattern would be quadratic.
    return name[:-_SUFFIX_LENGTH] + _SUFFIX.sub("", name[-_SUFFIX_LENGTH:])


@lru_cache(maxsize=4096)
def role(name: str) -> ApiRole:
    """The role of a runtime or driver call, by its name."""
    name = plain(name)
    return next((r for r, pattern in _PATTERNS if pattern.match(name)), ApiRole.OTHER)
