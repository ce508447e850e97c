"""The timeline of memory: every allocation with its life, and the curves of allocated and reserved bytes."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from advisor.recordings.snapshot import Action, DeviceSnapshot, Events, Ints, MemorySnapshot, Segment
from advisor.views.memory.allocator import SMALL_REQUEST, Settings
from advisor.views.memory.layout import lives_of, sizes_of

Bools = npt.NDArray[np.bool_]


class Allocations(msgspec.Struct, frozen=True):
    """One row an allocation, those older than the window first, then in order of birth. Columns of equal length."""

    address: Ints
    requested: Ints
    size: Ints
    """Bytes of the block: rounded, and with what was too little to split off."""
    born: Ints
    """Index of the event, -1 before the window."""
    freed: Ints
    """Index of the event that gave it back; the number of events if it is still held."""
    completed: Ints
    """Index of the event after which it could be used again."""
    stream: Ints
    stack: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.size)

    def alive(self, event: int) -> Bools:
        """Those held just after that event."""
        return (self.born <= event) & (self.freed > event)


class DeviceMemory(msgspec.Struct, frozen=True, dict=True):
    """One device's memory over its events."""

    device: int
    events: Events
    allocations: Allocations
    reserved_start: int
    """Bytes reserved before the first event."""
    segments_start: tuple[Segment, ...]
    """Segments held before the first event, their blocks left out."""
    segments_end: tuple[Segment, ...]
    """As the snapshot found them."""
    truncated: bool
    """Whether live blocks have a stack but no event: the history started, or was cut, later."""

    @cached_property
    def allocated(self) -> Ints:
        """Bytes allocated after each event."""
        return self.curve(self.allocations.size)

    def curve(self, size: Ints, born: Ints | None = None, freed: Ints | None = None) -> Ints:
        """Bytes held after each event by allocations of these sizes and lives, as recorded where not given."""
        n = len(self.events)
        change = np.zeros(n + 2, "i8")
        np.add.at(change, np.maximum(self.allocations.born if born is None else born, 0), size)
        np.subtract.at(change, np.maximum(self.allocations.freed if freed is None else freed, 0), size)
        return np.cumsum(change)[: max(n, 1)]

    @cached_property
    def reserved(self) -> Ints:
        """Bytes reserved after each event."""
        return self.reserved_start + np.cumsum(_growth(self.events)) if len(self.events) else np.array([self.reserved_start])

    @cached_property
    def peak(self) -> int:
        """The event after which most was allocated."""
        return int(np.argmax(self.allocated))

    @property
    def span_us(self) -> float:
        """Time that the events cover."""
        return float(self.events.time_us[-1] - self.events.time_us[0]) if len(self.events) else 0.0

    @property
    def peak_allocated(self) -> int:
        """The most bytes that allocations held at once."""
        return int(self.allocated[self.peak])

    @property
    def peak_reserved(self) -> int:
        """The most bytes that the allocator held from the driver at once."""
        return max(int(self.reserved.max()), self.reserved_start)

    @property
    def idle_start(self) -> int:
        """Bytes reserved before the first event that nothing held then."""
        return max(self.reserved_start - int(self.allocations.size[self.allocations.born < 0].sum()), 0)

    @cached_property
    def at_peak(self) -> Bools:
        """The allocations held at the peak."""
        return self.allocations.alive(self.peak)


class MemoryHistory(msgspec.Struct, frozen=True):
    """The memory of each device; `main` is the one that holds most."""

    devices: tuple[DeviceMemory, ...]
    settings: Settings

    @property
    def main(self) -> DeviceMemory:
        return max(self.devices, key=lambda d: d.peak_allocated)

    @classmethod
    def build(cls, snapshot: MemorySnapshot) -> MemoryHistory:
        settings = Settings.recorded(snapshot.settings)
        return cls(tuple(_device(device, settings) for device in snapshot.devices), settings)


def _growth(events: Events) -> Ints:
    """What each event adds to the reserved bytes."""
    sign = np.zeros(len(Action), "i8")
    sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
    sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
    return sign[events.action] * events.size


def _device(device: DeviceSnapshot, settings: Settings) -> DeviceMemory:
    reserved_start = device.reserved_bytes - int(_growth(device.events).sum())
    lives = lives_of(device)
    segments = _segments_at_start(device)
    allocations = Allocations(
        address=lives.address,
        requested=lives.requested,
        size=sizes_of(lives, segments, device, settings),
        born=lives.born,
        freed=lives.freed,
        completed=lives.completed,
        stream=lives.stream,
        stack=lives.stack.astype("i4"),
    )
    known = {block.address for segment in device.segments for block in segment.blocks if block.stack >= 0 and block.allocated}
    old = allocations.address[: lives.older]
    return DeviceMemory(
        device=device.device,
        events=device.events,
        allocations=allocations,
        reserved_start=max(reserved_start, 0),
        segments_start=segments,
        segments_end=device.segments,
        truncated=len(device.events) > 0 and any(int(address) in known for address in old),
    )


def _segments_at_start(device: DeviceSnapshot) -> tuple[Segment, ...]:
    """Segments held before the window: those found at its end that it did not get, and those that it gave back."""
    got: set[int] = set()
    lost: list[Segment] = []
    events = device.events
    marked = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for i in np.flatnonzero(marked).tolist():
        address, size = int(events.address[i]), int(events.size[i])
        if events.action[i] == Action.SEGMENT_ALLOC:
            got.add(address)
        elif address in got:
            got.discard(address)
        else:
            lost.append(Segment(address, size, int(events.stream[i]), size > 2 * SMALL_REQUEST, (0, 0), False, ()))
    kept = [s._replace(blocks=()) for s in device.segments if s.address not in got and not s.expandable]
    apart: list[Segment] = []
    for segment in sorted(kept + lost):
        if not apart or segment.address >= apart[-1].address + apart[-1].size:  # what overlaps contradicts itself
            apart.append(segment)
    return tuple(apart)
