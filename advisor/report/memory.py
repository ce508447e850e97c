"""Memory in a report: contents of the peak, and the way there."""

from __future__ import annotations

from typing import Literal

import msgspec


class HeldRow(msgspec.Struct, frozen=True):
    """Memory of one category, place and op that is held at the peak. Rows sum to the peak of their device."""

    category: str
    module: str
    source: str
    """The innermost line of the program, `file.py:12`."""
    bytes: int
    op: str = ""
    count: int = 1
    lifetime: str = ""
    """How long it lives: `part of a step`, `a step`, `several steps`, `always`."""
    start_us: float = 0.0
    """When the first of them was made, and the last of them given back, from the first event."""
    end_us: float = 0.0


class MemoryDevice(msgspec.Struct, frozen=True):
    """One device's peaks, in bytes; `segments` are those that it ends with."""

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    events: int
    out_of_memory: int = 0
    """Requests that failed."""


class TracedMemory(msgspec.Struct, frozen=True):
    """A device's memory in the window by the timeline's own events, in bytes; None if they lack it."""

    device: int
    peak_allocated_bytes: int | None = None
    """What the program held of its allocator."""
    peak_reserved_bytes: int | None = None
    """What was held from the driver."""


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment at the moment when most was reserved: what of it is in use, as [offset, bytes] in order."""

    bytes: int
    large: bool
    used: tuple[tuple[int, int], ...]
    stream: int = 0


class MemoryCurve(msgspec.Struct, frozen=True):
    """Memory over time, thinned for a chart: the highest moment of each interval. Lists of equal length."""

    time_us: tuple[float, ...]
    """From the first event."""
    reserved: tuple[int, ...]
    categories: dict[str, tuple[int, ...]]
    """Bytes allocated by category; they sum to what is allocated."""
    peak: int
    """The position of the peak."""

    def __post_init__(self) -> None:
        lengths = {len(self.time_us), len(self.reserved), *map(len, self.categories.values())}
        if len(lengths) > 1:
            raise ValueError(f"the lists of a memory curve have {' and '.join(map(str, sorted(lengths)))} entries")
        if not 0 <= self.peak < max(max(lengths), 1):
            raise ValueError(f"a memory curve of {max(lengths)} moments has no peak at {self.peak}")


class Memory(msgspec.Struct, frozen=True):
    """What a snapshot of memory says: of the device that holds most, and in brief of the others."""

    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    at_peak: tuple[HeldRow, ...]
    named_share: float
    """Share of the bytes at the peak whose category is known."""
    reserved_at_peak_bytes: int = 0
    """Reserved when most was allocated: what is beyond that is cached or in pieces."""
    steps: int = 0
    growth_bytes: int = 0
    """Growth per step, if all steps grow alike."""
    replay_error: float = 0.0
    """How far the replay of the recorded requests is from the recorded peak of reserved bytes, as a share."""
    devices: tuple[MemoryDevice, ...] = ()
    curve: MemoryCurve | None = None
    segments: tuple[SegmentRow, ...] = ()
    reserved_known: bool = True
    """Whether the snapshot says what was held from the driver; if not, the reserved bytes are those allocated, the least that it was."""

    @property
    def when_written(self) -> bool:
        """Whether nothing tells of any time but that at which the snapshot was written: it holds no events."""
        return not any(d.events for d in self.devices if d.device == self.device)

    def peak(self, of: Literal["allocated", "reserved"]) -> int:
        """The peak that a saving of that kind is a part of."""
        return self.peak_allocated_bytes if of == "allocated" else self.peak_reserved_bytes
