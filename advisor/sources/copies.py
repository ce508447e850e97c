"""Direction and memory kinds of a recorded copy."""

from __future__ import annotations

import re
from functools import lru_cache

from advisor.recordings.timeline import CopyKind, MemoryKind

# "Memcpy HtoD (Pageable -> Device)"
_CUPTI = re.compile(r"Memcpy\s+(\w+)(?:\s*\((.+?)\s*->\s*(.+?)\))?")
# roctracer's own names: CopyHostToDevice, hipMemcpyDeviceToHost; MTIA's: HOST_TO_DEVICE
_ROCM = re.compile(r"(Host|Device|Peer)_?To_?(Host|Device|Peer)", re.IGNORECASE)

_COPY = {kind.value.lower(): kind for kind in CopyKind}
# Arrays are memory of the device.
_COPY |= {"htoa": CopyKind.HTOD, "atoh": CopyKind.DTOH, "atoa": CopyKind.DTOD, "atod": CopyKind.DTOD, "dtoa": CopyKind.DTOD}
_COPY |= {"p2p": CopyKind.PTOP, "peertopeer": CopyKind.PTOP}

_MEMORY = {kind.value: kind for kind in MemoryKind}
_MEMORY |= {"device static": MemoryKind.DEVICE, "managed static": MemoryKind.MANAGED}


@lru_cache(maxsize=4096)
def describe_copy(name: str, kind: str = "", src: str = "", dst: str = "") -> tuple[str, str, str]:
    """Direction (a CopyKind's value) and the source's and destination's MemoryKind values of a copy.

    They come from its arguments if present (`kind`, `src`, `dst`), else from its name; "" if they were not recorded.
    "Host" counts as not recorded: ROCm does not show whether the host's memory is pinned."""
    match = _CUPTI.match(name)
    if match:
        kind, src, dst = kind or match[1], src or match[2] or "", dst or match[3] or ""
    elif rocm := _ROCM.search(name):
        kind = kind or f"{rocm[1][0]}to{rocm[2][0]}"
    copy = _COPY.get(kind.lower(), CopyKind.UNKNOWN)
    return copy.value, memory_kind(src), memory_kind(dst)


def memory_kind(text: str) -> str:
    """The MemoryKind value of a trace's name for a kind of memory, upper or lower case."""
    return _MEMORY.get(text.strip().lower().replace("_", " "), MemoryKind.UNKNOWN).value


BARE = "Memcpy"
"""A copy as torch 2.15's CUPTI backend names it: only its arguments have direction and memory kinds."""


def copy_name(kind: str, src: str, dst: str) -> str:
    """The name that Kineto gives the copy of these arguments: `Memcpy HtoD (Pageable -> Device)`."""
    ends = [end.replace("_", " ").title() for end in (src, dst)]
    return f"{BARE} {kind}{f' ({ends[0]} -> {ends[1]})' if all(ends) else ''}" if kind else BARE
