"""Snapshots of GPU memory: PyTorch's pickle, which is never run, and JAX's memory profile."""

from __future__ import annotations

from advisor.errors import TraceError
from advisor.recording import Recording
from advisor.sources.memory import pprof, snapshot
from advisor.sources.memory.pickles import loads
from advisor.sources.opened import Opened


def recognises(opened: Opened) -> bool:
    """Any pickle of protocol 2 to 5 (what it lacks to be a snapshot is said when it is read), or a profile as JAX writes it."""
    head = opened.head
    return (len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5) or head.startswith(pprof.HEAD)


def record(opened: Opened) -> Recording:
    """The recording of one snapshot."""
    stream, path, parts = opened.stream, opened.path, []
    while part := stream.read(1 << 24):
        parts.append(part)
    if stream.truncated:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")
    data = b"".join(parts)
    del parts
    made = pprof.read(data, path) if opened.head.startswith(pprof.HEAD) else snapshot.from_value(loads(data, path, snapshot.folded), path, len(data))
    return Recording("memory", path, (made,))
