"""Snapshots of GPU memory: PyTorch's pickle, which is never run."""

from __future__ import annotations

from advisor.recording import Recording
from advisor.sources.memory.snapshot import read
from advisor.sources.opened import Opened

__all__ = ["read", "recognises", "record"]


def recognises(opened: Opened) -> bool:
    """Any pickle of protocol 2 to 5: what it lacks to be a snapshot is said when it is read."""
    return len(opened.head) > 1 and opened.head[0] == 0x80 and 2 <= opened.head[1] <= 5


def record(opened: Opened) -> Recording:
    """The recording of one snapshot."""
    return Recording("memory", opened.path, (read(opened.stream, opened.path),))
