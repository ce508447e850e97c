"""Snapshots of a job's ranks as a single snapshot: each rank's device has the rank's number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording
from advisor.recordings.snapshot import DeviceSnapshot, Mark, MemorySnapshot, Segment, Stack


def of_ranks(recordings: Sequence[Recording], ranks: Sequence[int | None], path: str) -> Recording:
    """The snapshots of several ranks, which are numbered in order if their names have no rank. Raises TraceError if a file is no snapshot."""
    devices: list[DeviceSnapshot] = []
    stacks: list[Stack] = []
    marks: list[Mark] = []
    found = [_snapshot(recording) for recording in recordings]
    for i, (snapshot, named) in enumerate(zip(found, ranks, strict=True)):
        rank = i if named is None else named
        own = max(snapshot.devices, key=lambda device: (device.reserved_bytes, len(device.events)))
        devices.append(_moved(own, rank, len(stacks)))
        marks += [mark._replace(device=rank) for mark in snapshot.marks if mark.device in (own.device, -1)]
        stacks += snapshot.stacks
    made = MemorySnapshot(
        path=path,
        format=found[0].format,
        bytes=sum(snapshot.bytes for snapshot in found),
        devices=tuple(sorted(devices, key=lambda device: device.device)),
        stacks=tuple(stacks),
        marks=tuple(marks),
        settings=found[0].settings,
        tells_reserved=all(snapshot.tells_reserved for snapshot in found),
        ranks=True,
    )
    return Recording("memory", path, (made,))


def _snapshot(recording: Recording) -> MemorySnapshot:
    snapshot = next((part for part in recording.parts if isinstance(part, MemorySnapshot)), None)
    if snapshot is None:
        raise TraceError(f"{recording.path} is no memory snapshot, but other files in its directory are", "Give a directory with snapshots only.")
    return snapshot


def _moved(device: DeviceSnapshot, rank: int, by: int) -> DeviceSnapshot:
    """The same device under a rank's number, its stacks counted on from those before."""

    def moved(segment: Segment) -> Segment:
        return segment._replace(blocks=tuple(b._replace(stack=b.stack + by if b.stack >= 0 else -1) for b in segment.blocks))

    stack = device.events.stack
    events = replace(device.events, stack=np.where(stack >= 0, stack + by, -1).astype("i4"))
    return DeviceSnapshot(rank, tuple(moved(segment) for segment in device.segments), events)
