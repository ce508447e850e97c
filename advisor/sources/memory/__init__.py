"""Snapshots of GPU memory: PyTorch's pickle, which is never run, and JAX's memory profile."""

from __future__ import annotations

from advisor.errors import TraceError
from advisor.recordings.recording import Recording
from advisor.sources.memory import pprof, snapshot
from advisor.sources.memory.pickles import loads
from advisor.sources.opened import Opened
from advisor.sources.sniff import PPROF_HEAD, refuse_known


def record(opened: Opened) -> Recording:
    """The recording of a snapshot."""
    refuse_known(opened)
    stream, path, parts = opened.stream, opened.path, []
    while part := stream.read(1 << 24):
        parts.append(part)
    if stream.truncated:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")
    data = b"".join(parts)
    del parts
    made = pprof.read(data, path) if opened.head.startswith(PPROF_HEAD) else snapshot.from_value(loads(data, path, snapshot.FOLD), path, len(data))
    return Recording("memory", path, (made,))
